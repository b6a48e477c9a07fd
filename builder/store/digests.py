"""SHA-256 digests of files: computed once, while the bytes pass by, and remembered."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

CHUNK_BYTES = 4 << 20

Advance = Callable[[int], None]
"""Told the number of bytes that were just processed; drives progress bars."""


def ignore_progress(_: int) -> None:
    """An `Advance` for callers that show nothing."""


@dataclass(frozen=True)
class FileDigest:
    sha256: str
    size: int


def hash_file(path: Path, advance: Advance = ignore_progress) -> FileDigest:
    """The digest of a whole file, read once in chunks of 4 MiB."""
    digest = hashlib.sha256()
    size = 0
    buffer = memoryview(bytearray(CHUNK_BYTES))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
            size += count
            advance(count)
    return FileDigest(digest.hexdigest(), size)


class HashingWriter:
    """A file that is written front to back; knows its digest when it is closed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[bytes] = open(path, "wb", buffering=0)  # noqa: SIM115
        self._hash = hashlib.sha256()
        self._size = 0

    def write(self, data: bytes | bytearray | memoryview) -> int:
        view = memoryview(data).cast("B")
        self.hash(view)
        return self.append(view)

    def append(self, view: memoryview) -> int:
        """Write alone. Whoever calls it hands the same bytes to `hash`, in the same order, perhaps at the same time."""
        written = 0
        while written < len(view):
            written += self._file.write(view[written:])
        self._size += len(view)
        return len(view)

    def hash(self, view: memoryview) -> None:
        """Hash alone; see `append`."""
        self._hash.update(view)

    @property
    def digest(self) -> FileDigest:
        return FileDigest(self._hash.hexdigest(), self._size)

    def __enter__(self) -> HashingWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


class DigestCache:
    """Remembers the sha256 of files that we don't own, as long as their size, mtime and inode stay.

    One SQLite file, safe for several processes. Losing it costs a re-read, nothing else: where it can't be used (no
    space, no access, damaged) every file is read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def _run(self, statement: str, *values: str) -> list[tuple[str]]:
        try:
            with closing(sqlite3.connect(self._path, timeout=30, isolation_level=None)) as database:
                database.execute("create table if not exists digests (path text primary key, stamp text, sha256 text)")
                return database.execute(statement, values).fetchall()
        except sqlite3.Error:
            return []

    def digest(self, path: Path, advance: Advance = ignore_progress) -> FileDigest:
        """The digest of `path`, read only if the file changed since it was last asked for."""
        real = os.path.realpath(path)
        before = os.stat(real)
        stamp = json.dumps([before.st_size, before.st_mtime_ns, before.st_ino])
        for (sha256,) in self._run("select sha256 from digests where path = ? and stamp = ?", real, stamp):
            advance(before.st_size)
            return FileDigest(sha256, before.st_size)
        result = hash_file(Path(real), advance)
        self._run("insert or replace into digests values (?, ?, ?)", real, stamp, result.sha256)
        return result
