"""Reading a GGUF file with the `gguf` library, checked: a damaged or hostile file is one clear error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, ReaderTensor
from numpy.typing import DTypeLike, NDArray

from builder.errors import SourceError


@dataclass(frozen=True)
class GgufFile:
    """`tensors` are mapped from the file, not read, as long as nobody looks at their data."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, ReaderTensor]

    @classmethod
    def open(cls, path: Path) -> GgufFile:
        """Raises SourceError `GGUF_DAMAGED`."""
        try:
            reader = _CheckedReader(path)
            metadata = {key: field.contents() for key, field in reader.fields.items()}
        except OSError:
            raise
        except Exception as error:  # the library raises whatever its array operations raise on nonsense
            raise SourceError(
                "the GGUF file is damaged",
                where=path,
                why=f"{type(error).__name__}: {error}",
                hint="compare its sha256 with the publisher's",
                code="GGUF_DAMAGED",
            ) from error
        return cls(path, metadata, {tensor.name: tensor for tensor in reader.tensors})

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number of the metadata; SourceError `GGUF_METADATA` if it is none, or absent without a default."""
        value = self.metadata.get(key, default)
        if type(value) is not int or value < 0:
            raise self.bad_metadata(key)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A float32 of the metadata by its shortest decimal: 1e-05, not 9.999999747378752e-06."""
        value = self.metadata.get(key, default)
        if type(value) is not float:
            raise self.bad_metadata(key)
        return float(str(np.float32(value)))

    def texts(self, key: str) -> list[str]:
        value = self.metadata.get(key)
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise self.bad_metadata(key)
        return value

    def require(self, key: str, expected: object, code: str) -> None:
        """Refuse a file whose `key`, where present, isn't `expected`: SourceError with this code."""
        found = self.metadata.get(key, expected)
        if found != expected:
            raise SourceError(
                f"this GGUF file can't be converted: {key} is {found!r}",
                where=self.path,
                why=f"only {expected!r} is supported",
                hint="name the original model as hf://ORG/NAME",
                code=code,
            )

    def bad_metadata(self, key: str) -> SourceError:
        found = f"it is {self.metadata[key]!r:.80}" if key in self.metadata else "it is absent"
        return SourceError(
            f"the GGUF file doesn't tell {key} as it should", where=self.path, why=found, code="GGUF_METADATA"
        )


class _CheckedReader(GGUFReader):
    """The library takes what lies past the end of a file for empty values, and may loop over them without end."""

    def _get(self, offset: int, dtype: DTypeLike, count: int = 1, override_order: Any = None) -> NDArray[Any]:
        values = super()._get(offset, dtype, count, override_order)
        if len(values) != count:
            raise ValueError(f"it ends before byte {offset + int(count) * np.dtype(dtype).itemsize}")
        return values
