"""Deterministic, uncompressed tar streams: the same files give the same bytes, whoever writes them and when.

Owner 0:0, time 0, mode 0644 or 0755, sorted by path, each parent directory once. Uncompressed, since engines and
weights don't shrink and gzip would take minutes.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path, PurePosixPath

from builder.errors import VerificationError
from builder.oci.stream import CHUNK_BYTES

_BLOCK = tarfile.BLOCKSIZE
_END = bytes(2 * _BLOCK)


@dataclass(frozen=True)
class Entry:
    """One file, or a symbolic link if `link` is given. `path` is relative to the root of the image."""

    path: str
    size: int = 0
    source: Path | bytes = b""
    executable: bool = False
    link: str | None = None


def link_leaves(path: str, target: str) -> bool:
    """Whether a link at `path`, a relative one, may lead out of the folder that `path` is relative to. `..` counts
    only at the beginning of the target: behind another link it would lead elsewhere than it says.
    """
    parts = target.split("/")
    rest = list(dropwhile("..".__eq__, parts))
    climbs = len(parts) - len(rest)
    return not target or target.startswith("/") or ".." in rest or climbs > path.count("/")


def tar_chunks(entries: Iterable[Entry]) -> Iterator[bytes]:
    """The stream in chunks of about 1 MiB; no file is held in memory or copied to disk.

    Raises VerificationError if a file is gone or has another size than its entry.
    """
    gathered = bytearray()
    for piece in _pieces(entries):
        if len(piece) < CHUNK_BYTES and len(gathered) < CHUNK_BYTES:
            gathered += piece
            continue
        if gathered:
            yield bytes(gathered)
        gathered = bytearray()
        if len(piece) < CHUNK_BYTES:
            gathered += piece
        else:
            yield piece
    yield bytes(gathered)


def _with_parents(entries: Iterable[Entry]) -> list[Entry | str]:
    """The entries and their parent directories (plain strings) in the order of the archive."""
    by_path: dict[str, Entry | str] = {}
    for entry in entries:
        by_path[entry.path] = entry
        for parent in PurePosixPath(entry.path).parents:
            if parent != PurePosixPath("."):
                by_path.setdefault(str(parent), str(parent))
    return [by_path[path] for path in sorted(by_path, key=lambda path: path.split("/"))]


def _pieces(entries: Iterable[Entry]) -> Iterator[bytes]:
    for item in _with_parents(entries):
        yield _header(item)
        if isinstance(item, str):
            continue
        if isinstance(item.source, bytes):
            yield item.source
        else:
            yield from _file_pieces(item.source, item.size)
        yield bytes(_padding(item.size))
    yield _END


def _file_pieces(path: Path, size: int) -> Iterator[bytes]:
    try:
        file = open(path, "rb", buffering=0)  # noqa: SIM115
    except OSError as error:
        raise _changed(path, error.strerror or str(error)) from error
    left = size
    with file:
        while left and (piece := file.read(min(left, CHUNK_BYTES))):
            left -= len(piece)
            yield piece
        if left or file.read(1):
            raise _changed(path, f"it has another size than the {size} bytes that were packed")


def _header(item: Entry | str) -> bytes:
    if isinstance(item, str):
        info = tarfile.TarInfo(item)
        info.type = tarfile.DIRTYPE
        info.mode = 0o755
    else:
        info = tarfile.TarInfo(item.path)
        info.size = item.size
        info.mode = 0o755 if item.executable else 0o644
        if item.link is not None:
            info.type = tarfile.SYMTYPE
            info.linkname = item.link
            info.mode = 0o777
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")


def _padding(size: int) -> int:
    return -size % _BLOCK


def _changed(path: Path, why: str) -> VerificationError:
    return VerificationError(
        "a file that belongs into a layer isn't as it was",
        where=path,
        why=why,
        hint="nothing may change sealed artifacts: remove this one and build again",
        code="LAYER_CHANGED",
    )
