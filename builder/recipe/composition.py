"""`extends`: a recipe laid over other files. Mappings are merged deeply, anything else is replaced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.errors import RecipeError
from builder.recipe.yaml_positions import MAX_NODES, Document, KeyPath, Place, read_yaml

MAX_FILES = 20


@dataclass(frozen=True)
class Composed:
    """The merged document, and every file that is in it, the recipe itself first."""

    document: Document
    files: tuple[Path, ...]


def compose(file: Path) -> Composed:
    """Read a recipe and what it extends, directly and indirectly. Raises RecipeError, also for a cycle."""
    files: list[tuple[Path, int]] = []
    return Composed(_compose(file, (), files), tuple(path for path, _ in files))


def _compose(file: Path, above: tuple[Path, ...], files: list[tuple[Path, int]]) -> Document:
    """`files`: those that are read already, each with the number of its values."""
    document = read_yaml(file)
    files.append((file, len(document.places)))
    names = document.data.get("extends")
    if names is None:
        return document
    bases = [names] if isinstance(names, str) else names
    if not isinstance(bases, list) or not all(isinstance(name, str) and name for name in bases):
        raise RecipeError("extends names a file, or a list of files", where=document.place(("extends",)))
    below = Document({}, {})
    for index, name in enumerate(bases):
        place = document.place(("extends", index))
        base = _base_file(file, name, place)
        if len(files) >= MAX_FILES:
            raise RecipeError(f"a recipe extends at most {MAX_FILES} files", where=place, code="EXTENDS_DEPTH")
        chain = (*above, file)
        if any(_same(base, seen) for seen in chain):
            raise RecipeError(
                f"the recipe extends itself through {name}",
                where=place,
                why=" → ".join(path.name for path in (*chain, base)),
                hint="break the cycle: move what they share to a third file",
                code="EXTENDS_CYCLE",
            )
        try:
            inherited = _compose(base, chain, files)
        except RecipeError as error:
            if error.code != "RECIPE_MISSING":
                raise
            raise RecipeError(
                f"there is no file {name!r} to extend",
                where=place,
                hint="paths are relative to the file that names them",
                code="EXTENDS_MISSING",
            ) from None
        if sum(values for _, values in files) > MAX_NODES:
            raise RecipeError(
                f"a recipe has at most {MAX_NODES} values with all that it extends", where=place, code="EXTENDS_SIZE"
            )
        below = lay_over(below, inherited)
    return lay_over(below, document)


def lay_over(base: Document, over: Document) -> Document:
    """`over` on top of `base`; each value keeps the place where it was written. `extends` itself isn't inherited."""
    replaced: list[KeyPath] = []
    data = _merge(base.data, over.data, (), replaced)
    places = {path: place for path, place in base.places.items() if path[:1] != ("extends",)}
    if replaced:
        gone = set(replaced)
        places = {
            path: place for path, place in places.items() if not any(path[: n + 1] in gone for n in range(len(path)))
        }
    if "extends" not in over.data:
        data.pop("extends", None)
    return Document(data, places | over.places)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings are merged deeply; anything else is replaced."""
    return _merge(base, over, (), [])


def _merge(base: Mapping[str, Any], over: Mapping[str, Any], path: KeyPath, replaced: list[KeyPath]) -> dict[str, Any]:
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            result[key] = _merge(below, value, (*path, key), replaced)
        else:
            if isinstance(below, dict | list):
                replaced.append((*path, key))
            result[key] = value
    return result


def _base_file(file: Path, name: str, place: Place) -> Path:
    if Path(name).suffix not in (".yaml", ".yml"):
        raise RecipeError(
            f"{name!r} can't be extended",
            where=place,
            why="only .yaml and .yml files hold recipes",
            code="EXTENDS_FILE",
        )
    return file.parent / name


def _same(one: Path, two: Path) -> bool:
    try:
        return one.samefile(two)
    except OSError:
        return False
