"""ReferenceModel: the ranks of a checkpoint or engine, computed apart and joined where TensorRT-LLM joins them.

    tokens → vocab_embedding → stage 0 ─→ stage 1 … ─→ ln_f → lm_head of every rank, side by side → logits
                               │
                               └ layer: x += Σ over ranks of dense(attention(qkv(norm(x)))) + bias
                                        x += Σ over ranks of proj(act(fc(norm(x))) · gate(norm(x))) + bias
                                             or of the experts that a router chooses

Every tensor rank has its own heads, KV cache and slice of the MLP; the sums stand for the all-reduces. What all ranks
hold alike (norms, embedding, the biases after the sums) must be equal on all of them, and is kept once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from builder.reference.cache import KVCache
from builder.reference.config import Config
from builder.reference.dequantize import rounded_cache
from builder.reference.errors import ReferenceModelError
from builder.reference.floats import Float32
from builder.reference.folder import ModelFolder
from builder.reference.layers import causal_attention, rms_norm, soft_capped
from builder.reference.layout import FINAL_NORM
from builder.reference.limits import Limits
from builder.reference.linear import Linear
from builder.reference.loading import Layer, load_embedding, load_head, load_layer, replicated
from builder.reference.mlp import mixture
from builder.reference.rotary import Rope, RotaryAngles
from builder.reference.weights import RankWeights

_CHUNK_ROWS = 256
_CHUNK_SCORE_BYTES = 64 << 20


@dataclass(frozen=True)
class _Batch:
    """Rows of several sequences packed behind each other: each cache takes part with the rows of its slice."""

    spans: tuple[tuple[KVCache, slice], ...]
    angles: Mapping[Rope, RotaryAngles]


@dataclass(frozen=True)
class _Place:
    """A layer: its stage, its number there, and its number in the model."""

    stage: int
    number: int
    layer: int


class ReferenceModel:
    """Immutable after `load`; several threads may compute at once, each on caches of its own."""

    def __init__(
        self,
        config: Config,
        limits: Limits | None,
        embedding: Float32,
        stages: tuple[tuple[tuple[int, Layer], ...], ...],
        final_norm: Float32,
        heads: tuple[Linear, ...],
    ) -> None:
        self.config = config
        self.limits = limits
        self._embedding = embedding
        self._stages = stages
        self._final_norm = final_norm
        self._heads = heads
        self._ropes = {rope for rope in (config.rope, config.local_rope) if rope is not None}

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read a checkpoint or a reference engine; weights are widened to float32 once.

        ReferenceModelError for whatever is missing, malformed or not implemented. `limits` is None for a checkpoint.
        """
        opened = ModelFolder.open(folder)
        config = opened.config
        weights = [RankWeights(file) for file in opened.ranks]
        stage_ranks = [weights[first : first + config.tp_size] for first in range(0, len(weights), config.tp_size)]
        return cls(
            config,
            opened.limits,
            load_embedding(config, stage_ranks[0]),
            tuple(
                tuple(
                    (layer, load_layer(config, ranks, number, layer))
                    for number, layer in enumerate(config.stage_layers(stage))
                )
                for stage, ranks in enumerate(stage_ranks)
            ),
            replicated(stage_ranks[-1], FINAL_NORM),
            tuple(load_head(config, rank) for rank in stage_ranks[-1]),
        )

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    def new_cache(self, capacity: int) -> KVCache:
        """An empty cache for a sequence of up to `capacity` tokens, prompt included."""
        if self.limits is not None and capacity > self.limits.max_seq_len:
            raise ReferenceModelError(f"a sequence of {capacity} tokens exceeds max_seq_len {self.limits.max_seq_len}")
        return KVCache(self.config, capacity)

    def prefill(self, tokens: npt.ArrayLike, cache: KVCache, *, all_positions: bool = False) -> Float32:
        """Append `tokens` (1-D) to the sequence of `cache`; logits (vocab_size,) after the last of them.

        With `all_positions`, logits (tokens, vocab_size) after each. Long prompts are computed in chunks.
        """
        ids = self._checked(tokens)
        if self.limits is not None and len(ids) > self.limits.max_input_len:
            raise ReferenceModelError(f"{len(ids)} tokens exceed max_input_len {self.limits.max_input_len}")
        _check_room(cache, len(ids))
        logits = []
        length = cache.length + len(ids)
        for rows in self._chunks(cache.length, len(ids)):
            hidden = self._advance(ids[rows], (cache,), length)
            if all_positions:
                logits.append(self._logits(hidden))
        return np.concatenate(logits) if all_positions else self._logits(hidden[-1:])[0]

    def decode(self, tokens: npt.ArrayLike, caches: Sequence[KVCache]) -> Float32:
        """Append tokens[i] to the sequence of caches[i], all in one step; logits (len(caches), vocab_size).

        The sequences may have different lengths.
        """
        ids = self._checked(tokens)
        if len(ids) != len(caches) or len({id(cache) for cache in caches}) != len(caches):
            raise ReferenceModelError(f"{len(ids)} tokens for {len(caches)} caches; each needs one of its own")
        if self.limits is not None and len(ids) > self.limits.max_batch_size:
            raise ReferenceModelError(f"{len(ids)} sequences exceed max_batch_size {self.limits.max_batch_size}")
        for cache in caches:
            _check_room(cache, 1)
        return self._logits(self._advance(ids, caches))

    def _advance(self, ids: npt.NDArray[np.int64], caches: Sequence[KVCache], length: int = 0) -> Float32:
        """Append equally many of `ids` to each of `caches`; the last stage's activations (len(ids), hidden_size).

        `length`: how long the sequence becomes, if these aren't the last of the tokens that are appended to it.
        """
        count = len(ids) // len(caches)
        spans = [(np.arange(cache.length, cache.length + count), max(length, cache.length + count)) for cache in caches]
        batch = _Batch(
            spans=tuple((cache, slice(i * count, (i + 1) * count)) for i, cache in enumerate(caches)),
            angles={rope: RotaryAngles(rope, spans) for rope in self._ropes},
        )
        x = self._embedding[ids]
        for stage, layers in enumerate(self._stages):
            for number, (index, layer) in enumerate(layers):
                x = self._layer(x, layer, _Place(stage, number, index), batch)
        for cache in caches:
            cache.length += count
        return x

    def _layer(self, x: Float32, layer: Layer, place: _Place, batch: _Batch) -> Float32:
        sandwich = self.config.sandwich_norms
        normed = self._norm(x, layer, "input_layernorm")
        attended = _all_reduce(
            [self._attention(normed, layer, tensor_rank, place, batch) for tensor_rank in range(self.config.tp_size)],
            layer.dense_bias,
        )
        x = x + (self._norm(attended, layer, "post_layernorm") if sandwich else attended)
        normed = self._norm(x, layer, "pre_feedforward_layernorm" if sandwich else "post_layernorm")
        mixed = _all_reduce(_feed_forward(normed, layer), layer.proj_bias)
        return x + (self._norm(mixed, layer, "post_feedforward_layernorm") if sandwich else mixed)

    def _norm(self, x: Float32, layer: Layer, name: str) -> Float32:
        return rms_norm(x, layer.norms[name], self.config.norm_epsilon)

    def _attention(self, x: Float32, layer: Layer, tensor_rank: int, place: _Place, batch: _Batch) -> Float32:
        config, shard = self.config, layer.shards[tensor_rank]
        heads, kv_heads = config.rank_heads, config.rank_key_value_heads
        rank, window = place.stage * config.tp_size + tensor_rank, config.windows[place.layer]
        qkv = shard.qkv(x).reshape(len(x), heads + 2 * kv_heads, config.head_size)
        if config.qk_layernorm:
            qkv[:, :heads] = self._norm(qkv[:, :heads], layer, "attention.q_layernorm")
            qkv[:, heads : heads + kv_heads] = self._norm(
                qkv[:, heads : heads + kv_heads], layer, "attention.k_layernorm"
            )
        batch.angles[config.rope_of(place.layer)].rotate(qkv[:, : heads + kv_heads])
        if kv_algo := config.quantization.kv_algo:
            qkv[:, heads:] = rounded_cache(qkv[:, heads:], shard.cache_scale, kv_algo)
        queries, keys, values = np.split(qkv, (heads, heads + kv_heads), axis=1)
        mixed = np.empty((len(x), heads * config.head_size), dtype=np.float32)
        for cache, rows in batch.spans:
            seen = cache.store(rank, place.number, keys[rows], values[rows], window)
            mixed[rows] = causal_attention(queries[rows], *seen, config.query_scale, window, config.attention_soft_cap)
        return shard.dense(mixed)

    def _logits(self, hidden: Float32) -> Float32:
        normed = rms_norm(hidden, self._final_norm, self.config.norm_epsilon)
        logits = np.concatenate([head(normed) for head in self._heads], axis=1)[:, : self.config.vocab_size]
        return soft_capped(logits, self.config.logit_soft_cap)

    def _chunks(self, start: int, count: int) -> Iterator[slice]:
        """Slices of a prompt, short enough that the attention scores of a layer and rank stay within bounds."""
        begin = 0
        while begin < count:
            row_bytes = 4 * self.config.rank_heads * (start + begin + _CHUNK_ROWS)
            rows = min(max(_CHUNK_SCORE_BYTES // row_bytes, 1), _CHUNK_ROWS, count - begin)
            yield slice(begin, begin + rows)
            begin += rows

    def _checked(self, tokens: npt.ArrayLike) -> npt.NDArray[np.int64]:
        ids = np.asarray(tokens)
        if ids.ndim != 1 or not ids.size or ids.dtype.kind not in "iu":
            raise ReferenceModelError(f"tokens must be a non-empty 1-D array of integers, not {ids.dtype} {ids.shape}")
        if ids.min() < 0 or ids.max() >= self.vocab_size:
            raise ReferenceModelError(f"token ids must be in 0…{self.vocab_size - 1}")
        return ids.astype(np.int64)


def _check_room(cache: KVCache, count: int) -> None:
    if cache.length + count > cache.capacity:
        raise ReferenceModelError(f"{count} more tokens than the {cache.length} held exceed {cache.capacity}")


def _feed_forward(x: Float32, layer: Layer) -> list[Float32]:
    """What each rank adds to the result of the MLP, or of the experts that the router chooses."""
    if layer.router is None:
        return [shard.mlp(x) for shard in layer.shards if shard.mlp is not None]
    shares = layer.router(x)
    return [mixture(x, shares, shard.experts) for shard in layer.shards]


def _all_reduce(partial_results: Sequence[Float32], bias: Float32 | None) -> Float32:
    """The sum over the tensor ranks; the bias is added once, after it (RowLinear of tensorrt_llm/layers/linear.py)."""
    total = partial_results[0]
    for partial in partial_results[1:]:
        total += partial
    if bias is not None:
        total += bias
    return total
