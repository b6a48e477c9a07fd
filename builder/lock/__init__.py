"""Outside facts, pinned: what the model's source and the base images held when they were last looked at.

The lock lies beside its recipe as NAME.lock.json, sorted, one fact a line. A digest is never invented: what
couldn't be reached is `unresolved`, with the reason, and a unit that needs it can be planned but not built.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from builder.errors import SourceError, disk_errors
from builder.lock.bases import PinnedBase, pin_base, recipe_reference
from builder.model.snapshot import Snapshot
from builder.model.sources import Source, open_source
from builder.model.spec import load_config
from builder.recipe import Recipe
from builder.store import LocalStore
from builder.store.digests import Advance, ignore_progress

SCHEMA = 1

__all__ = ["Lock", "PinnedBase", "Unresolved", "load_lock", "make_lock", "recipe_reference", "source_of"]


@dataclass(frozen=True)
class Unresolved:
    """A fact that couldn't be pinned, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Lock:
    """The pinned facts of one recipe. `requested` is what the recipe asked for when they were pinned."""

    requested: Mapping[str, Any]
    snapshot: Snapshot
    config: Mapping[str, Any]
    bases: Mapping[str, PinnedBase] = field(default_factory=dict)
    unresolved: tuple[Unresolved, ...] = ()

    def covers(self, recipe: Recipe) -> bool:
        """Whether this lock answers everything that the recipe asks for now."""
        return dict(self.requested) == _requested(recipe)

    def drift(self, now: Lock) -> list[str]:
        """What has changed outside since this lock, in words; the class of a file stands before its name."""
        before = {file.path: file for file in self.snapshot.files}
        after = {file.path: file for file in now.snapshot.files}
        changes = [
            f"{(after.get(path) or before[path]).kind}: {path} "
            + ("added" if path not in before else "removed" if path not in after else "changed")
            for path in sorted(before.keys() | after.keys())
            if before.get(path) != after.get(path)
        ]
        if self.snapshot.revision != now.snapshot.revision:
            changes.append(f"revision {self.snapshot.revision} is now {now.snapshot.revision}")
        changes += [
            f"base image {name} changed" for name in sorted(self.bases) if self.bases[name] != now.bases.get(name)
        ]
        return changes

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "requested": dict(self.requested),
            "model": {**self.snapshot.to_json(), "config": dict(self.config)},
            "bases": {name: vars(base) for name, base in sorted(self.bases.items())},
            "unresolved": {item.name: item.reason for item in self.unresolved},
        }

    def write(self, path: Path) -> None:
        """Write the lock file, whole or not at all."""
        partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
        with disk_errors(path):
            try:
                partial.write_text(json.dumps(self.to_json(), indent=2, sort_keys=True) + "\n")
                partial.rename(path)
            finally:
                partial.unlink(missing_ok=True)


def load_lock(path: Path) -> Lock | None:
    """The lock of a recipe, or None if it has none yet. Raises SourceError for a damaged one."""
    try:
        data = json.loads(path.read_text())
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema {data['schema']}, this version reads {SCHEMA}")
        model = dict(data["model"])
        config = model.pop("config")
        return Lock(
            requested=data["requested"],
            snapshot=Snapshot.from_json(model),
            config=config,
            bases={name: PinnedBase(**base) for name, base in data["bases"].items()},
            unresolved=tuple(Unresolved(name, reason) for name, reason in data["unresolved"].items()),
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceError(
            "the lock file is damaged",
            where=path,
            why=f"{type(error).__name__}: {error}",
            hint="take it from version control again, or pin anew with `engine-builder lock --upgrade`",
            code="LOCK_DAMAGED",
        ) from None


def make_lock(recipe: Recipe, store: LocalStore, advance: Advance = ignore_progress) -> Lock:
    """Ask the outside what the recipe names; weights are downloaded only where nothing else tells their digest."""
    source = source_of(recipe, store)
    snapshot = source.resolve(advance)
    folder = source.materialise(replace(snapshot, files=snapshot.of_kind("config")), ignore_progress)
    config = load_config(folder)
    bases: dict[str, PinnedBase] = {}
    unresolved = []
    for reference in _recipe_references(recipe):
        try:
            bases[reference] = pin_base(reference, recipe.folder)
        except SourceError as error:
            unresolved.append(Unresolved(reference, f"{error.message}: {error.why}" if error.why else error.message))
    return Lock(_requested(recipe), snapshot, config, bases, tuple(unresolved))


def source_of(recipe: Recipe, store: LocalStore) -> Source:
    """Where the model of a recipe comes from; what a source must make itself lies in the store's `sources`."""
    model = recipe.content.model
    return open_source(
        model.source, model.revision, base=recipe.folder, cache=store.root / "sources", digests=store.digest_cache
    )


def _requested(recipe: Recipe) -> dict[str, Any]:
    model = recipe.content.model
    return {"source": model.source, "revision": model.revision, "bases": _recipe_references(recipe)}


def _recipe_references(recipe: Recipe) -> list[str]:
    targets = range(len(recipe.content.targets))
    return sorted({recipe.settings(index).package.base for index in targets} - {"none"})
