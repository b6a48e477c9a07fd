"""Files that a recipe brings itself, as `file:PATH` relative to it: texts and chat templates."""

from __future__ import annotations

import os
from pathlib import Path

from builder.errors import RecipeError, SourceError
from builder.lock.summaries import ChatTemplate
from builder.model.snapshot import Snapshot, SnapshotFile, digest_of_files
from builder.recipe import Recipe
from builder.store import DigestCache
from builder.store.digests import Advance

_PREFIX = "file:"

TEXT_SUFFIXES = (".jsonl", ".json", ".jsonl.gz", ".json.gz", ".csv", ".parquet", ".txt")
"""Of the files of a folder that are texts."""


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


def local_texts(reference: str, recipe: Recipe) -> Path:
    """The file or folder with texts that a recipe means; see `local_file`."""
    path = recipe.folder / reference.removeprefix(_PREFIX)
    if reference.startswith(_PREFIX) and os.path.isdir(path):  # noqa: PTH112 - as in `local_file`
        return path
    return local_file(reference, recipe, "ABSENT")


def pin_texts(reference: str, recipe: Recipe, digests: DigestCache, advance: Advance) -> Snapshot:
    """The texts of a file or a folder; the revision of a file is its sha256.

    SourceError `ABSENT` where there are none: only the machine that reads them needs them.
    """
    path = local_texts(reference, recipe)
    if not path.is_dir():
        digest = digests.digest(path, advance)
        file = SnapshotFile(path.name, digest.size, digest.sha256, "other")
        return Snapshot(reference, f"sha256:{digest.sha256}", (file,))
    files = []
    for found in text_files(path):
        digest = digests.digest(found, advance)
        files.append(SnapshotFile(found.relative_to(path).as_posix(), digest.size, digest.sha256, "other"))
    if not files:
        raise SourceError(
            f"there are no texts in {reference}", where=path, why=f"read are {', '.join(TEXT_SUFFIXES)}", code="ABSENT"
        )
    return Snapshot(reference, f"sha256:{digest_of_files(files)}", tuple(files))


def text_files(folder: Path) -> list[Path]:
    """The texts of a folder, sorted by path; links and hidden files don't count."""
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.name.endswith(TEXT_SUFFIXES)
        and path.is_file()
        and not path.is_symlink()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]


def pin_template(reference: str, recipe: Recipe) -> ChatTemplate:
    """A chat template by the sha256 of its file."""
    return ChatTemplate.of_file(local_file(reference, recipe))
