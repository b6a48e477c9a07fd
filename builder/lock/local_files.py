"""Files that a recipe brings itself, as `file:PATH` relative to it: texts and chat templates."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from builder.errors import RecipeError, SourceError
from builder.lock.summaries import ChatTemplate
from builder.model.files import opened
from builder.model.snapshot import Snapshot, SnapshotFile, check_path, classify, digest_of_files
from builder.recipe import Recipe
from builder.store import DigestCache
from builder.store.digests import Advance

_PREFIX = "file:"

TEXT_SUFFIXES = (".jsonl", ".json", ".jsonl.gz", ".json.gz", ".csv", ".parquet", ".txt")
"""Of the files of a folder or a data set that are texts."""

TEXT_NAMES = f"read are files named *{', *'.join(TEXT_SUFFIXES)}"
"""The same in words."""

MOST_TEXTS = 10_000
"""Files of one folder or data set: a lock has a place for each."""

_DESCRIPTIONS = ("dataset_infos.json", "dataset_info.json", "dataset_dict.json", "state.json")
"""What the library `datasets` writes about texts."""

_TRAIN = re.compile(r"(^|[^a-z])train([^a-z]|$)")


def local_path(reference: str, recipe: Recipe) -> Path:
    """The path that a recipe means, whatever is there. Raises RecipeError for a word that isn't `file:PATH`."""
    if not reference.startswith(_PREFIX):
        raise RecipeError(
            f"not a file: {reference}",
            where=recipe.place_of(reference),
            hint="write file:PATH, relative to the recipe",
        )
    return recipe.folder / reference.removeprefix(_PREFIX)


def local_file(reference: str, recipe: Recipe, code: str = "NOT_FOUND") -> Path:
    """The file that a recipe means; see `local_path`. Raises SourceError with `code` where it is absent."""
    path = local_path(reference, recipe)
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
    path = local_path(reference, recipe)
    return path if os.path.isdir(path) else local_file(reference, recipe, "ABSENT")  # noqa: PTH112 - as there


def pin_texts(reference: str, recipe: Recipe, digests: DigestCache, advance: Advance) -> Snapshot:
    """The texts of a file or a folder; the revision of a file is its sha256.

    SourceError `ABSENT` where there are none: only the machine that reads them needs them. `LFS_POINTER`, `UNREADABLE`
    and what `texts_in` raises for those that can't be pinned.
    """
    path = local_texts(reference, recipe)
    if not path.is_dir():
        file = _pinned(path, path.name, digests, advance)
        return Snapshot(reference, f"sha256:{file.sha256}", (file,))
    files = [_pinned(path / name, name, digests, advance) for name in texts_in(path)]
    if not files:
        raise no_texts(reference, "ABSENT")
    return Snapshot(reference, f"sha256:{digest_of_files(files)}", tuple(files))


def texts_in(folder: Path) -> list[str]:
    """The paths of the texts below a folder, as `texts_among` has them.

    A link counts as the file that it leads to, if that is in the folder too, or among the blobs of the Hub's cache;
    linked folders aren't entered. SourceError `PATH_ESCAPE` for a link or a name that leads elsewhere, `UNREADABLE`
    for a folder or a link without an end, `TOO_MANY_FILES`.
    """
    return texts_among(_paths(folder), where=folder)


def texts_among(paths: Iterable[str], *, where: object) -> list[str]:
    """Those of the files of a folder or a data set that are texts, sorted: by suffix, but for documentation, what is
    hidden, and descriptions of data sets. SourceError `TOO_MANY_FILES`.
    """
    texts = sorted(path for path in paths if _is_text(path))
    if len(texts) > MOST_TEXTS:
        raise SourceError(
            f"there are {len(texts)} texts",
            where=where,
            why=f"each is pinned, and {MOST_TEXTS} at most are",
            hint="name a folder with less, or join them",
            code="TOO_MANY_FILES",
        )
    return texts


def texts_to_read(texts: Iterable[str]) -> list[str]:
    """Of the texts of a folder or a data set those of its split `train`; all where no path has that word in it."""
    every = list(texts)
    return [path for path in every if _TRAIN.search(path.lower())] or every


def no_texts(reference: str, code: str) -> SourceError:
    return SourceError(f"there are no texts in {reference}", why=TEXT_NAMES, code=code)


def pin_template(reference: str, recipe: Recipe) -> ChatTemplate:
    """A chat template by the sha256 of its file."""
    return ChatTemplate.of_file(local_file(reference, recipe))


def _pinned(path: Path, name: str, digests: DigestCache, advance: Advance) -> SnapshotFile:
    with opened(path):
        digest = digests.digest(path, advance)
    return SnapshotFile(check_path(name, where=path.parent), digest.size, digest.sha256, "other")


def _is_text(path: str) -> bool:
    name = path.rpartition("/")[2]
    return (
        name.endswith(TEXT_SUFFIXES)
        and name not in _DESCRIPTIONS
        and classify(path) != "documentation"
        and not any(part.startswith(".") for part in path.split("/"))
    )


def _paths(folder: Path) -> Iterator[str]:
    """All files that count, by their paths in the folder; of links only the texts."""
    root = Path(os.path.realpath(folder))
    homes = [root]
    if root.parent.name == "snapshots":  # of the Hub's cache
        homes.append(root.parent.parent / "blobs")
    for place, folders, files in os.walk(root, onerror=_unreadable):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in (*folders, *files):
            path = Path(place, name)
            relative = path.relative_to(root).as_posix()
            if path.is_symlink() and (name in folders or _is_text(relative)):
                _refuse_leaving(path, relative, homes)
            if name in files and _is_text(relative):
                yield check_path(relative, where=folder)


def _refuse_leaving(path: Path, relative: str, homes: list[Path]) -> None:
    target = Path(os.path.realpath(path))
    if not any(target.is_relative_to(home) for home in homes):
        raise SourceError(
            f"{relative} is a link that leaves the folder of the texts",
            where=path,
            why=f"it leads to {target}",
            hint="copy the folder with `cp -rL`, or name the one that it leads to",
            code="PATH_ESCAPE",
        )
    if not target.exists():
        raise SourceError(f"{relative} is a link that leads nowhere", where=path, why=f"to {target}", code="UNREADABLE")


def _unreadable(error: OSError) -> None:
    raise SourceError(
        "can't read a folder of texts", where=error.filename, why=error.strerror, code="UNREADABLE"
    ) from error
