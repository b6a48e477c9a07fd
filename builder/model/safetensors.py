"""The tensors of a model folder, from the headers of its safetensors files: bounded, and checked before use.

A safetensors file is

    8 bytes   N, the length of the header, little-endian
    N bytes   JSON: {NAME: {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {…} or null or absent}
    the rest  the tensors' bytes, without gaps and overlaps; offsets count from here

(https://github.com/huggingface/safetensors#format). Which files of a model these are, says `weight_files`.

Whatever is wrong is a SourceError with one of these codes:

    WEIGHTS_MISSING      no weights that we read                  INDEX_MISSING     shards without their index
    PICKLE_ONLY          only .bin or .pt: reading runs code      INDEX_JSON        the index isn't what it should be
    ADAPTER_ONLY         a LoRA adapter without its base model    INDEX_MISMATCH    a tensor isn't where the index says
    GGUF_ONLY            a GGUF file without safetensors          SHARD_MISSING     the index names an absent file
    LFS_POINTER          Git LFS left a pointer, not the file     PATH_ESCAPE       the index names a file elsewhere
    SAFETENSORS_HEADER   malformed, or more than the file has     UNREADABLE        the operating system refused
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.errors import SourceError
from builder.model.files import opened, parse_json
from builder.model.weight_files import INDEX_FILE, SINGLE_FILE, no_weights, read_index, shards_of, some

MAX_HEADER_BYTES = 40_000_000
"""The format's own limit is 100 MB. Published files have some MB at most, and what is read takes several times that."""

MAX_HEADER_VALUES = 1_000_000
"""Of more than 100,000 tensors in one file."""

MAX_DIMENSIONS = 64
"""As PyTorch and NumPy have it."""

PREFIX_BYTES = 8

DTYPE_BITS = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2": 8,
    "F8_E5M2FNUZ": 8,
    "F8_E8M0": 8,
    "U16": 16,
    "I16": 16,
    "F16": 16,
    "BF16": 16,
    "U32": 32,
    "I32": 32,
    "F32": 32,
    "U64": 64,
    "I64": 64,
    "F64": 64,
    "C64": 64,
}


@dataclass(frozen=True)
class TensorInfo:
    """One stored tensor. `dtype` is spelt as safetensors does ("BF16"); its bytes are `file[begin:end]`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True)
class TensorIndex:
    """Every tensor of a model folder by name."""

    tensors: Mapping[str, TensorInfo]

    @classmethod
    def open(cls, folder: Path) -> TensorIndex:
        """Read the headers of the model's files in `folder`; see `weight_files` for which these are."""
        if os.path.lexists(folder / SINGLE_FILE):
            return cls(read_header(folder / SINGLE_FILE))
        index = folder / INDEX_FILE
        if os.path.lexists(index):
            weight_map = read_index(index)
            present = {shard for shard in weight_map.values() if (folder / shard).exists()}
            headers = {shard: read_header(folder / shard) for shard in shards_of(weight_map, present, folder)}
            return cls.joined(headers, weight_map, index)
        try:
            names = os.listdir(folder)
        except OSError as error:
            raise SourceError(
                "can't read the model's folder", where=folder, why=error.strerror, code="UNREADABLE"
            ) from error
        raise no_weights(names, folder)

    @classmethod
    def joined(
        cls, headers: Mapping[str, Mapping[str, TensorInfo]], weight_map: Mapping[str, str], where: object
    ) -> TensorIndex:
        """The tensors of several files, by file and name, as the index says where each is."""
        strays = [name for name, shard in weight_map.items() if name not in headers[shard]]
        if strays:
            raise SourceError(
                f"{len(strays)} tensors are not in the file that the index names: {some(strays)}",
                where=where,
                why=f"{weight_map[strays[0]]} does not hold {strays[0]}",
                hint="index and shards are of different revisions; fetch the model again",
                code="INDEX_MISMATCH",
            )
        return cls({name: headers[shard][name] for name, shard in weight_map.items()})


