"""Strict YAML with positions: duplicate keys, anchors' explosions, tags and what JSON can't say are refused.

Values come as plain Python data; beside them a map from path, such as ("limits", "max_seq_len"), to its place.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from builder.errors import RecipeError
from builder.store.files import open_file

MAX_FILE_BYTES = 256 << 10
MAX_NODES = 30_000
MAX_DEPTH = 40
MAX_NUMBER = 40
"""Characters of a number. YAML 1.1 also has hexadecimal and sexagesimal ones, which take long to read."""

_NULLS = ("", "~", "null", "Null", "NULL")
_NOT_TEXT = re.compile("[\0-\b\v\f\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff]")

KeyPath = tuple[str | int, ...]

_Loader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Place:
    """Line and column of a key or list item, counted from 1."""

    file: Path
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True)
class Document:
    data: dict[str, Any]
    places: dict[KeyPath, Place]

    def place(self, path: KeyPath) -> Place:
        """The place of `path`, or of the nearest thing around it."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places[path]

    def value(self, path: KeyPath) -> Any:
        """What stands at one of the `places`; None where something else was laid over it."""
        value: Any = self.data
        for part in path:
            try:
                value = value[part]
            except (LookupError, TypeError):
                return None
        return value


def read_yaml(path: Path) -> Document:
    """Read one mapping from a YAML file of at most 256 KiB. Raises RecipeError with file:line:column."""
    try:
        with open_file(path) as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise RecipeError("there is no such recipe", where=path, code="RECIPE_MISSING") from None
    except OSError as error:
        raise RecipeError("can't read the recipe", where=path, why=error.strerror) from error
    if len(raw) > MAX_FILE_BYTES:
        raise RecipeError("a recipe has at most 256 KiB", where=path)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise RecipeError("a recipe is UTF-8 text", where=f"{path}:{line}", why=str(error)) from None
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if not isinstance(node, yaml.MappingNode):
            raise RecipeError("a recipe is a mapping of keys to values", where=f"{path}:1:1")
        reader = _Reader(path, loader)
        data = reader.read(node, (), 0)
        return Document(data, reader.places)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else path
        raise RecipeError("this isn't valid YAML", where=where, why=error.problem or error.context) from None
    except yaml.reader.ReaderError as error:
        line = raw[: error.position].count(b"\n") + 1
        raise RecipeError("this isn't valid YAML", where=f"{path}:{line}", why=str(error).splitlines()[0]) from None
    except (yaml.YAMLError, ValueError) as error:
        raise RecipeError("this isn't valid YAML", where=path, why=str(error).splitlines()[0]) from None
    except RecursionError:
        raise RecipeError("the recipe is nested too deeply", where=path) from None
    finally:
        loader.dispose()


class _Reader:
    def __init__(self, file: Path, loader: yaml.SafeLoader) -> None:
        self.file = file
        self.loader = loader
        self.places: dict[KeyPath, Place] = {}
        self.nodes = 0

    def read(self, node: yaml.Node, path: KeyPath, depth: int) -> Any:
        self.nodes += 1
        self.places.setdefault(path, self._place(node))
        if self.nodes > MAX_NODES:
            raise RecipeError(f"a recipe has at most {MAX_NODES} values, aliases counted", where=self._place(node))
        if depth > MAX_DEPTH:
            raise RecipeError("the recipe is nested too deeply, or an alias contains itself", where=self._place(node))
        if isinstance(node, yaml.MappingNode):
            self._refuse_tag(node, "tag:yaml.org,2002:map")
            return self._mapping(node, path, depth)
        if isinstance(node, yaml.SequenceNode):
            self._refuse_tag(node, "tag:yaml.org,2002:seq")
            return [self.read(item, (*path, index), depth + 1) for index, item in enumerate(node.value)]
        assert isinstance(node, yaml.ScalarNode)  # noqa: S101 (for the type checker)
        return self._scalar(node)

    def _scalar(self, node: yaml.ScalarNode) -> str | int | float | bool | None:
        if node.tag == "tag:yaml.org,2002:str":
            return self._text(node)
        if len(node.value) > MAX_NUMBER:
            raise RecipeError(
                f"a number has at most {MAX_NUMBER} characters, not {len(node.value)}", where=self._place(node)
            )
        try:
            value = self.loader.construct_object(node)
        except (ValueError, ArithmeticError, LookupError, AttributeError, TypeError):
            raise RecipeError(
                f"{node.value!r} isn't a {node.tag.rpartition(':')[2]}",
                where=self._place(node),
                hint=f"write it in quotes: {node.value!r}",
            ) from None
        if isinstance(value, float) and not math.isfinite(value):
            raise RecipeError(f"{node.value} isn't a number that can be used", where=self._place(node))
        if not isinstance(value, int | float | bool) and not (value is None and node.value in _NULLS):
            raise RecipeError(
                f"{node.value!r} is read by YAML as a {type(value).__name__}",
                where=self._place(node),
                hint=f"write it in quotes: {node.value!r}",
            )
        return value

    def _text(self, node: yaml.ScalarNode) -> str:
        text: str = node.value
        if (strange := _NOT_TEXT.search(text)) is not None:
            raise RecipeError(f"the text has the control character {strange[0]!r}", where=self._place(node))
        return text

    def _refuse_tag(self, node: yaml.Node, usual: str) -> None:
        if node.tag != usual:
            raise RecipeError(f"the tag {node.tag} isn't supported", where=self._place(node), hint="remove it")

    def _mapping(self, node: yaml.MappingNode, path: KeyPath, depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            place = self._place(key_node)
            if not isinstance(key_node, yaml.ScalarNode):
                raise RecipeError("a key is a word", where=place)
            if key_node.tag == "tag:yaml.org,2002:merge":
                raise RecipeError("merge keys (<<) aren't supported", where=place, hint="write the values out")
            key = self._text(key_node)
            if key in result:
                raise RecipeError(
                    f"the key {key!r} stands here twice", where=place, why=f"first at {self.places[(*path, key)]}"
                )
            self.places[(*path, key)] = place
            result[key] = self.read(value_node, (*path, key), depth + 1)
        return result

    def _place(self, node: yaml.Node) -> Place:
        return Place(self.file, node.start_mark.line + 1, node.start_mark.column + 1)
