"""A number that is known between two ends."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True)
class Range:
    """`low` and `high` ends, both included; of bytes, tokens or sequences."""

    low: int
    high: int

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __add__(self, other: Range | int) -> Range:
        if isinstance(other, int):
            return Range(self.low + other, self.high + other)
        return Range(self.low + other.low, self.high + other.high)
