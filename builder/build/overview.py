"""What a plan shows of each unit. Plans are remembered: where nothing changed, only the store is looked at.

So this module loads the planner only if there is something to plan. Many recipes are planned by several processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.build.remembered import Record, recall, remember
from builder.build.reporter import Reporter
from builder.errors import RecipeError
from builder.selection import find_recipes
from builder.store import LocalStore

if TYPE_CHECKING:
    from builder.plan import PlannedUnit, StagePlan, StageState

_PARALLEL_FROM = 64
"""Recipes; fewer are planned faster than processes start."""


@dataclass(frozen=True)
class StageOverview:
    """A stage's key, and the digest of its artifact; without one, why there is something to do."""

    derivation: str
    artifact: str | None
    reason: str = ""
    changes: tuple[str, ...] = ()


@dataclass(frozen=True)
class UnitOverview:
    """A planned unit: what is shown of it, in plain values.

    `obstacle`: why this machine can't build it. `sizes` in bytes, None for a split that isn't legal. `findings` have
    the fields of `builder.plan.Finding`. `plans`: its stages with their inputs, as the remembered plan has them.
    """

    id: str
    recipe: str
    sku: str
    gpus: int
    toolchain: str
    flow: str
    obstacle: str | None
    runner: tuple[str, ...]
    refused: bool
    sizes: Mapping[str, Any] | None
    findings: Sequence[Mapping[str, Any]]
    stages: Mapping[str, StageOverview]
    plans: Mapping[str, Mapping[str, Any]]

    @property
    def to_do(self) -> list[str]:
        return [name for name, stage in self.stages.items() if stage.artifact is None]

    def stage_plans(self) -> dict[str, StagePlan]:
        """Its stages as the planner makes them."""
        from builder.plan import StagePlan

        return {
            name: StagePlan(name, plan["inputs"], tuple(plan["below"]), self.stages[name].derivation)
            for name, plan in self.plans.items()
        }


def overview(path: Path, store: LocalStore, frozen: bool, reporter: Reporter) -> list[UnitOverview]:
    """Every unit of a recipe or a folder of recipes; what isn't locked yet is locked now. Raises BuilderError."""
    files = find_recipes(path)
    records = {file: recall(file, store) for file in files}
    fresh = [file for file, record in records.items() if record is None]
    if fresh:
        records |= _plan(fresh, partial(_records, store=store, frozen=frozen, reporter=reporter))
    units = [unit for record in records.values() if record for unit in _units(record, store)]
    no_duplicates((unit.id, unit.recipe) for unit in units)
    return units


def no_duplicates(units: Iterable[tuple[str, str]]) -> None:
    """RecipeError where two recipes make one unit; `units` are pairs of id and recipe."""
    files: dict[str, str] = {}
    for name, file in units:
        if (other := files.setdefault(name, file)) != file:
            raise RecipeError(
                f"two recipes make the same unit {name!r}",
                where=file,
                why=f"the other one is {other}",
                hint="give one of them another name",
                code="DUPLICATE_UNIT",
            )


def _plan(files: list[Path], plan: partial[dict[Path, Record]]) -> dict[Path, Record]:
    processes = min(os.cpu_count() or 1, 8)
    if len(files) < _PARALLEL_FROM or processes == 1:
        return plan(files)
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    import builder.build.preparation  # noqa: F401 (once, before the processes part)

    size = -(-len(files) // (processes * 4))
    parts = [files[start : start + size] for start in range(0, len(files), size)]
    with ProcessPoolExecutor(processes, multiprocessing.get_context("fork")) as pool:
        return {file: record for part in pool.map(plan, parts) for file, record in part.items()}


def _records(files: Sequence[Path], store: LocalStore, frozen: bool, reporter: Reporter) -> dict[Path, Record]:
    """Plan some recipes, and remember the plans."""
    import gc
    import time

    from builder.build.preparation import prepare_recipe

    records: dict[Path, Record] = {}
    collecting = gc.isenabled()
    gc.disable()  # nearly all that is made here is kept: looking for garbage finds none
    try:
        for file in files:
            started = time.time()
            recipe, planned = prepare_recipe(file, store, frozen, reporter)
            records[file] = _record(planned)
            remember(file, (*recipe.files, recipe.lock_file), started, records[file], store)
    finally:
        if collecting:
            gc.enable()
    return records


def _record(planned: Sequence[PlannedUnit]) -> Record:
    stages = {plan.derivation: plan for item in planned for plan in item.stages.values()}
    return {
        "units": [_unit_record(item) for item in planned],
        "stages": {
            derivation: {"stage": plan.stage, "below": plan.below, "inputs": plan.inputs}
            for derivation, plan in stages.items()
        },
    }


def _unit_record(item: PlannedUnit) -> dict[str, Any]:
    from builder.build.machine import obstacle
    from builder.plan import sizes

    unit, files = item.unit, sizes(item.unit)
    labels = unit.settings.runner.labels or ("self-hosted", *(() if unit.gpu.is_cpu else ("gpu",)), unit.gpu.name)
    return {
        "id": unit.id,
        "recipe": str(unit.recipe.file),
        "sku": unit.gpu.name,
        "gpus": unit.gpus,
        "toolchain": unit.toolchain.name,
        "flow": unit.flow,
        "obstacle": obstacle(item),
        "runner": labels,
        "refused": item.refused,
        "sizes": files.to_json() if files else None,
        "findings": [vars(finding) for finding in item.findings],
        "stages": {name: plan.derivation for name, plan in item.stages.items()},
    }


def _units(record: Record, store: LocalStore) -> list[UnitOverview]:
    """The remembered units, with what of them is in the store now."""
    units = []
    for entry in record["units"]:
        derivations = entry["stages"]
        stages = {
            name: StageOverview(derivation, store.find_digest(name, derivation))
            for name, derivation in derivations.items()
        }
        plans = {name: record["stages"][derivation] for name, derivation in derivations.items()}
        unit = UnitOverview(**{**entry, "stages": stages, "plans": plans, "runner": tuple(entry["runner"])})
        units.append(_with_reasons(unit, store) if unit.to_do else unit)
    return units


def _with_reasons(unit: UnitOverview, store: LocalStore) -> UnitOverview:
    """Of a unit that has something to do: why, and what of it was made under another derivation."""
    from dataclasses import replace

    from builder.plan import stage_states

    states = stage_states(unit.id, unit.stage_plans(), store)
    return replace(unit, stages={name: _stage(unit.stages[name].derivation, state) for name, state in states.items()})


def _stage(derivation: str, state: StageState) -> StageOverview:
    return StageOverview(
        derivation, state.artifact.digest if state.artifact else None, state.reason, tuple(state.changes)
    )
