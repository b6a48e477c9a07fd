"""The KV cache of one request: on every rank its own keys and values, allocated for the longest it may become."""

from __future__ import annotations

import numpy as np

from builder.reference.config import Config
from builder.reference.errors import ReferenceModelError
from builder.reference.floats import Float32


class KVCache:
    """`length` tokens of at most `capacity` are held. The memory is only touched as far as it is filled.

    keys[rank] and values[rank] are (layers of the stage, KV heads of the rank, capacity, head_size).
    """

    def __init__(self, config: Config, capacity: int) -> None:
        if capacity < 1:
            raise ReferenceModelError(f"the capacity of a KV cache must be at least 1, not {capacity}")
        self.capacity = capacity
        self.length = 0
        shapes = [
            (len(config.stage_layers(rank // config.tp_size)), config.rank_key_value_heads, capacity, config.head_size)
            for rank in range(config.mapping.files)
        ]
        self.keys: list[Float32] = [np.empty(shape, dtype=np.float32) for shape in shapes]
        self.values: list[Float32] = [np.empty(shape, dtype=np.float32) for shape in shapes]

    def store(
        self, rank: int, layer: int, keys: Float32, values: Float32, window: int | None = None
    ) -> tuple[Float32, Float32]:
        """Put (tokens, KV heads, head_size) behind what is held, and return what they see.

        That is (KV heads, tokens, head_size): all of it or, with a window, what the oldest of the new ones still sees.

        `length` stays as it is, since the other layers and ranks store theirs in the same place.
        """
        end = self.length + len(keys)
        self.keys[rank][layer, :, self.length : end] = keys.transpose(1, 0, 2)
        self.values[rank][layer, :, self.length : end] = values.transpose(1, 0, 2)
        begin = 0 if window is None else max(0, self.length - window + 1)
        return self.keys[rank][layer, :, begin:end], self.values[rank][layer, :, begin:end]
