"""Files that a recipe brings itself, as `file:PATH` relative to it: calibration texts and chat templates."""

from __future__ import annotations

from pathlib import Path

from builder.errors import RecipeError, SourceError
from builder.lock.summaries import ChatTemplate
from builder.model.snapshot import Snapshot, SnapshotFile
from builder.recipe import Recipe
from builder.store import DigestCache
from builder.store.digests import Advance

_PREFIX = "file:"


def local_file(reference: str, recipe: Recipe) -> Path:
    """The file that a recipe means. Raises RecipeError for another word, SourceError `NOT_FOUND` where it is absent."""
    if not reference.startswith(_PREFIX):
        raise RecipeError(f"not a file: {reference}", where=recipe.file, hint="write file:PATH, relative to the recipe")
    path = recipe.folder / reference.removeprefix(_PREFIX)
    if not path.is_file():
        raise SourceError(
            f"there is no file {reference.removeprefix(_PREFIX)}",
            where=path,
            why=f"{recipe.file.name} names it as {reference}",
            hint="a relative path begins in the folder of the recipe",
            code="NOT_FOUND",
        )
    return path


def pin_texts(reference: str, recipe: Recipe, digests: DigestCache, advance: Advance) -> Snapshot:
    """Calibration texts of one file; its revision is the sha256 of the file."""
    path = local_file(reference, recipe)
    digest = digests.digest(path, advance)
    file = SnapshotFile(path.name, digest.size, digest.sha256, "other")
    return Snapshot(reference, f"sha256:{digest.sha256}", (file,))


def pin_template(reference: str, recipe: Recipe) -> ChatTemplate:
    """A chat template by the sha256 of its file."""
    return ChatTemplate.of_file(local_file(reference, recipe))
