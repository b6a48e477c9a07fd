"""A Hugging Face model becomes a TensorRT-LLM checkpoint: config.json and one rankN.safetensors per rank.

The tensor table of `builder.model.layout` is executed as it stands. All tensor ranks of a pipeline stage are written
side by side, each file front to back, so that a weight is read once however many ranks share or split it, and every
byte is hashed as it passes. Memory is a few blocks, whatever the model's size.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

from builder.checkpoint.config import checkpoint_config
from builder.checkpoint.floats import Array, carrier, convert_floats
from builder.checkpoint.source import BLOCK_BYTES, SourceWeights
from builder.errors import SourceError, disk_errors
from builder.model.layout import RankTensor, Slice, check_parallelism, rank_tensors, require_plain
from builder.model.safetensors import DTYPE_BITS, TensorInfo, encode_header
from builder.model.spec import ModelSpec
from builder.store.digests import Advance, HashingWriter, ignore_progress
from builder.store.local import Workspace


def convert(
    source: Path,
    spec: ModelSpec,
    out: Workspace,
    *,
    tp: int = 1,
    pp: int = 1,
    dtype: str | None = None,
    advance: Advance = ignore_progress,
) -> None:
    """Write the checkpoint of the model in folder `source`, which `spec` describes, for tp · pp ranks into `out`.

    `dtype` ("bfloat16", "float16", "float32") asks for a precision by name, and tensors that are stored in another
    one are rounded to it; None keeps what the model has, byte for byte. The same source gives the same bytes, however
    it is sharded. `advance` is told the bytes of tensors as they are written, `layout.checkpoint_bytes` in all.

    SourceError if the model isn't a plain Llama or the weights are not those that `spec` describes, PlanRefused if
    they can't be split like this, HostError if the disk is full. What is half-written then is the workspace's to clear.
    """
    require_plain(spec)
    check_parallelism(spec, tp, pp)
    target = spec if dtype is None else replace(spec, dtype=dtype)
    with disk_errors(out.path), SourceWeights(source, spec) as weights:
        weights.check(dtype)
        for stage in range(pp):
            _write_stage(weights, target, out, tp, pp, stage, advance)
        text = json.dumps(checkpoint_config(target, tp, pp), indent=2, allow_nan=False) + "\n"
        with HashingWriter(out.path / "config.json") as file:
            file.write(text.encode())
        out.record("config.json", file.digest)


def _write_stage(
    weights: SourceWeights, target: ModelSpec, out: Workspace, tp: int, pp: int, stage: int, advance: Advance
) -> None:
    ranks = range(stage * tp, (stage + 1) * tp)
    tables = [rank_tensors(target, tp, pp, rank) for rank in ranks]
    with ExitStack() as stack:
        writers = [stack.enter_context(HashingWriter(out.path / f"rank{rank}.safetensors")) for rank in ranks]
        for table, writer in zip(tables, writers, strict=True):
            header = encode_header({tensor.name: (tensor.dtype, tensor.shape) for tensor in table}, {"format": "pt"})
            writer.write(header)
        copier = _Copier(weights, writers, stack.enter_context(ThreadPoolExecutor(os.cpu_count())), advance)
        for tensors in zip(*tables, strict=True):
            copier.copy(tensors)
        copier.settle()
    for rank, writer in zip(ranks, writers, strict=True):
        out.record(f"rank{rank}.safetensors", writer.digest)


class _Copier:
    """Brings one tensor after the other to the files of all tensor ranks of a stage.

    While the next block is read, the last one is hashed and written, each rank in a thread. There are never more than
    these two blocks, of `BLOCK_BYTES` over all ranks.
    """

    def __init__(
        self, weights: SourceWeights, writers: Sequence[HashingWriter], pool: ThreadPoolExecutor, advance: Advance
    ) -> None:
        self._weights = weights
        self._writers = writers
        self._pool = pool
        self._advance = advance
        self._pending: list[Future[int]] = []

    def copy(self, tensors: Sequence[RankTensor]) -> None:
        """The same tensor of every rank, each into its rank's file."""
        dtype = tensors[0].dtype
        for slices in zip(*(tensor.slices for tensor in tensors), strict=True):
            info = self._weights.tensors[slices[0].source]
            if slices[0].dim == 0:
                self._copy_rows(info, slices, dtype)
            else:
                self._copy_columns(info, slices, dtype)
        for tensor, writer in zip(tensors, self._writers, strict=True):
            if tensor.padding_rows:
                row_bytes = tensor.nbytes // tensor.shape[0]
                self._write([(writer, memoryview(bytes(tensor.padding_rows * row_bytes)))])

    def settle(self) -> None:
        """Wait until all is written."""
        for future in self._pending:
            self._advance(future.result())
        self._pending = []

    def _write(self, pieces: Sequence[tuple[HashingWriter, memoryview]]) -> None:
        self.settle()
        self._pending = [self._pool.submit(writer.write, data) for writer, data in pieces]

    def _copy_rows(self, info: TensorInfo, slices: Sequence[Slice], dtype: str) -> None:
        """Rows lie together in the file. Ranks that share them get them from one reading."""
        sharers: dict[Slice, list[HashingWriter]] = {}
        for part, writer in zip(slices, self._writers, strict=True):
            sharers.setdefault(part, []).append(writer)
        row_bytes = info.nbytes // info.shape[0]
        longest = max(part.stop - part.start for part in sharers) * row_bytes
        step = BLOCK_BYTES // len(sharers) // 8 * 8  # whole numbers of any dtype
        for offset in range(0, longest, step):
            pieces = []
            for part, group in sharers.items():
                begin = part.start * row_bytes + offset
                size = min(step, part.stop * row_bytes - begin)
                if size > 0:
                    block = self._read(info, begin, size, dtype).data
                    pieces += [(writer, block) for writer in group]
            self._write(pieces)

    def _copy_columns(self, info: TensorInfo, slices: Sequence[Slice], dtype: str) -> None:
        """Columns are scattered over the file: read whole rows, and deal their parts out to the ranks."""
        rows, columns = info.shape
        row_bytes = info.nbytes // rows
        step = max(1, BLOCK_BYTES // row_bytes)
        for first in range(0, rows, step):
            count = min(step, rows - first)
            block = self._read(info, first * row_bytes, count * row_bytes, dtype).reshape(count, columns)
            parts = [np.ascontiguousarray(block[:, part.start : part.stop]).data for part in slices]
            self._write(list(zip(self._writers, parts, strict=True)))

    def _read(self, info: TensorInfo, begin: int, size: int, dtype: str) -> Array:
        values = np.empty(size * 8 // DTYPE_BITS[info.dtype], dtype=carrier(info.dtype))
        self._weights.read(info, begin, values.data.cast("B"))
        try:
            return convert_floats(values, info.dtype, dtype)
        except OverflowError as error:
            raise SourceError(
                f"{info.name} can't be converted to {dtype}",
                where=info.file,
                why=str(error),
                hint="keep the precision of the model, or choose bfloat16",
                code="DTYPE_OVERFLOW",
            ) from error
