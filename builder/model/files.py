"""Reading the files of a model, which somebody else wrote: strictly, and with its known traps called by name."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from builder.errors import SourceError

MAX_JSON_BYTES = 100_000_000

_LFS_FIRST_LINE = b"version https://git-lfs.github.com/spec/"


def lfs_pointer(content: bytes, path: Path) -> SourceError | None:
    """The error for a file that begins with `content`, if that is a Git-LFS pointer."""
    return _lfs_pointer(path, content) if content.startswith(_LFS_FIRST_LINE) else None


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """`path` for reading, unless it is a Git-LFS pointer."""
    try:
        with open(path, "rb") as file:
            if pointer := lfs_pointer(file.read(512), path):
                raise pointer
            file.seek(0)
            yield file
    except OSError as error:
        raise SourceError("can't read this file", where=path, why=error.strerror, code="UNREADABLE") from error


def _lfs_pointer(path: Path, content: bytes) -> SourceError:
    size = re.search(rb"^size (\d+)$", content, re.MULTILINE)
    return SourceError(
        f"{path.name} is a Git LFS pointer, not the file itself",
        where=path,
        why="the repository was cloned without Git LFS" + (f"; the file has {int(size[1])} bytes" if size else ""),
        hint=f"run `git lfs install && git lfs pull` in {path.parent}",
        code="LFS_POINTER",
    )


def read_json(path: Path, code: str, *, finite: bool = True) -> Any:
    """A JSON file of a model, read as strictly as `parse_json` does; a Git-LFS pointer is named as such."""
    with opened(path) as file:
        content = file.read(MAX_JSON_BYTES + 1)
    if len(content) > MAX_JSON_BYTES:
        raise SourceError("the file is too large", where=path, why=f"more than {MAX_JSON_BYTES} bytes", code=code)
    return parse_json(content, path, code, finite=finite)


def parse_json(content: bytes, where: object, code: str, *, finite: bool = True) -> Any:
    """JSON by the book: UTF-8, no key twice in an object, no NaN or Infinity. SourceError(code) names the place.

    Python's own reader takes the last of two equal keys and invents NaN and Infinity, so that the next program,
    written in another language, would read something else than we did. Published configs do have Infinity in them;
    with `finite=False` such a number is returned as the text that stands there, which can be written as JSON again.
    """
    try:
        tree = json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_Pairs,
            parse_constant=_NotFinite,
            parse_float=_finite,
        )
        return _plain(tree, "", finite)
    except (ValueError, RecursionError) as error:
        raise SourceError("this is not valid JSON", where=where, why=str(error), code=code) from error


class _Pairs(list[tuple[str, Any]]):
    """An object of JSON with all its keys, also those that come twice."""


class _NotFinite(str):
    """NaN, Infinity, or a number that is too large, as it was written."""


def _finite(text: str) -> float | _NotFinite:
    number = float(text)
    return number if math.isfinite(number) else _NotFinite(text)


def _plain(value: Any, place: str, finite: bool) -> Any:
    if isinstance(value, _NotFinite):
        if not finite:
            return str(value)
        raise ValueError(f"{value} at {place or 'the top'} is not a finite number")
    if isinstance(value, _Pairs):
        result: dict[str, Any] = {}
        for key, item in value:
            inner = f"{place}.{key}" if place else key
            if key in result:
                raise ValueError(f"{inner} is given twice")
            result[key] = _plain(item, inner, finite)
        return result
    if isinstance(value, list):
        return [_plain(item, f"{place}[{number}]", finite) for number, item in enumerate(value)]
    return value
