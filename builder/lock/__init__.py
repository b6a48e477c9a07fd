"""Outside facts, pinned: what the model's source and the base images held when they were last looked at.

The lock lies beside its recipe as NAME.lock.json, sorted, one fact a line. A digest is never invented: what
couldn't be reached is `unresolved`, with the reason, and a unit that needs it can be planned but not built.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from builder.errors import SourceError
from builder.lock.bases import PinnedBase, pin_base, recipe_reference
from builder.model.snapshot import Snapshot
from builder.model.sources import Source, open_source
from builder.model.spec import load_config, load_generation_config
from builder.recipe import Recipe
from builder.store import LocalStore
from builder.store.digests import Advance, ignore_progress
from builder.store.files import write_atomically

SCHEMA = 1

__all__ = [
    "Lock",
    "PinnedBase",
    "Unresolved",
    "load_lock",
    "make_lock",
    "recipe_reference",
    "required_lock",
    "source_of",
]


@dataclass(frozen=True)
class Unresolved:
    """A fact that couldn't be pinned, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Lock:
    """The pinned facts of one recipe.

    `requested` is the model that the recipe asked for when it was pinned. `config` and `generation_config` are copies
    of the model's files of these names, so that a plan needs nothing else; a build compares them.
    """

    requested: Mapping[str, Any]
    snapshot: Snapshot
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any] = field(default_factory=dict)
    bases: Mapping[str, PinnedBase] = field(default_factory=dict)
    unresolved: tuple[Unresolved, ...] = ()

    def covers(self, recipe: Recipe) -> bool:
        """Whether this lock answers everything that the recipe asks for now."""
        known = {*self.bases, *(item.name for item in self.unresolved)}
        return dict(self.requested) == _requested(recipe) and known.issuperset(_base_references(recipe))

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
        if not changes and (self.config, self.generation_config) != (now.config, now.generation_config):
            changes.append("config: the lock's copy was edited")
        unreachable = {item.name: item.reason for item in now.unresolved}
        for name, base in sorted(self.bases.items()):
            if name in unreachable:
                changes.append(f"base image {name} can't be reached: {unreachable[name]}")
            elif name in now.bases and now.bases[name] != base:
                changes.append(f"base image {name} changed")
        return changes

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "requested": dict(self.requested),
            "model": {
                **self.snapshot.to_json(),
                "config": dict(self.config),
                "generation_config": dict(self.generation_config),
            },
            "bases": {name: vars(base) for name, base in sorted(self.bases.items())},
            "unresolved": {item.name: item.reason for item in self.unresolved},
        }

    def write(self, path: Path) -> None:
        """Write the lock file, whole or not at all."""
        write_atomically(path, json.dumps(self.to_json(), indent=2, sort_keys=True) + "\n")


def load_lock(path: Path) -> Lock | None:
    """The lock of a recipe, or None if it has none yet. Raises SourceError for a damaged one."""
    try:
        data = json.loads(path.read_text())
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema {data['schema']}, this version reads {SCHEMA}")
        model = dict(data["model"])
        config, generation_config = dict(model.pop("config")), dict(model.pop("generation_config"))
        return Lock(
            requested=data["requested"],
            snapshot=Snapshot.from_json(model),
            config=config,
            generation_config=generation_config,
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


def required_lock(recipe: Recipe) -> Lock:
    """The lock of a recipe where nothing may be pinned now. Raises SourceError if it is absent or doesn't cover it."""
    lock = load_lock(recipe.lock_file)
    if lock and lock.covers(recipe):
        return lock
    raise SourceError(
        "the recipe asks for something that the lock doesn't hold" if lock else "the recipe isn't locked",
        where=recipe.lock_file,
        hint=f"run `engine-builder lock --recipe {recipe.file}` and commit the lock file",
        code="NOT_LOCKED",
    )


def make_lock(
    recipe: Recipe, store: LocalStore, advance: Advance = ignore_progress, *, keep: Lock | None = None
) -> Lock:
    """Ask the outside what the recipe names; weights are downloaded only where nothing else tells their digest.

    What `keep` has pinned of the same names is taken from there: only what is new, or was unresolved, is asked for.
    """
    bases = dict(keep.bases) if keep else {}
    unresolved = []
    for reference in _base_references(recipe):
        if reference not in bases:
            try:
                bases[reference] = pin_base(reference, recipe.folder)
            except SourceError as error:
                reason = f"{error.message}: {error.why}" if error.why else error.message
                unresolved.append(Unresolved(reference, reason))
    if keep and dict(keep.requested) == _requested(recipe):
        return replace(keep, bases=bases, unresolved=tuple(unresolved))
    source = source_of(recipe, store)
    snapshot = source.resolve(advance)
    folder = source.materialise(replace(snapshot, files=snapshot.of_kind("config")), ignore_progress)
    config, generation_config = load_config(folder), load_generation_config(folder)
    return Lock(_requested(recipe), snapshot, config, generation_config, bases, tuple(unresolved))


def source_of(recipe: Recipe, store: LocalStore) -> Source:
    """Where the model of a recipe comes from; what a source must make itself lies in the store's `sources`."""
    model = recipe.content.model
    return open_source(
        model.source, model.revision, base=recipe.folder, cache=store.root / "sources", digests=store.digest_cache
    )


def _requested(recipe: Recipe) -> dict[str, Any]:
    model = recipe.content.model
    return {"source": model.source, "revision": model.revision}


def _base_references(recipe: Recipe) -> list[str]:
    targets = range(len(recipe.content.targets))
    return sorted({recipe.settings(index).package.base for index in targets} - {"none"})
