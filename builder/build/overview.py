"""What a plan shows of each unit, as small records: many recipes are read by several processes."""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from builder.build.machine import obstacle
from builder.build.preparation import no_duplicates, prepare_files
from builder.build.reporter import Reporter
from builder.plan import Finding, PlannedUnit, StagePlan, sizes, stage_states
from builder.plan.memory import Sizes
from builder.recipe import find_recipes
from builder.store import LocalStore

_PARALLEL_FROM = 64
"""Recipes; fewer are read faster than processes start."""


@dataclass(frozen=True)
class StageOverview:
    """A stage's key, and the digest of its artifact; without one, why there is something to do."""

    derivation: str
    artifact: str | None
    reason: str
    changes: tuple[str, ...]


@dataclass(frozen=True)
class UnitOverview:
    """A planned unit without its recipe and lock: what is shown of it. `obstacle`: why this machine can't build it.

    `plans` are its stages with all their inputs, where they were asked for.
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
    stages: Mapping[str, StageOverview]
    sizes: Sizes | None
    findings: tuple[Finding, ...]
    plans: Mapping[str, StagePlan]

    @property
    def to_do(self) -> list[str]:
        return [name for name, stage in self.stages.items() if stage.artifact is None]


def overview(
    path: Path, store: LocalStore, frozen: bool, reporter: Reporter, *, plans: bool = False
) -> list[UnitOverview]:
    """Every unit of a recipe or a folder of recipes; what isn't locked yet is locked now. Raises BuilderError."""
    files = find_recipes(path)
    look = partial(_look, store=store, frozen=frozen, reporter=reporter, plans=plans)
    processes = min(os.cpu_count() or 1, 8)
    if len(files) < _PARALLEL_FROM or processes == 1:
        units = look(files)
    else:
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor

        size = -(-len(files) // (processes * 4))
        parts = [files[start : start + size] for start in range(0, len(files), size)]
        with ProcessPoolExecutor(processes, multiprocessing.get_context("fork")) as pool:
            units = [unit for part in pool.map(look, parts) for unit in part]
    no_duplicates((unit.id, unit.recipe) for unit in units)
    return units


def _look(
    files: Sequence[Path], store: LocalStore, frozen: bool, reporter: Reporter, plans: bool
) -> list[UnitOverview]:
    collecting = gc.isenabled()
    gc.disable()  # nearly all that is made here is kept: looking for garbage finds none
    try:
        return [_overview(item, store, plans) for item in prepare_files(files, store, frozen, reporter)]
    finally:
        if collecting:
            gc.enable()


def _overview(item: PlannedUnit, store: LocalStore, plans: bool) -> UnitOverview:
    unit = item.unit
    stages = {
        name: StageOverview(
            item.stages[name].derivation, state.artifact.digest if state.artifact else None, state.reason, state.changes
        )
        for name, state in stage_states(item, store).items()
    }
    labels = unit.settings.runner.labels or ("self-hosted", *(() if unit.gpu.is_cpu else ("gpu",)), unit.gpu.name)
    return UnitOverview(
        id=unit.id,
        recipe=str(unit.recipe.file),
        sku=unit.gpu.name,
        gpus=unit.gpus,
        toolchain=unit.toolchain.name,
        flow=unit.flow,
        obstacle=obstacle(item),
        runner=tuple(labels),
        refused=item.refused,
        stages=stages,
        sizes=sizes(unit),
        findings=item.findings,
        plans=item.stages if plans else {},
    )
