"""Progress on stderr: a moving line on a terminal, one line a step elsewhere."""

from __future__ import annotations

import sys
import time

import click

from builder.cli.options import human_bytes
from builder.store.digests import Advance


class Progress:
    """Reports steps as they start, move and end."""

    def __init__(self) -> None:
        self._live = sys.stderr is not None and sys.stderr.isatty()
        self._started = 0.0
        self._shown = 0.0

    def stage(self, unit: str, stage: str, total_bytes: int | None) -> Advance:
        """A step starts; the result is told how many bytes were just done."""
        self._started = time.monotonic()
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            now = time.monotonic()
            if self._live and now - self._shown > 0.1:
                self._shown = now
                of = f" of {human_bytes(total_bytes)}" if total_bytes else ""
                click.echo(f"\r\x1b[K  {stage:<11}{unit}  {human_bytes(done)}{of}", err=True, nl=False)

        if self._live:
            click.echo(f"\r\x1b[K  {stage:<11}{unit}", err=True, nl=False)
        return advance

    def done(self, unit: str, stage: str, outcome: str) -> None:
        seconds = f" in {time.monotonic() - self._started:.1f} s" if outcome == "built" and self._started else ""
        start = "\r\x1b[K" if self._live else ""
        click.echo(f"{start}  {stage:<11}{unit}  {outcome}{seconds}", err=True)
