"""Unpacking a layer of ours from a stream, trusting nothing in it.

Only what `builder.image.tar` writes is accepted: plain files and directories below one root, and links that stay
inside it. Everything else (devices, hard links, sparse files, absolute names, `..`, other roots, a path twice, a link
as a parent) raises VerificationError "UNSAFE_ARCHIVE".
"""

from __future__ import annotations

import os
import posixpath
import tarfile
from collections.abc import Iterator
from pathlib import Path

from builder.errors import VerificationError
from builder.image.tar import link_leaves

_BLOCK = tarfile.BLOCKSIZE
_MAX_EXTENDED_HEADER_BYTES = 1 << 20


def unpack(chunks: Iterator[bytes], root: str, destination: Path, where: str) -> None:
    """Write what lies below `root` in the archive into `destination`. All chunks are read, to the last."""
    stream = _Stream(chunks, where)
    seen: set[str] = set()
    while (member := _next_member(stream)) is not None:
        path = _inner_path(member.name, root, where)
        if member.isdir():
            if path:
                _folder(destination, path, where)
            continue
        if not path or path in seen:
            raise _unsafe(where, f"{member.name!r} is there twice, or is the root itself")
        seen.add(path)
        target = _folder(destination, posixpath.dirname(path), where) / posixpath.basename(path)
        if member.issym():
            _link(target, member.linkname, path, where)
        elif member.type == tarfile.REGTYPE:
            _file(target, member, stream)
        else:
            raise _unsafe(where, f"{member.name!r} is neither a file, a folder nor a link (type {member.type!r})")
    for _ in chunks:  # what follows the end counts for the digest
        pass


class _Stream:
    """Exact reads from chunks of any length."""

    def __init__(self, chunks: Iterator[bytes], where: str) -> None:
        self.where = where
        self._chunks = chunks
        self._rest = memoryview(b"")

    def pieces(self, size: int) -> Iterator[memoryview]:
        """The next `size` bytes, uncopied."""
        while size:
            if not self._rest:
                chunk = next(self._chunks, None)
                if chunk is None:
                    raise _unsafe(self.where, "it ends in the middle of a file")
                self._rest = memoryview(chunk)
            piece, self._rest = self._rest[:size], self._rest[size:]
            size -= len(piece)
            yield piece

    def exactly(self, size: int) -> bytes:
        return b"".join(self.pieces(size))

    def skip_padding(self, size: int) -> None:
        self.exactly(-size % _BLOCK)


def _next_member(stream: _Stream) -> tarfile.TarInfo | None:
    """The next header, with the values of an extended header before it; None at the end of the archive."""
    extended: dict[str, str] = {}
    while True:
        block = stream.exactly(_BLOCK)
        if not any(block):
            return None
        try:
            member = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        except (tarfile.HeaderError, ValueError) as error:
            raise _unsafe(stream.where, f"a damaged header: {error}") from error
        if member.type != tarfile.XHDTYPE:
            break
        if not 0 <= member.size <= _MAX_EXTENDED_HEADER_BYTES:
            raise _unsafe(stream.where, f"an extended header of {member.size} bytes")
        extended = _extended_values(stream.exactly(member.size), stream.where)
        stream.skip_padding(member.size)
    member.name = extended.get("path", member.name)
    member.linkname = extended.get("linkpath", member.linkname)
    size = extended.get("size", str(member.size))
    if not (size.isascii() and size.isdigit()):
        raise _unsafe(stream.where, f"{member.name!r} has the size {size}")
    member.size = int(size)
    return member


def _extended_values(content: bytes, where: str) -> dict[str, str]:
    """Records "LENGTH KEY=VALUE\\n" of a pax header (POSIX.1-2017 pax, "pax Extended Header")."""
    values = {}
    while content:
        digits, _, _ = content.partition(b" ")
        length = int(digits) if digits.isdigit() and len(digits) < 8 else 0
        record, content = content[:length], content[length:]
        key, equals, value = record[len(digits) + 1 : -1].partition(b"=")
        if not equals or record[-1:] != b"\n":
            raise _unsafe(where, "a damaged extended header")
        if key not in (b"path", b"linkpath", b"size"):
            raise _unsafe(where, f"an extended header with {key!r}")
        try:
            values[key.decode()] = value.decode()
        except UnicodeDecodeError as error:
            raise _unsafe(where, "a name that isn't UTF-8") from error
    return values


def _inner_path(name: str, root: str, where: str) -> str:
    """The path below the root; empty for the root and the folders above it."""
    parts = name.removesuffix("/").split("/")
    if any(part in ("", ".", "..") or "\0" in part or "\\" in part for part in parts):
        raise _unsafe(where, f"the name {name!r}")
    above = root.split("/")
    if parts == above[: len(parts)]:
        return ""
    if parts[: len(above)] != above:
        raise _unsafe(where, f"{name!r} lies outside {root}")
    return "/".join(parts[len(above) :])


def _folder(destination: Path, path: str, where: str) -> Path:
    """Make a folder, and see that no part of its path is a link."""
    folder = destination
    for part in filter(None, path.split("/")):
        folder = folder / part
        try:
            folder.mkdir()
        except FileExistsError:
            if folder.is_symlink() or not folder.is_dir():
                raise _unsafe(where, f"{path!r} leads through something that isn't a folder") from None
    return folder


def _link(target: Path, to: str, path: str, where: str) -> None:
    if link_leaves(path, to):
        raise _unsafe(where, f"{path!r} is a link to {to!r}")
    _make_room(target, where)
    target.symlink_to(to)


def _file(target: Path, member: tarfile.TarInfo, stream: _Stream) -> None:
    _make_room(target, stream.where)
    mode = 0o755 if member.mode & 0o100 else 0o644
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with open(descriptor, "wb", buffering=1 << 20) as file:
        for piece in stream.pieces(member.size):
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    stream.skip_padding(member.size)


def _make_room(target: Path, where: str) -> None:
    """Remove what an interrupted pull left of this file."""
    if target.is_dir() and not target.is_symlink():
        raise _unsafe(where, f"{target.name!r} is a folder and something else")
    target.unlink(missing_ok=True)


def _unsafe(where: str, why: str) -> VerificationError:
    return VerificationError(
        "this layer can't be unpacked safely",
        where=where,
        why=why,
        hint="engine-builder doesn't write such layers: don't trust this image",
        code="UNSAFE_ARCHIVE",
    )
