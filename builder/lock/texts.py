"""Texts that a recipe names, brought here as the lock pins them: calibration data, and what `qualify` reads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from builder.errors import SourceError
from builder.lock.local_files import local_texts, no_texts, texts_among, texts_in, texts_to_read
from builder.lock.record import Lock
from builder.model.files import opened
from builder.model.snapshot import Snapshot, SnapshotFile
from builder.recipe import Recipe
from builder.store import LocalStore, hash_file
from builder.store.digests import Advance, ignore_progress


def pinned_texts(
    reference: str, recipe: Recipe, lock: Lock, store: LocalStore, advance: Advance = ignore_progress
) -> Path:
    """The file or folder of `reference` on this machine: every text as pinned, and no other.

    Of the Hub only the texts that are read are brought here (see `texts_to_read`). Local files are hashed anew.
    SourceError DRIFT for what was changed, cut off, replaced or added since, ABSENT for what isn't there, and what
    sources raise.
    """
    snapshot = lock.calibration.get(reference)
    if snapshot is None:
        raise SourceError(
            f"{reference} isn't pinned", where=recipe.lock_file, hint="run `engine-builder lock`", code="UNRESOLVED"
        )
    if reference.startswith("hf://"):
        return _of_the_hub(reference, snapshot, recipe, store, advance)
    path = local_texts(reference, recipe)
    present = {name: path / name for name in texts_in(path)} if path.is_dir() else {path.name: path}
    pinned = {file.path: file for file in snapshot.files}
    for name in sorted(present.keys() | pinned.keys()):
        if name not in present:
            raise _drift(reference, path / name, "it is gone")
        if name not in pinned:
            raise _drift(reference, present[name], "it is new")
        _check(reference, present[name], pinned[name], advance)
    return path


def _of_the_hub(reference: str, snapshot: Snapshot, recipe: Recipe, store: LocalStore, advance: Advance) -> Path:
    from builder.lock.making import dataset_source

    names = texts_to_read(texts_among((file.path for file in snapshot.files), where=reference))
    if not names:
        raise no_texts(reference, "DATA_MISSING")
    wanted = replace(snapshot, files=tuple(file for file in snapshot.files if file.path in names))
    folder = dataset_source(reference, recipe, store).materialise(wanted, advance)
    if new := [name for name in texts_to_read(texts_in(folder)) if name not in names]:
        raise _drift(reference, folder / new[0], "it is new")
    return folder


def _check(reference: str, path: Path, pinned: SnapshotFile, advance: Advance) -> None:
    with opened(path):
        found = hash_file(path, advance)  # not as remembered: whoever changes a file can leave its size and time
    if found.sha256 != pinned.sha256:
        sizes = f"{found.size} bytes, pinned {pinned.size}; " if found.size != pinned.size else ""
        raise _drift(reference, path, f"{sizes}sha256 {found.sha256}, pinned {pinned.sha256}")


def _drift(reference: str, file: Path, why: str) -> SourceError:
    return SourceError(
        f"{reference} isn't what the lock pins",
        where=file,
        why=why,
        hint="pin anew with `engine-builder lock --upgrade`, or restore it",
        code="DRIFT",
    )
