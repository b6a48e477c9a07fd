"""What every source does with the files that it has: compare them with the pinned digests, look for known traps."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from builder.errors import SourceError
from builder.model.files import opened, read_json
from builder.model.snapshot import FileKind, SnapshotFile
from builder.store import DigestCache, FileDigest
from builder.store.digests import Advance, ignore_progress

MOST_WORD_BYTES = 100_000_000
"""Of a configuration, or a file of a tokenizer. The largest published ones have some 30 MB."""

_FILE_FIELDS = ("vocab_file", "merges_file", "spm_file")


class Progress:
    """Tells `advance` of `total` bytes once, even if they pass twice: when downloaded and when hashed."""

    def __init__(self, advance: Advance, total: int) -> None:
        self._advance = advance
        self._left = total
        self._lock = Lock()

    def __call__(self, count: int) -> None:
        with self._lock:
            step = max(0, min(count, self._left))
            self._left -= step
        if step:
            self._advance(step)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn the operating system's "can't read" into a SourceError `UNREADABLE`."""
    try:
        yield
    except OSError as error:
        raise SourceError(
            "can't read a file of the model",
            where=error.filename or path,
            why=error.strerror,
            hint="check that it exists and that this user may read it",
            code="UNREADABLE",
        ) from error


def digest_of(path: Path, digests: DigestCache, advance: Advance) -> FileDigest:
    with reading(path):
        return digests.digest(path, advance)


def is_as_pinned(folder: Path, file: SnapshotFile, digests: DigestCache, advance: Advance) -> bool:
    """Whether the file is there with the pinned size and sha256; only `advance`d over where it is."""
    path = folder / file.path
    with reading(path):
        if not path.is_file() or path.stat().st_size != file.size:
            return False
    return digest_of(path, digests, advance).sha256 == file.sha256


def drift(where: str | Path, differences: Iterable[str]) -> SourceError:
    return SourceError(
        "the model isn't what the lock pinned",
        where=where,
        why="; ".join(differences),
        hint="restore the files, or accept the change with `engine-builder lock --upgrade`",
        code="DRIFT",
    )


def difference(folder: Path, file: SnapshotFile, digests: DigestCache) -> str:
    """In words, how a file that isn't as pinned differs."""
    path = folder / file.path
    if not path.is_file():
        return f"{file.path} is missing"
    found = digest_of(path, digests, ignore_progress)
    return (
        f"{file.path} changed: sha256 {found.sha256} ({found.size} bytes), pinned is {file.sha256} ({file.size} bytes)"
    )


def refuse_traps(path: Path, kind: FileKind) -> None:
    """SourceError `LFS_POINTER` for a Git LFS pointer in place of a file, `PATH_ESCAPE` for a tokenizer
    configuration that names a file elsewhere (a tool that loads and saves it would copy that file), `UNREADABLE` for
    a larger file than any that is read whole: weights are not, nor are texts, whose kind is "other".
    """
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
    if kind != "other" and path.suffix != ".safetensors" and size > MOST_WORD_BYTES:
        raise SourceError(
            "the file is too large", where=path, why=f"{size} bytes; {MOST_WORD_BYTES} at most", code="UNREADABLE"
        )
    if path.name == "tokenizer_config.json":
        _refuse_foreign_files(path)


def _refuse_foreign_files(path: Path) -> None:
    config = read_json(path, code="TOKENIZER_JSON")
    for field in _FILE_FIELDS if isinstance(config, dict) else ():
        value = config.get(field)
        if isinstance(value, str) and ("/" in value or "\\" in value or value == ".."):
            raise SourceError(
                f"{field} points to a file outside the model: {value!r}",
                where=path,
                why="a tool that loads and saves this tokenizer would copy that file into the image",
                hint="don't use this source; tell its owner",
                code="PATH_ESCAPE",
            )
