"""What comes before the first stage: recipes are read, locked and planned, and the model's files made available."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from builder.build.overview import no_duplicates
from builder.build.reporter import Reporter
from builder.errors import BuilderError, RecipeError
from builder.image.wheels import runtime_digest
from builder.lock import Lock, load_lock, required_lock
from builder.model.snapshot import FileKind
from builder.plan import PlannedUnit, StagePlan, plan_stages, plan_units, resolve_units
from builder.recipe import Recipe, load_recipe
from builder.selection import find_recipes
from builder.store import LocalStore
from builder.store.digests import Advance


def prepare(path: Path, store: LocalStore, frozen: bool, reporter: Reporter) -> list[PlannedUnit]:
    """The planned units of a recipe, or of a folder of recipes; what isn't locked yet is locked now."""
    planned: list[PlannedUnit] = []
    for file in find_recipes(path):
        planned += prepare_recipe(file, store, frozen, reporter)[1]
    no_duplicates((item.unit.id, str(item.unit.recipe.file)) for item in planned)
    return planned


def prepare_recipe(file: Path, store: LocalStore, frozen: bool, reporter: Reporter) -> tuple[Recipe, list[PlannedUnit]]:
    """One recipe, and its planned units."""
    recipe = load_recipe(file)
    lock = _lock(recipe, store, frozen, reporter)
    return recipe, plan_units(resolve_units(recipe, lock), runtime_digest)


def stages_at(revision: str, path: Path) -> dict[str, Mapping[str, StagePlan]]:
    """The units of a path as it was at a git revision, by id, with their stages.

    What couldn't be planned then counts as not there.
    """
    from builder.plan.since import checked_out

    units: dict[str, Mapping[str, StagePlan]] = {}
    with checked_out(path, revision) as past, suppress(RecipeError):
        for file in find_recipes(past):
            with suppress(BuilderError):
                recipe = load_recipe(file)
                for unit in resolve_units(recipe, required_lock(recipe)):
                    units[unit.id] = plan_stages(unit, runtime_digest)
    return units


def _lock(recipe: Recipe, store: LocalStore, frozen: bool, reporter: Reporter) -> Lock:
    if frozen:
        return required_lock(recipe)
    lock = load_lock(recipe.lock_file)
    if lock and lock.covers(recipe):
        return lock
    from builder.lock.making import make_lock  # with it come the clients of sources and registries

    name = recipe.content.name
    lock = make_lock(recipe, store, reporter.stage(name, "lock", None), keep=lock)
    lock.write(recipe.lock_file)
    reporter.done(name, "lock", "pinned")
    return lock


def model_files(planned: PlannedUnit, store: LocalStore) -> Callable[[tuple[FileKind, ...], Advance], Path]:
    """A function that brings pinned files of some kinds to this machine and returns their folder, digests checked."""
    from builder.lock.making import source_of

    snapshot = planned.unit.lock.snapshot

    def fetch(kinds: tuple[FileKind, ...], advance: Advance) -> Path:
        wanted = replace(snapshot, files=snapshot.of_kind(*kinds))
        return source_of(planned.unit.recipe, store).materialise(wanted, advance)

    return fetch