def read_header(path: Path) -> dict[str, TensorInfo]:
    """The tensors of one safetensors file, in the order of their bytes. Only the header is read."""
    with opened(path) as file:
        file_size = os.fstat(file.fileno()).st_size
        header_size = header_bytes(file.read(PREFIX_BYTES), file_size, path)
        return parse_header(file.read(header_size), file_size, path)


def header_bytes(prefix: bytes, file_size: int, path: Path) -> int:
    """How long the header is that follows the first 8 bytes. Nothing is allocated by what they say."""
    if len(prefix) < PREFIX_BYTES:
        raise _truncated(path, PREFIX_BYTES - len(prefix))
    header_size = int.from_bytes(prefix[:PREFIX_BYTES], "little")
    if header_size > MAX_HEADER_BYTES:
        raise _malformed(path, f"it says that its header has {header_size} bytes; the limit is {MAX_HEADER_BYTES}")
    if PREFIX_BYTES + header_size > file_size:
        raise _truncated(path, PREFIX_BYTES + header_size - file_size)
    return header_size


def parse_header(header: bytes, file_size: int, path: Path) -> dict[str, TensorInfo]:
    """The tensors that a header lists, in the order of their bytes; every byte of the file belongs to one of them."""
    if not header.startswith(b"{"):
        raise _malformed(path, 'its header does not begin with "{"')
    entries = parse_json(header, path, code="SAFETENSORS_HEADER", most_values=MAX_HEADER_VALUES)
    _check_metadata(path, entries.pop("__metadata__", None))
    data_start = PREFIX_BYTES + len(header)
    tensors = sorted(
        (_tensor(path, name, entry, data_start) for name, entry in entries.items()),
        key=lambda tensor: (tensor.begin, tensor.end),
    )
    position = data_start
    for tensor in tensors:
        if tensor.begin != position:
            fault = "overlaps the tensor before it" if tensor.begin < position else "leaves a gap before it"
            raise _malformed(path, f"{tensor.name} {fault} (begins at byte {tensor.begin}, expected {position})")
        position = tensor.end
    if position > file_size:
        raise _truncated(path, position - file_size)
    if position < file_size:
        raise _malformed(path, f"it has {file_size - position} bytes that no tensor of its header owns")
    return {tensor.name: tensor for tensor in tensors}


def encode_header(tensors: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str]) -> bytes:
    """The length and header of a file that holds `tensors` (name → dtype, shape) in this order.

    Padded with spaces so that the data begins at a multiple of 8 bytes, as the safetensors library does.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    position = 0
    for name, (dtype, shape) in tensors.items():
        end = position + math.prod(shape) * DTYPE_BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _tensor(path: Path, name: str, entry: Any, data_start: int) -> TensorInfo:
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [begin, end]} if len(entry) == 3:
            pass
        case _:
            raise _malformed(path, f"{name} needs dtype, shape and data_offsets, and nothing else")
    if dtype not in DTYPE_BITS:
        raise _malformed(path, f"{name} has the unknown dtype {dtype!r}")
    if not all(type(number) is int and 0 <= number < 1 << 64 for number in (*shape, begin, end)):
        raise _malformed(path, f"shape and data_offsets of {name} must be whole numbers from 0, of at most 64 bits")
    if len(shape) > MAX_DIMENSIONS or math.prod(shape) * DTYPE_BITS[dtype] != (end - begin) * 8:
        raise _malformed(
            path, f"{name} has {end - begin} bytes, which is not the size of {dtype} with shape {shape!r:.200}"
        )
    return TensorInfo(name, dtype, tuple(shape), path, data_start + begin, data_start + end)


def _check_metadata(path: Path, metadata: Any) -> None:
    if metadata is None:
        return
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _malformed(path, "__metadata__ must map text to text")


def _truncated(path: Path, missing: int) -> SourceError:
    return SourceError(
        f"the file is cut off: {missing} bytes are missing",
        where=path,
        why="its header promises more than there is",
        hint="fetch the file again; the download or copy was not finished",
        code="SAFETENSORS_HEADER",
    )


def _malformed(path: Path, why: str) -> SourceError:
    return SourceError(
        "this is not a valid safetensors file",
        where=path,
        why=why,
        hint="fetch the file again, or ask its publisher",
        code="SAFETENSORS_HEADER",
    )
