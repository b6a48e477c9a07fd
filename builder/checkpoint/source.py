"""The Hugging Face weights that a checkpoint is made from: checked against the model, then read piece by piece."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from builder.checkpoint.floats import CONVERTIBLE, Array, carrier
from builder.errors import SourceError
from builder.model.families import families
from builder.model.layout import Slice, source_tensors
from builder.model.safetensors import TensorIndex, TensorInfo
from builder.model.spec import STORED_DTYPES, ModelSpec
from builder.model.weight_files import some

BLOCK_BYTES = 512 << 10

_DERIVED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")  # old files store what rope_theta says


class SourceWeights:
    """The weights of one model folder, open for reading until the `with` ends."""

    def __init__(self, folder: Path, spec: ModelSpec) -> None:
        self.folder = folder
        self.spec = spec
        self.tensors = TensorIndex.open(folder).tensors
        self._files: dict[Path, int] = {}
        self._stack = ExitStack()

    def __enter__(self) -> SourceWeights:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def check(self, target_dtype: str | None) -> None:
        """SourceError unless the folder holds exactly the tensors of the model, in the dtype that its config says.

        Another dtype is accepted only where `target_dtype` asks for one by name, since then every tensor is brought
        to it; rounding weights because a config is wrong would be a guess.
        """
        needed, optional = source_tensors(self.spec)
        self._check_names(needed, optional)
        for name, expected in (needed | optional).items():
            if (info := self.tensors.get(name)) is not None:
                self._check_shape(info, expected)
                self._check_dtype(info, expected, target_dtype)
        if self.spec.tie_word_embeddings and "lm_head.weight" in self.tensors:
            self._check_tied_head()

    def read(self, info: TensorInfo, begin: int, buffer: memoryview) -> None:
        """Fill `buffer` with the bytes of a tensor from its byte `begin` on."""
        descriptor = self._descriptor(info.file)
        position, filled = info.begin + begin, 0
        while filled < len(buffer):
            with _readable(info.file):
                count = os.preadv(descriptor, [buffer[filled:]], position + filled)
            if count == 0:
                raise SourceError("the file became shorter while it was read", where=info.file, code="SHARD_TRUNCATED")
            filled += count

    def array(self, name: str, rows: slice = slice(None)) -> Array:
        """Some rows of a tensor, in the carrier of its dtype."""
        info = self.tensors[name]
        first, last, _ = rows.indices(info.shape[0] if info.shape else 1)
        row_bytes = info.nbytes // (info.shape[0] if info.shape else 1)
        values = np.empty((last - first) * row_bytes, dtype=np.uint8)
        self.read(info, first * row_bytes, values.data)
        shape = (last - first, *info.shape[1:]) if info.shape else ()
        return values.view(carrier(info.dtype)).reshape(shape)

    def _check_names(self, needed: Mapping[str, Slice], optional: Mapping[str, Slice]) -> None:
        if missing := [name for name in needed if name not in self.tensors]:
            raise SourceError(
                f"{len(missing)} tensors of the model are missing: {some(missing)}",
                where=self.folder,
                why=f"config.json makes {len(needed)}, the weight files hold {len(self.tensors)}",
                hint="check num_hidden_layers and tie_word_embeddings, or fetch the model again",
                code="TENSOR_MISSING",
            )
        tied_head = {"lm_head.weight"} if self.spec.tie_word_embeddings else set()
        known = needed.keys() | optional.keys() | tied_head
        if strangers := [name for name in self.tensors if name not in known and not _DERIVED.fullmatch(name)]:
            raise SourceError(
                f"{len(strangers)} tensors are not part of this architecture: {some(sorted(strangers))}",
                where=self.folder,
                why=f"{self.spec.architecture} with this config.json has no such tensors; "
                "leaving them out would give another model",
                code="TENSOR_UNEXPECTED",
            )

    def _check_shape(self, info: TensorInfo, expected: Slice) -> None:
        """Scales may be stored with dimensions of 1, [N, 1] for [N] and [1] for a number."""
        shape = info.shape
        if expected.dtype == "float":
            shape = tuple(size for size in shape if size != 1)
            if shape == tuple(size for size in expected.shape if size != 1):
                return
        if shape != expected.shape:
            raise SourceError(
                f"{info.name} has the shape {list(info.shape)}; config.json makes it {list(expected.shape)}",
                where=info.file,
                why="weights and config.json don't belong together",
                code="TENSOR_SHAPE",
            )

    def _check_dtype(self, info: TensorInfo, expected: Slice, target_dtype: str | None) -> None:
        if expected.dtype == "float":
            if info.dtype in CONVERTIBLE:
                return
        elif expected.dtype is not None:
            if info.dtype == expected.dtype:
                return
        elif info.dtype == self.spec.stored_dtype or (target_dtype is not None and info.dtype in CONVERTIBLE):
            return
        wanted = {None: self.spec.dtype, "float": "a floating point format"}.get(expected.dtype, expected.dtype)
        asks = expected.dtype is None and info.dtype in CONVERTIBLE
        raise SourceError(
            f"{info.name} is stored as {info.dtype}; config.json says {wanted}",
            where=info.file,
            why="weights are rounded only to a precision that is asked for"
            if asks
            else "the weights are not quantised as config.json says",
            hint=f"ask for one of the precisions {', '.join(STORED_DTYPES)}" if asks else None,
            code="DTYPE_MISMATCH",
        )

    def _check_tied_head(self) -> None:
        """A tied model may store its head as well (Qwen3-0.6B does); it must then be the embedding, bit for bit."""
        embedding_name = f"{families()[self.spec.model_type].prefix}embed_tokens.weight"
        head, embedding = self.tensors["lm_head.weight"], self.tensors[embedding_name]
        alike = (head.dtype, head.shape) == (embedding.dtype, embedding.shape)
        if not alike or any(map(operator.ne, self._blocks(head), self._blocks(embedding))):
            raise SourceError(
                "lm_head.weight differs from the embedding, though config.json says that they are tied",
                where=head.file,
                why="there are two heads to choose from",
                hint="set tie_word_embeddings to false if the stored head is meant",
                code="TIED_HEAD_DIFFERS",
            )

    def _blocks(self, info: TensorInfo) -> Iterator[memoryview]:
        buffer = memoryview(bytearray(min(BLOCK_BYTES, info.nbytes)))
        for begin in range(0, info.nbytes, BLOCK_BYTES):
            block = buffer[: min(BLOCK_BYTES, info.nbytes - begin)]
            self.read(info, begin, block)
            yield block

    def _descriptor(self, file: Path) -> int:
        if file not in self._files:
            with _readable(file):
                descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            self._stack.callback(os.close, descriptor)
            self._files[file] = descriptor
        return self._files[file]


def part_of(values: Array, part: Slice) -> Array:
    """What a slice takes of the whole tensor's values."""
    values = values.reshape(part.shape)
    return values[part.start : part.stop] if part.dim == 0 else values[:, part.start : part.stop]


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SourceError("can't read this file", where=file, why=error.strerror, code="UNREADABLE") from error
