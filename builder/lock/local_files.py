"""Files that a recipe brings itself, as `file:PATH` relative to it: calibration texts and chat templates."""

from __future__ import annotations

import os
from pathlib import Path

from builder.errors import RecipeError, SourceError
from builder.lock.summaries import ChatTemplate
from builder.model.snapshot import Snapshot, SnapshotFile
from builder.recipe import Recipe
from builder.store import DigestCache
from builder.store.digests import Advance

_PREFIX = "file:"


def local_file(reference: str, recipe: Recipe, code: str = "NOT_FOUND") -> Path:
    """The file that a recipe means. Raises RecipeError for another word, SourceError with `code` where it is absent."""
    if not reference.startswith(_PREFIX):
        raise RecipeError(
            f"not a file: {reference}",
            where=recipe.place_of(reference),
            hint="write file:PATH, relative to the recipe",
        )
    path = recipe.folder / reference.removeprefix(_PREFIX)
    if not os.path.isfile(path):  # noqa: PTH113 - Path.is_file raises an error for a name that is too long
        raise SourceError(
            f"there is no file {reference.removeprefix(_PREFIX)}",
            where=path,
            why=f"{recipe.file.name} names it as {reference}",
            hint="a relative path begins in the folder of the recipe",
            code=code,
        )
    return path


def pin_texts(reference: str, recipe: Recipe, digests: DigestCache, advance: Advance) -> Snapshot:
    """Calibration texts of one file; its revision is the sha256 of the file.

    SourceError `ABSENT` where there is none: only the machine that quantises needs it.
    """
    path = local_file(reference, recipe, "ABSENT")
    digest = digests.digest(path, advance)
    file = SnapshotFile(path.name, digest.size, digest.sha256, "other")
    return Snapshot(reference, f"sha256:{digest.sha256}", (file,))


def pin_template(reference: str, recipe: Recipe) -> ChatTemplate:
    """A chat template by the sha256 of its file."""
    return ChatTemplate.of_file(local_file(reference, recipe))
