"""The tensors of one rank as float32 arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from builder.reference.tensorfile import TensorFile

Float32 = npt.NDArray[np.float32]

# bfloat16, the upper half of float32, is carried as its bits, and so is FP8
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

    def stored(self, name: str) -> npt.NDArray[Any]:
        """A read-only view of the tensor as it is stored; bfloat16 and FP8 as their bits."""
        entry = self.file.tensors[name]
        return self._bytes[entry.begin : entry.end].view(_CARRIERS[entry.dtype]).reshape(entry.shape)

    def float32(self, name: str) -> Float32:
        stored = self.stored(name)
        if stored.dtype == np.uint16:
            bits = stored.astype(np.uint32)
            bits <<= 16
            return bits.view(np.float32)
        return np.array(stored, dtype=np.float32)
