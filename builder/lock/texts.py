"""Texts that a recipe names, brought here as the lock pins them: calibration data, and what `qualify` reads."""

from __future__ import annotations

from pathlib import Path

from builder.errors import SourceError
from builder.lock.local_files import local_texts
from builder.lock.record import Lock
from builder.recipe import Recipe
from builder.store import LocalStore
from builder.store.digests import Advance, ignore_progress


def pinned_texts(
    reference: str, recipe: Recipe, lock: Lock, store: LocalStore, advance: Advance = ignore_progress
) -> Path:
    """The file or folder of `reference` on this machine, every file as pinned.

    SourceError DRIFT for what was changed, cut off or replaced since, ABSENT for what isn't there.
    """
    snapshot = lock.calibration.get(reference)
    if snapshot is None:
        raise SourceError(
            f"{reference} isn't pinned", where=recipe.lock_file, hint="run `engine-builder lock`", code="UNRESOLVED"
        )
    if reference.startswith("hf://"):
        from builder.lock.making import dataset_source

        return dataset_source(reference, recipe, store).materialise(snapshot, advance)
    path = local_texts(reference, recipe)
    for file in snapshot.files:
        found = path / file.path if path.is_dir() else path
        if not found.is_file():
            raise _drift(reference, found, "it is gone")
        digest = store.digest_cache.digest(found, advance)
        if digest.sha256 != file.sha256:
            raise _drift(reference, found, f"sha256 {digest.sha256[:12]}, pinned {file.sha256[:12]}")
    return path


def _drift(reference: str, file: Path, why: str) -> SourceError:
    return SourceError(
        f"{reference} isn't what the lock pins",
        where=file,
        why=why,
        hint="pin anew with `engine-builder lock --upgrade`, or restore it",
        code="DRIFT",
    )
