"""The tensors of one rank: as they are stored, and as float32 arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from builder.reference.floats import Float32, bfloat16_values, e4m3_values, looked_up
from builder.reference.tensorfile import TensorFile

_CARRIERS: dict[str, npt.DTypeLike] = {
    "F16": np.float16,
    "BF16": np.uint16,
    "F32": np.float32,
    "F8_E4M3": np.uint8,
    "I8": np.int8,
    "U8": np.uint8,
}


class RankWeights:
    """Maps the file into memory; what `float32` returns is a copy, so that the map can go when loading is done."""

    def __init__(self, file: TensorFile) -> None:
        self.file = file
        self._bytes = np.memmap(file.path, dtype=np.uint8, mode="r")

    def __contains__(self, name: str) -> bool:
        return name in self.file.tensors

    def dtype(self, name: str) -> str:
        """As safetensors spells it: "BF16", …"""
        return self.file.tensors[name].dtype

    def stored(self, name: str) -> npt.NDArray[Any]:
        """A read-only view of the tensor as it is stored; bfloat16 and FP8 as their bits."""
        entry = self.file.tensors[name]
        return self._bytes[entry.begin : entry.end].view(_CARRIERS[entry.dtype]).reshape(entry.shape)

    def float32(self, name: str, index: int | None = None) -> Float32:
        """The tensor, or of its first dimension the one at `index`, each number exactly as it is."""
        stored = self.stored(name) if index is None else self.stored(name)[index]
        if self.dtype(name) == "BF16":
            return bfloat16_values(stored)
        if self.dtype(name) == "F8_E4M3":
            return looked_up(e4m3_values(), stored)
        return np.array(stored, dtype=np.float32)
