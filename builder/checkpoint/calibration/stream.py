"""The characters of a file that somebody else wrote: UTF-8 without NULs, in lines of bounded length."""

from __future__ import annotations

import codecs
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from builder.errors import SourceError

LONGEST_LINE = 16 << 20
"""Bytes."""

MOST_UNPACKED_BYTES = 16 << 30
"""Of a packed file, since a small one can hold any amount."""

_CHUNK_BYTES = 1 << 20


class Stream:
    """A file read once, by lines or by chunks. A byte order mark at its beginning isn't part of it.

    SourceError TEXT_ENCODING, TEXT_SIZE, and UNREADABLE for packed files that are damaged.
    """

    def __init__(self, content: IO[bytes] | gzip.GzipFile, file: Path, most_bytes: int | None = None) -> None:
        self.file = file
        self._content = content
        self._most_bytes = most_bytes
        self._total = 0
        self._ahead = self._read().removeprefix(codecs.BOM_UTF8)

    def begins_with(self, character: str) -> bool:
        """Whether this is the first character that isn't white space."""
        return self._ahead.lstrip().startswith(character.encode())

    def lines(self) -> Iterator[tuple[int, str]]:
        """Lines with their number from 1, each with its line feed."""
        number, pending = 0, b""
        for chunk in self._chunks():
            *whole, pending = (pending + chunk).split(b"\n")
            for line in whole:
                number += 1
                yield number, self._decoded(line + b"\n", number)
            if len(pending) > LONGEST_LINE:
                raise too_large(self.file, number + 1, f"a line has more than {LONGEST_LINE} bytes")
        if pending:
            yield number + 1, self._decoded(pending, number + 1)

    def pieces(self) -> Iterator[str]:
        """The characters, some at a time."""
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            for chunk in self._chunks():
                yield self._without_nul(decoder.decode(chunk), 0)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            raise self._not_text(0, error.reason) from error

    def _decoded(self, line: bytes, number: int) -> str:
        try:
            return self._without_nul(line.decode(), number)
        except UnicodeDecodeError as error:
            raise self._not_text(number, f"byte {error.start + 1} of the line: {error.reason}") from error

    def _without_nul(self, text: str, number: int) -> str:
        if "\0" in text:
            raise self._not_text(number, "it has a NUL byte, as UTF-16 and binary files do")
        return text

    def _not_text(self, number: int, why: str) -> SourceError:
        return SourceError(
            "the file isn't UTF-8",
            where=_place(self.file, number),
            why=why,
            hint="save it as UTF-8",
            code="TEXT_ENCODING",
        )

    def _chunks(self) -> Iterator[bytes]:
        chunk = self._ahead
        while chunk:
            yield chunk
            chunk = self._read()

    def _read(self) -> bytes:
        try:
            chunk = self._content.read(_CHUNK_BYTES)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise SourceError("the file is damaged", where=self.file, why=str(error), code="UNREADABLE") from error
        self._total += len(chunk)
        if self._most_bytes is not None and self._total > self._most_bytes:
            raise too_large(self.file, 0, f"unpacked it has more than {self._most_bytes} bytes")
        return chunk


def too_large(file: Path, number: int, why: str) -> SourceError:
    return SourceError(
        "the file is too large for calibration texts", where=_place(file, number), why=why, code="TEXT_SIZE"
    )


def _place(file: Path, number: int) -> str:
    return f"{file}:{number}" if number else str(file)
