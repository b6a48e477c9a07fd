"""Reading the files of a model, which somebody else wrote: strictly, and with its known traps called by name."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from builder.errors import SourceError
from builder.store.files import open_file

MAX_CONFIG_BYTES = 4_000_000
MAX_VALUES = 100_000
"""Of a configuration. The largest published ones have some hundred kB, and lists of some thousand modules."""

MAX_DEPTH = 60

_LFS_FIRST_LINE = b"version https://git-lfs.github.com/spec/"


def lfs_pointer(content: bytes, path: Path) -> SourceError | None:
    """The error for a file that begins with `content`, if that is a Git-LFS pointer."""
    return _lfs_pointer(path, content) if content.startswith(_LFS_FIRST_LINE) else None


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """`path` for reading, unless it is a Git-LFS pointer."""
    try:
        with open_file(path) as file:
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


def read_json(
    path: Path, code: str, *, finite: bool = True, most_bytes: int = MAX_CONFIG_BYTES, most_values: int = MAX_VALUES
) -> Any:
    """A JSON file of a model, read as strictly as `parse_json` does; a Git-LFS pointer is named as such."""
    with opened(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise SourceError("the file is too large", where=path, why=f"more than {most_bytes} bytes", code=code)
    return parse_json(content, path, code, finite=finite, most_values=most_values)


def parse_json(content: bytes, where: object, code: str, *, finite: bool = True, most_values: int = MAX_VALUES) -> Any:
    """JSON by the book: UTF-8, no key twice in an object, no NaN or Infinity. SourceError(code) names the place.

    Python's own reader takes the last of two equal keys and invents NaN and Infinity, so that the next program,
    written in another language, would read something else than we did. Published configs do have Infinity in them;
    with `finite=False` such a number is returned as the text that stands there, which can be written as JSON again.

    What would fill the memory isn't read: each of `most_values` takes up to some hundred bytes.
    """
    if (values := count_values(content)) > most_values:
        raise SourceError(
            "the file holds too much", where=where, why=f"{values} values; {most_values} at most", code=code
        )
    try:
        text = content.decode("utf-8")
        tree = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_constant(finite), parse_float=_finite(finite)
        )
        if _deeper_than(tree, MAX_DEPTH):
            raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
        return tree
    except _NotByTheBookError as error:
        why = _with_its_place(text, finite, str(error)) if values <= MAX_VALUES else str(error)
        raise SourceError("this is not valid JSON", where=where, why=why, code=code) from error
    except (ValueError, RecursionError) as error:
        raise SourceError("this is not valid JSON", where=where, why=str(error), code=code) from error


def count_values(content: bytes) -> int:
    """An upper bound for the values in a JSON text, which takes no memory to know."""
    return content.count(b",") + content.count(b"[") + content.count(b"{") + 1


class _NotByTheBookError(ValueError):
    """What Python's reader would let pass."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise _NotByTheBookError("a key is given twice")
    return result


def _constant(finite: bool) -> Callable[[str], str]:
    def read(text: str) -> str:
        if finite:
            raise _NotByTheBookError(f"{text} is not a finite number")
        return text

    return read


def _finite(finite: bool) -> Callable[[str], float | str]:
    constant = _constant(finite)

    def read(text: str) -> float | str:
        number = float(text)
        return number if math.isfinite(number) else constant(text)

    return read


def _deeper_than(tree: Any, most: int) -> bool:
    level = [tree] if isinstance(tree, dict | list) else []
    for _ in range(most):
        inner = [holder.values() if isinstance(holder, dict) else holder for holder in level]
        level = [item for holder in inner for item in holder if isinstance(item, dict | list)]
        if not level:
            return False
    return True


def _with_its_place(text: str, finite: bool, otherwise: str) -> str:
    """Read once more, with every object as the list of its pairs: that says where the fault is."""
    number = _finite_or_marked if finite else _finite(False)
    constant = _NotFinite if finite else _constant(False)
    try:
        tree = json.loads(text, object_pairs_hook=_Pairs, parse_constant=constant, parse_float=number)
        return next(_faults(tree, ""), otherwise)
    except RecursionError:
        return otherwise


class _Pairs(list[tuple[str, Any]]):
    """An object of JSON with all its keys, also those that come twice."""


class _NotFinite(str):
    """NaN, Infinity, or a number that is too large, as it was written."""


def _finite_or_marked(text: str) -> float | _NotFinite:
    number = float(text)
    return number if math.isfinite(number) else _NotFinite(text)


def _faults(value: Any, place: str) -> Iterator[str]:
    if isinstance(value, _NotFinite):
        yield f"{value} at {place or 'the top'} is not a finite number"
    elif isinstance(value, _Pairs):
        seen = set()
        for key, item in value:
            inner = f"{place}.{key}" if place else key
            if key in seen:
                yield f"{inner} is given twice"
            seen.add(key)
            yield from _faults(item, inner)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _faults(item, f"{place}[{number}]")
