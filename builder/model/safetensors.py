"""The tensors of a model folder, from the headers of its safetensors files: bounded, and checked before use.

A safetensors file is

    8 bytes   N, the length of the header, little-endian
    N bytes   JSON: {NAME: {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {…} or null or absent}
    the rest  the tensors' bytes, without gaps and overlaps; offsets count from here

(https://github.com/huggingface/safetensors#format). A folder holds either `model.safetensors`, or shards that
`model.safetensors.index.json` lists: {"weight_map": {NAME: FILE}, "metadata": {…}}.

Whatever is wrong is a SourceError with one of these codes:

    WEIGHTS_MISSING      no weights that we read                  INDEX_MISSING     shards without their index
    PICKLE_ONLY          only .bin or .pt: reading runs code      INDEX_JSON        the index isn't what it should be
    ADAPTER_ONLY         a LoRA adapter without its base model    INDEX_MISMATCH    a tensor isn't where the index says
    GGUF_ONLY            a GGUF file without safetensors          SHARD_MISSING     the index names an absent file
    LFS_POINTER          Git LFS left a pointer, not the file     PATH_ESCAPE       the index names a file elsewhere
    SHARD_TRUNCATED      shorter than its header says             UNREADABLE        the operating system refused
    SAFETENSORS_HEADER   the header is malformed
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from builder.errors import SourceError
from builder.model.files import opened, parse_json, read_json

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

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

_SHARD_NAME = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")


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
        """Read the headers of the model's files in `folder`.

        Like transformers we take `model.safetensors` first, then the files that the index names; other copies of the
        weights (`consolidated.safetensors`, `original/`) are not looked at.
        """
        if os.path.lexists(folder / SINGLE_FILE):
            return cls(read_header(folder / SINGLE_FILE))
        if os.path.lexists(folder / INDEX_FILE):
            return cls(_read_shards(folder))
        raise _no_weights(folder)


def read_header(path: Path) -> dict[str, TensorInfo]:
    """The tensors of one safetensors file, in the order of their bytes. Only the header is read."""
    with opened(path) as file:
        file_size = os.fstat(file.fileno()).st_size
        prefix = file.read(8)
        if len(prefix) < 8:
            raise _truncated(path, 8 - len(prefix))
        header_size = int.from_bytes(prefix, "little")
        if header_size > MAX_HEADER_BYTES:
            raise _malformed(path, f"it says that its header has {header_size} bytes; the limit is {MAX_HEADER_BYTES}")
        if 8 + header_size > file_size:
            raise _truncated(path, 8 + header_size - file_size)
        header = file.read(header_size)
    if not header.startswith(b"{"):
        raise _malformed(path, 'its header does not begin with "{"')
    entries = parse_json(header, path, code="SAFETENSORS_HEADER")
    _check_metadata(path, entries.pop("__metadata__", None))
    data_start = 8 + header_size
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
    if math.prod(shape) * DTYPE_BITS[dtype] != (end - begin) * 8:
        raise _malformed(path, f"{name} has {end - begin} bytes, which is not the size of {dtype} with shape {shape}")
    return TensorInfo(name, dtype, tuple(shape), path, data_start + begin, data_start + end)


def _check_metadata(path: Path, metadata: Any) -> None:
    if metadata is None:
        return
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _malformed(path, "__metadata__ must map text to text")


def _read_shards(folder: Path) -> dict[str, TensorInfo]:
    index = folder / INDEX_FILE
    content = read_json(index, code="INDEX_JSON")
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise SourceError(
            "the index of the shards has no weight_map that maps tensors to files", where=index, code="INDEX_JSON"
        )
    shards = sorted(set(weight_map.values()))
    for shard in shards:
        _check_shard_name(index, shard)
    missing = [shard for shard in shards if not (folder / shard).exists()]
    if missing:
        raise SourceError(
            f"{len(missing)} of {len(shards)} weight files are missing: {some(missing)}",
            where=folder,
            why=f"{INDEX_FILE} names them",
            hint="fetch the model again; the download or copy was not finished",
            code="SHARD_MISSING",
        )
    headers = {shard: read_header(folder / shard) for shard in shards}
    strays = [name for name, shard in weight_map.items() if name not in headers[shard]]
    if strays:
        raise SourceError(
            f"{len(strays)} tensors are not in the file that the index names: {some(strays)}",
            where=index,
            why=f"{weight_map[strays[0]]} does not hold {strays[0]}",
            hint="index and shards are of different revisions; fetch the model again",
            code="INDEX_MISMATCH",
        )
    return {name: headers[shard][name] for name, shard in weight_map.items()}


def _check_shard_name(index: Path, name: str) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name or path.suffix != ".safetensors":
        raise SourceError(
            f"the index names a weight file that is not allowed: {name!r}",
            where=index,
            why="weight files are .safetensors files inside of the model's folder",
            hint="don't use this copy of the model",
            code="PATH_ESCAPE",
        )


def some(names: list[str]) -> str:
    """The first three of `names`, and how many more there are."""
    rest = len(names) - 3
    return ", ".join(names[:3]) + (f" and {rest} more" if rest > 0 else "")


def _no_weights(folder: Path) -> SourceError:
    """Say what lies here instead of weights that we can read."""
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        return SourceError("can't read the model's folder", where=folder, why=error.strerror, code="UNREADABLE")
    for found, code, message, hint in (
        (
            [name for name in names if _SHARD_NAME.fullmatch(name)],
            "INDEX_MISSING",
            f"the weights are in several files, but {INDEX_FILE} is missing",
            "fetch the model again; the download or copy was not finished",
        ),
        (
            [name for name in names if name.startswith("adapter_")],
            "ADAPTER_ONLY",
            "this is a LoRA adapter, not a whole model",
            "merge it into its base model, or name the base model as the source",
        ),
        (
            [name for name in names if name.endswith((".bin", ".pt", ".pth", ".ckpt"))],
            "PICKLE_ONLY",
            "the weights are only there as pickle files, which run code when they are read",
            "use a revision of the model with safetensors, or convert it in a place that you trust",
        ),
        (
            [name for name in names if name.endswith(".gguf")],
            "GGUF_ONLY",
            "the weights are only there as GGUF",
            "name the repository that it was made from as the source",
        ),
    ):
        if found:
            return SourceError(message, where=folder, why=f"found {some(found)}", hint=hint, code=code)
    others = [name for name in names if name.endswith(".safetensors")]
    return SourceError(
        "no weights found",
        where=folder,
        why=f"neither {SINGLE_FILE} nor {INDEX_FILE}" + (f"; only {some(others)}" if others else ""),
        hint="the source must be a Hugging Face model folder with safetensors",
        code="WEIGHTS_MISSING",
    )


def _truncated(path: Path, missing: int) -> SourceError:
    return SourceError(
        f"the file is cut off: {missing} bytes are missing",
        where=path,
        why="its header promises more than there is",
        hint="fetch the file again; the download or copy was not finished",
        code="SHARD_TRUNCATED",
    )


def _malformed(path: Path, why: str) -> SourceError:
    return SourceError(
        "this is not a valid safetensors file",
        where=path,
        why=why,
        hint="fetch the file again, or ask its publisher",
        code="SAFETENSORS_HEADER",
    )
