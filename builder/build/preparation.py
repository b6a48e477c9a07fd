"""What comes before the first stage: recipes are read, locked and planned, and the model's files made available."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from builder.build.reporter import Reporter
from builder.errors import BuilderError, RecipeError
from builder.image.wheels import runtime_digest
from builder.lock import Lock, load_lock, make_lock, required_lock, source_of
from builder.model.snapshot import FileKind
from builder.plan import PlannedUnit, plan_units, resolve_units
from builder.plan.since import checked_out
from builder.recipe import Recipe, find_recipes, load_recipe
from builder.store import LocalStore
from builder.store.digests import Advance


def prepare(path: Path, store: LocalStore, frozen: bool, reporter: Reporter) -> list[PlannedUnit]:
    """The planned units of a recipe, or of a folder of recipes; what isn't locked yet is locked now."""
    planned: list[PlannedUnit] = []
    for file in find_recipes(path):
        recipe = load_recipe(file)
        lock = _lock(recipe, store, frozen, reporter)
        planned += plan_units(resolve_units(recipe, lock), runtime_digest)
    files: dict[str, Path] = {}
    for item in planned:
        if (other := files.setdefault(item.unit.id, item.unit.recipe.file)) != item.unit.recipe.file:
            raise RecipeError(
                f"two recipes make the same unit {item.unit.id!r}",
                where=item.unit.recipe.place("name"),
                why=f"the other one is {other}",
                hint="give one of them another name",
                code="DUPLICATE_UNIT",
            )
    return planned


def prepare_at(revision: str, path: Path) -> list[PlannedUnit]:
    """The planned units of a path as it was at a git revision. What couldn't be planned then counts as not there."""
    planned: list[PlannedUnit] = []
    with checked_out(path, revision) as past:
        for file in find_recipes(past) if past.exists() and (past.is_file() or any(past.iterdir())) else []:
            with suppress(BuilderError):
                recipe = load_recipe(file)
                planned += plan_units(resolve_units(recipe, required_lock(recipe)), runtime_digest)
    return planned


def _lock(recipe: Recipe, store: LocalStore, frozen: bool, reporter: Reporter) -> Lock:
    if frozen:
        return required_lock(recipe)
    lock = load_lock(recipe.lock_file)
    if lock and lock.covers(recipe):
        return lock
    name = recipe.content.name
    lock = make_lock(recipe, store, reporter.stage(name, "lock", None), keep=lock)
    lock.write(recipe.lock_file)
    reporter.done(name, "lock", "pinned")
    return lock


def model_files(planned: PlannedUnit, store: LocalStore) -> Callable[[tuple[FileKind, ...], Advance], Path]:
    """A function that brings pinned files of some kinds to this machine and returns their folder, digests checked."""
    snapshot = planned.unit.lock.snapshot

    def fetch(kinds: tuple[FileKind, ...], advance: Advance) -> Path:
        wanted = replace(snapshot, files=snapshot.of_kind(*kinds))
        return source_of(planned.unit.recipe, store).materialise(wanted, advance)

    return fetch
