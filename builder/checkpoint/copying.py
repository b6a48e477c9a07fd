"""The tensors of a stage's ranks, one after the other, from the source into the ranks' files.

While a block is hashed, in threads of the pool, it is written and the next one is read: hashing takes as long as both.
There are never more than these two blocks, of `BLOCK_BYTES` over all ranks, and what is made of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass

import numpy as np

from builder.checkpoint.floats import Array, carrier, convert_floats, narrow, rescale_fp8, widen
from builder.checkpoint.gptq import repacked
from builder.checkpoint.source import BLOCK_BYTES, SourceWeights, part_of
from builder.errors import SourceError
from builder.model.layout import RankTensor, Slice
from builder.model.safetensors import DTYPE_BITS, TensorInfo
from builder.store.digests import Advance, HashingWriter

_ALIGNMENT = 64
"""Blocks hold whole numbers of any dtype."""


@dataclass(frozen=True)
class _Part:
    """What one rank takes of one tensor, what it is multiplied with, and where it goes."""

    slice: Slice
    factor: float
    writer: HashingWriter


class Copier:
    """Writes the same tensor of every rank, each to its rank's file, in the order of the calls."""

    def __init__(
        self, weights: SourceWeights, writers: Sequence[HashingWriter], pool: Executor, threads: int, advance: Advance
    ) -> None:
        self._weights = weights
        self._writers = writers
        self._pool = pool
        self._threads = threads
        self._advance = advance
        self._hashing: list[Future[None]] = []
        self._buffers = [np.empty(BLOCK_BYTES, dtype=np.uint8) for _ in range(2)]

    def copy(self, tensors: Sequence[RankTensor]) -> None:
        """One tensor of every rank. SourceError for values that can't be what the tensor must hold."""
        first = tensors[0]
        if first.rule in ("copy", "rescaled"):
            factors = [self._factors(tensor) for tensor in tensors]
            for number in range(len(first.slices)):
                parts = [
                    _Part(tensor.slices[number], factor[number], writer)
                    for tensor, factor, writer in zip(tensors, factors, self._writers, strict=True)
                ]
                for source in dict.fromkeys(part.slice.source for part in parts):  # experts: ranks have others each
                    self._copy_parts([part for part in parts if part.slice.source == source], first.dtype)
        elif first.rule == "gptq":
            for tensor, writer in zip(tensors, self._writers, strict=True):
                for part in tensor.slices:
                    for block in repacked(self._weights, part):
                        self._write([(writer, _bytes(block))])
        else:
            self._write([(w, _bytes(self._computed(t))) for t, w in zip(tensors, self._writers, strict=True)])
        for tensor, writer in zip(tensors, self._writers, strict=True):
            if tensor.padding_rows:
                row_bytes = tensor.nbytes // tensor.shape[0]
                self._write([(writer, memoryview(bytes(tensor.padding_rows * row_bytes)))])

    def settle(self) -> None:
        """Wait until all is hashed."""
        for hashed in self._hashing:
            hashed.result()
        self._hashing = []

    def _write(self, pieces: Sequence[tuple[HashingWriter, memoryview]]) -> None:
        self.settle()
        self._hashing = [
            self._pool.submit(_hash, pieces[first :: self._threads]) for first in range(min(self._threads, len(pieces)))
        ]
        for writer, data in pieces:
            self._advance(writer.append(data))

    def _copy_parts(self, parts: Sequence[_Part], dtype: str) -> None:
        """What several ranks take of one tensor."""
        info, factor = self._weights.tensors[parts[0].slice.source], parts[0].factor
        slices = [part.slice for part in parts]
        whole = all(part.stop - part.start == part.shape[part.dim] for part in slices)
        if whole or slices[0].dim == 0:
            self._copy_rows(info, parts, dtype, factor)
        else:
            self._copy_columns(info, parts, dtype, factor)

    def _copy_rows(self, info: TensorInfo, parts: Sequence[_Part], dtype: str, factor: float) -> None:
        """Rows lie together in the file. Ranks that share them get them from one reading."""
        sharers: dict[tuple[int, int], list[HashingWriter]] = {}
        for part in parts:
            unit = info.nbytes // part.slice.shape[part.slice.dim]
            sharers.setdefault((part.slice.start * unit, part.slice.stop * unit), []).append(part.writer)
        longest = max(stop - start for start, stop in sharers)
        step = BLOCK_BYTES // len(sharers) // _ALIGNMENT * _ALIGNMENT
        for offset in range(0, longest, step):
            pieces, used = [], 0
            for (start, stop), group in sharers.items():
                size = min(step, stop - start - offset)
                if size > 0:
                    block = self._read(info, start + offset, size, used)
                    used += -(-size // _ALIGNMENT) * _ALIGNMENT
                    data = _bytes(self._converted(block, info, dtype, factor))
                    pieces += [(writer, data) for writer in group]
            self._buffers.reverse()
            self._write(pieces)

    def _copy_columns(self, info: TensorInfo, parts: Sequence[_Part], dtype: str, factor: float) -> None:
        """Columns are scattered over the file: read whole rows, and deal their parts out to the ranks."""
        rows, columns = parts[0].slice.shape
        row_bytes = info.nbytes // rows
        step = max(1, BLOCK_BYTES // row_bytes)
        for first in range(0, rows, step):
            count = min(step, rows - first)
            block = self._read(info, first * row_bytes, count * row_bytes, 0)
            values = self._converted(block, info, dtype, factor).reshape(count, columns)
            dealt = [(part.writer, _bytes(values[:, part.slice.start : part.slice.stop])) for part in parts]
            self._buffers.reverse()
            self._write(dealt)

    def _read(self, info: TensorInfo, begin: int, size: int, used: int) -> Array:
        """Bytes of a tensor, in the buffer that isn't being written, behind the `used` bytes of this block."""
        buffer = self._buffers[0]
        target = buffer[used : used + size] if used + size <= len(buffer) else np.empty(size, dtype=np.uint8)
        self._weights.read(info, begin, target.data)
        return target.view(carrier(info.dtype))

    def _converted(self, values: Array, info: TensorInfo, dtype: str, factor: float) -> Array:
        if info.name.endswith(".weight_scale"):
            self._check_scales(info, widen(values, info.dtype))
        if factor != 1:
            return rescale_fp8(values, factor)
        if DTYPE_BITS[info.dtype] == DTYPE_BITS[dtype] == 8:
            return values  # U8 and I8 name the same bytes
        try:
            return convert_floats(values, info.dtype, dtype)
        except OverflowError as error:
            raise _overflow(info, dtype, error) from error

    def _factors(self, tensor: RankTensor) -> list[float]:
        """What each slice is multiplied with: its own scale by the largest of its group."""
        if tensor.rule != "rescaled":
            return [1.0] * len(tensor.slices)
        scales = [float(self._positive(part.scale or "")[0]) for part in tensor.slices]
        size = len(scales) // tensor.groups
        largest = [max(scales[number // size * size :][:size]) for number in range(len(scales))]
        return [scale / most for scale, most in zip(scales, largest, strict=True)]

    def _computed(self, tensor: RankTensor) -> Array:
        """A small tensor: all rules but those that copy."""
        if tensor.rule == "plus_one":
            (part,) = tensor.slices
            info = self._weights.tensors[part.source]
            with np.errstate(invalid="ignore"):
                return self._narrowed(self._values(part.source) + np.float32(1), info, tensor.dtype)
        if tensor.rule == "transposed":
            return np.concatenate([part_of(self._positive(part.source), part).T for part in tensor.slices])
        if tensor.rule == "maximum":
            numbers = np.concatenate([self._positive(part.source) for part in tensor.slices])
            largest: Array = numbers.reshape(tensor.groups, -1).max(axis=1)
            return largest
        present = [part for part in tensor.slices if part.source in self._weights.tensors]
        if tensor.rule == "same_or_ones" and not present:
            return convert_floats(np.ones(math.prod(tensor.shape), dtype=np.float32), "F32", tensor.dtype)
        parts = [self._positive(part.source)[part.start : part.stop] for part in present]
        if len(present) < len(tensor.slices) or any(not np.array_equal(parts[0], other) for other in parts[1:]):
            raise SourceError(
                f"the linears that make {tensor.name.rsplit('.', 1)[0]} have different scales",
                where=self._weights.tensors[present[0].source].file,
                why=f"TensorRT-LLM has one {tensor.name.rsplit('.', 1)[1]} for all of them",
                hint="quantise the model with fused projections, or use the pytorch flow",
                code="SCALES_DIFFER",
            )
        return self._narrowed(parts[0], self._weights.tensors[present[0].source], tensor.dtype)

    def _values(self, name: str) -> Array:
        """A whole small tensor as float32, flat."""
        return widen(self._weights.array(name), self._weights.tensors[name].dtype).reshape(-1)

    def _positive(self, name: str) -> Array:
        values = self._values(name)
        if not (np.isfinite(values) & (values > 0)).all():
            raise _not_a_scale(self._weights.tensors[name], "finite and above 0")
        return values

    @staticmethod
    def _check_scales(info: TensorInfo, values: Array) -> None:
        """Many at once: a row, group or block without a number in it may have a scale of 0."""
        if not (np.isfinite(values) & (values >= 0)).all():
            raise _not_a_scale(info, "finite and not below 0")

    @staticmethod
    def _narrowed(wide: Array, info: TensorInfo, dtype: str) -> Array:
        try:
            return narrow(wide, dtype)
        except OverflowError as error:
            raise _overflow(info, dtype, error) from error


def _hash(pieces: Sequence[tuple[HashingWriter, memoryview]]) -> None:
    for writer, data in pieces:
        writer.hash(data)


def _not_a_scale(info: TensorInfo, what: str) -> SourceError:
    return SourceError(
        f"{info.name} must be {what}",
        where=info.file,
        why="it is a scale",
        hint="the model wasn't calibrated well, or its file is damaged: ask its publisher",
        code="SCALE_VALUE",
    )


def _overflow(info: TensorInfo, dtype: str, error: OverflowError) -> SourceError:
    return SourceError(
        f"{info.name} can't be converted to {dtype}",
        where=info.file,
        why=str(error),
        hint="keep the precision of the model, or choose bfloat16",
        code="DTYPE_OVERFLOW",
    )


def _bytes(values: Array) -> memoryview:
    return np.ascontiguousarray(values).data.cast("B")
