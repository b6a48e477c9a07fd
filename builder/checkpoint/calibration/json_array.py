"""One array of JSON, element by element: a file of any size, of which only an element is in memory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from builder.checkpoint.calibration.stream import LONGEST_LINE, Stream, too_large
from builder.errors import SourceError

_LONGEST_WORD = len("\\ud83d\\ude00")
_SPACE = re.compile(r"[ \t\n\r]*")


def elements(stream: Stream) -> Iterator[tuple[int, Any]]:
    """The elements with the lines in which they begin. SourceError TEXT_FORMAT, or TEXT_SIZE for a huge element."""
    reader = _Reader(stream)
    reader.take("[")
    separator = reader.take("]") if reader.next() == "]" else ","
    while separator == ",":
        reader.next()
        yield reader.line, reader.value()
        separator = reader.take(",]")
    if reader.next():
        raise reader.fault("there is more after the array")


class _Reader:
    def __init__(self, stream: Stream) -> None:
        self.line = 1
        self._file = stream.file
        self._pieces = stream.pieces()
        self._text, self._at = "", 0
        self._decode = json.JSONDecoder().raw_decode

    def next(self) -> str:
        """The next character that isn't white space, which stays; empty at the end."""
        while True:
            space = _SPACE.match(self._text, self._at)
            self._move(space.end() if space else self._at)
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def take(self, wanted: str) -> str:
        """The next character, which is one of these."""
        found = self.next()
        if not found or found not in wanted:
            raise self.fault(f"{' or '.join(wanted)} was expected, not {found or 'the end'}")
        self._move(self._at + 1)
        return found

    def value(self) -> Any:
        """The value that begins here. Where it isn't whole yet, twice as much is looked at as before."""
        while True:
            try:
                value, end = self._decode(self._text, self._at)
            except RecursionError as error:
                raise self.fault("it is nested too deeply") from error
            except json.JSONDecodeError as error:
                size = len(self._text) - self._at
                if size > LONGEST_LINE:
                    raise too_large(self._file, self.line, f"an element has more than {LONGEST_LINE} bytes") from error
                if not _may_be_cut_off(error) or not self._more(size):
                    self._move(error.pos)
                    raise self.fault(error.msg) from error
            except ValueError as error:  # a number of thousands of digits
                raise self.fault(str(error)) from error
            else:
                self._move(end)
                return value

    def fault(self, why: str) -> SourceError:
        return SourceError(
            "this isn't JSON",
            where=f"{self._file}:{self.line}",
            why=f"in an array: {why}",
            hint="write one array of objects, or one object per line (JSON lines)",
            code="TEXT_FORMAT",
        )

    def _move(self, to: int) -> None:
        self.line += self._text.count("\n", self._at, to)
        self._at = to

    def _more(self, characters: int = 1) -> bool:
        """Read so many more at least; whether there were any."""
        parts = [self._text[self._at :]]
        wanted = characters
        for piece in self._pieces:
            parts.append(piece)
            if (wanted := wanted - len(piece)) <= 0:
                break
        self._text, self._at = "".join(parts), 0
        return wanted < characters


def _may_be_cut_off(error: json.JSONDecodeError) -> bool:
    """Whether more text could mend it: it is at the end, or in the last word or escape, or a string that goes on."""
    return error.msg.startswith("Unterminated string") or error.pos > len(error.doc) - _LONGEST_WORD
