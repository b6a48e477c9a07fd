"""Which recipes and which units are meant: paths and globs, before anything of them is read."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from builder.errors import RecipeError, UsageError


def find_recipes(path: Path) -> list[Path]:
    """The recipe files that a path names: itself, or every *.yaml in a folder, sorted by name.

    In a folder, files whose name begins with `_` are parts that recipes extend.
    """
    try:
        files = sorted(path / name for name in os.listdir(path) if _is_recipe(name)) if path.is_dir() else None
    except OSError as error:
        raise RecipeError("can't read this", where=path, why=error.strerror) from error
    if files is not None:
        if not files:
            raise RecipeError("there is no recipe in this folder", where=path, code="RECIPE_MISSING")
        for one, two in pairwise(files):
            if one.stem == two.stem:
                raise RecipeError(f"{one.name} and {two.name} would share one lock file", where=path, hint="rename one")
        return files
    return [path]


def _is_recipe(name: str) -> bool:
    return name.endswith((".yaml", ".yml")) and not name.startswith(("_", "."))


def matching_ids(ids: Sequence[str], patterns: Iterable[str]) -> frozenset[str]:
    """The ids that one of the globs names; all without a glob. Raises UsageError for a glob that names none."""
    patterns, matching = list(patterns), set()
    for pattern in patterns:
        found = [name for name in ids if fnmatch.fnmatchcase(name, pattern)]
        if not found:
            known = "\n       ".join(ids)
            raise UsageError(
                f"no unit matches {pattern!r}", hint=f"the units are:\n       {known}", code="UNKNOWN_UNIT"
            )
        matching.update(found)
    return frozenset(matching if patterns else ids)
