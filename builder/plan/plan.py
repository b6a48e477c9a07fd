"""From recipes and locks to planned units, and from a store to what of them is already there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from builder.plan.findings import Finding, check
from builder.plan.keys import StagePlan, difference, key
from builder.plan.stages import RuntimeDigest, plan_stages
from builder.plan.unit import Unit
from builder.selection import matching_ids
from builder.store import Artifact, LocalStore


@dataclass(frozen=True, eq=False)
class PlannedUnit:
    unit: Unit
    stages: Mapping[str, StagePlan]
    findings: tuple[Finding, ...]

    @property
    def refused(self) -> bool:
        return any(finding.refuses for finding in self.findings)


@dataclass(frozen=True)
class StageState:
    """Whether a stage's output is in the store; if not, why, and what of its inputs changed since the last build."""

    artifact: Artifact | None
    reason: str
    changes: tuple[str, ...] = ()


def plan_units(units: Iterable[Unit], runtime_digest: RuntimeDigest) -> list[PlannedUnit]:
    return [PlannedUnit(unit, plan_stages(unit, runtime_digest), check(unit)) for unit in units]


def match_units(units: Iterable[PlannedUnit], patterns: Iterable[str]) -> list[PlannedUnit]:
    """The units that one of the globs names; all without a glob. Raises UsageError for a glob that names none."""
    units = list(units)
    matching = matching_ids([planned.unit.id for planned in units], patterns)
    return [planned for planned in units if planned.unit.id in matching]


def stage_states(unit: str, stages: Mapping[str, StagePlan], store: LocalStore) -> dict[str, StageState]:
    """For each stage of a unit: the sealed artifact, or the reason why there is none."""
    states: dict[str, StageState] = {}
    for name, stage in stages.items():
        artifact = store.find(name, stage.derivation)
        if artifact is None:
            below = [states[lower].artifact for lower in stage.below]
            made = {found.stage: found.digest for found in below if found}
            if len(made) == len(below):
                artifact = store.get(name, key(name, stage.inputs, made))
        states[name] = StageState(artifact, "") if artifact else _missing(unit, stage, store, states)
    return states


def _missing(unit: str, stage: StagePlan, store: LocalStore, states: Mapping[str, StageState]) -> StageState:
    before = store.history(unit, stage.stage)
    if before is None:
        return StageState(None, "not built yet")
    if changes := tuple(difference(before, stage.inputs)):
        return StageState(None, ", ".join(changes), changes)
    missing = [name for name in stage.below if states[name].artifact is None]
    reason = f"{' and '.join(missing)} will be made anew" if missing else "no longer in the store"
    return StageState(None, reason)
