"""Which texts are read: of the files of a folder, and of their rows."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterator
from pathlib import Path

from builder.checkpoint.calibration.rows import rows_of
from builder.checkpoint.calibration.text import Render, text_of
from builder.errors import SourceError
from builder.lock.local_files import TEXT_NAMES, texts_in, texts_to_read


def read_texts(path: Path, *, samples: int, seed: int, render: Render | None = None) -> list[str]:
    """`samples` texts of a file, or of the files of a folder together (of its split `train`; see `texts_to_read`).

    The texts are numbered as they stand, files sorted by path; empty ones don't count. Number n is drawn if
    SHA-256("SEED:n") is among the smallest: the same on every machine, in one pass, and only what is drawn is kept.
    They come in the order of their numbers.

    SourceError for what can't be read, CALIBRATION_TOO_SMALL where there are fewer texts: with less than the recipe
    says, another checkpoint would come out under the same name. HostError PYARROW_MISSING.
    """
    drawn: list[tuple[int, int, str]] = []  # a heap; its first has the largest digest
    count, empty = 0, 0
    for text in _texts(path, render):
        if not text.strip():
            empty += 1
            continue
        digest = int.from_bytes(hashlib.sha256(f"{seed}:{count}".encode()).digest()[:16], "big")
        entry = (-digest, count, text)
        if len(drawn) < samples:
            heapq.heappush(drawn, entry)
        elif entry > drawn[0]:
            heapq.heapreplace(drawn, entry)
        count += 1
    if count < samples:
        raise _too_small(path, samples, count, empty)
    return [text for _, _, text in sorted(drawn, key=lambda entry: entry[1])]


def _texts(path: Path, render: Render | None) -> Iterator[str]:
    files = [path / name for name in texts_to_read(texts_in(path))] if path.is_dir() else [path]
    if not files:
        raise SourceError(
            "the folder has no calibration texts",
            where=path,
            why=TEXT_NAMES,
            code="TEXT_EMPTY",
        )
    for file in files:
        for line, row in rows_of(file):
            yield text_of(row, f"{file}:{line}", render)


def _too_small(path: Path, samples: int, count: int, empty: int) -> SourceError:
    be = "is 1 text" if count == 1 else f"are {count} texts"
    left_out = f"; {empty} more {'is' if empty == 1 else 'are'} empty" if empty else ""
    hint = f"set calibration.samples to {count}, or add texts" if count else "add texts"
    if path.name.endswith(".txt"):
        hint += "; blank lines are what separates the texts of a .txt"
    return SourceError(
        f"there {be}, and calibration.samples asks for {samples}",
        where=path,
        why=f"fewer texts would measure less than the recipe says, without a word{left_out}",
        hint=hint,
        code="CALIBRATION_TOO_SMALL",
    )
