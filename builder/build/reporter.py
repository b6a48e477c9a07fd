"""How the build tells what goes on."""

from __future__ import annotations

from typing import Protocol

from builder.store.digests import Advance


class Reporter(Protocol):
    """Shows what goes on; the command line draws a moving line, tests listen."""

    def stage(self, unit: str, stage: str, total_bytes: int | None) -> Advance:
        """A stage starts; the result is told the bytes that were done."""

    def done(self, unit: str, stage: str, outcome: str) -> None:
        """It ended, with this outcome."""
