"""The safetensors format: 8 bytes little-endian header length, a JSON header, the tensors' bytes.

Read here without the library, since its numpy side can't represent bfloat16.
https://huggingface.co/docs/safetensors/index#format
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.reference.errors import ReferenceModelError

MAX_HEADER_BYTES = 100_000_000
"""The format's own bound."""

ITEM_BYTES = {"F16": 2, "BF16": 2, "F32": 4, "F8_E4M3": 1, "I8": 1, "U8": 1}


@dataclass(frozen=True)
class TensorEntry:
    """Where a tensor lies: absolute offsets in its file, in bytes."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class TensorFile:
    """The checked header of a file. `tensors` are in the order of their bytes, which follow each other without gaps."""

    path: Path
    tensors: Mapping[str, TensorEntry]
    metadata: Mapping[str, str]
    data_begin: int
    size: int

    @classmethod
    def open(cls, path: Path) -> TensorFile:
        """ReferenceModelError if the file isn't sound; only its header is read."""
        try:
            size = path.stat().st_size
            with open(path, "rb") as file:
                header_bytes = int.from_bytes(file.read(8), "little")
                if size < 8 or not 2 <= header_bytes <= min(MAX_HEADER_BYTES, size - 8):
                    raise ReferenceModelError(f"{path}: not a safetensors file, or truncated")
                header = json.loads(file.read(header_bytes), object_pairs_hook=_unique)
        except OSError as error:
            raise ReferenceModelError(f"{path}: can't be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            if isinstance(error, ReferenceModelError):
                raise
            raise ReferenceModelError(f"{path}: the header is not JSON: {error}") from error
        if not isinstance(header, dict):
            raise ReferenceModelError(f"{path}: the header is not a JSON object")
        metadata = header.pop("__metadata__", {})
        if not isinstance(metadata, dict):
            raise ReferenceModelError(f"{path}: __metadata__ is not a JSON object")
        data_begin = 8 + header_bytes
        entries = {name: _entry(path, name, value, data_begin) for name, value in header.items()}
        tensors = dict(sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)))
        position = data_begin
        for name, entry in tensors.items():
            if entry.begin != position:
                raise ReferenceModelError(f"{path}: {name} overlaps another tensor or leaves a gap")
            position = entry.end
        if position != size:
            raise ReferenceModelError(f"{path}: {position} bytes are described, but the file has {size}")
        return cls(path, tensors, metadata, data_begin, size)


def encode_header(tensors: Mapping[str, TensorEntry], metadata: Mapping[str, str]) -> bytes:
    """The bytes before the tensors' bytes, for `tensors` that follow each other in this order; 8-byte aligned."""
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    position = 0
    for name, entry in tensors.items():
        begin, position = position, position + entry.end - entry.begin
        header[name] = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": [begin, position]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a key occurs twice")
    return table


def _entry(path: Path, name: str, value: object, data_begin: int) -> TensorEntry:
    match value:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(begin), int(end)]}:
            pass
        case _:
            raise ReferenceModelError(f"{path}: the header entry of {name} is malformed")
    if dtype not in ITEM_BYTES:
        raise ReferenceModelError(f"{path}: {name} has dtype {dtype}; implemented: {', '.join(ITEM_BYTES)}")
    if not all(isinstance(size, int) and size >= 0 for size in shape):
        raise ReferenceModelError(f"{path}: {name} has the shape {shape}")
    if begin < 0 or end - begin != math.prod(shape) * ITEM_BYTES[dtype]:
        raise ReferenceModelError(f"{path}: the offsets of {name} don't fit its shape {shape} and dtype {dtype}")
    return TensorEntry(dtype, tuple(shape), data_begin + begin, data_begin + end)
