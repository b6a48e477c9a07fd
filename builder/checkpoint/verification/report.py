"""What a verification found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MOST = 200
"""Mismatches that are listed; what comes after is counted."""


@dataclass(frozen=True)
class Mismatch:
    """One fault: in which file and tensor ("" for a whole file), what is wrong, what was expected and found."""

    file: str
    tensor: str
    what: str
    expected: str = ""
    found: str = ""

    def __str__(self) -> str:
        place = f"{self.file}: {self.tensor}" if self.tensor else self.file
        compared = f": {self.found}, expected {self.expected}" if self.expected else ""
        return f"{place} {self.what}{compared}"


@dataclass(frozen=True)
class Report:
    """`bound_use`: of each format of quantised weights, the largest error as a share of what the format allows."""

    structure: tuple[Mismatch, ...]
    exactness: tuple[Mismatch, ...] = ()
    tensors: int = 0
    compared_bytes: int = 0
    bound_use: Mapping[str, float] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.faults

    @property
    def faults(self) -> tuple[str, ...]:
        """All mismatches as sentences; empty where all is right."""
        return tuple(str(mismatch) for mismatch in (*self.structure, *self.exactness))

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "tensors": self.tensors,
            "compared_bytes": self.compared_bytes,
            "bound_use": dict(self.bound_use),
        }
