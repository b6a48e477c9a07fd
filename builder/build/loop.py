"""Build one unit: walk down from the image to the first stages that are missing, then up again."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from builder.build.stages import STAGES
from builder.errors import PlanRefused
from builder.plan import PlannedUnit, StagePlan, key
from builder.store import Artifact, LocalStore, Workspace
from builder.store.digests import Advance


class Reporter(Protocol):
    """Shows what goes on; the command line draws bars, tests listen."""

    def stage(self, unit: str, stage: str, total_bytes: int | None) -> Advance:
        """A stage starts; the result is told the bytes that were done."""

    def done(self, unit: str, stage: str, outcome: str) -> None:
        """A stage ended: `built`, `reused` or `up to date`."""


@dataclass
class Report:
    """What a build of one unit came to: its image, and the stages that were really run."""

    image: Artifact
    built: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Context:
    """What a stage function may use besides its unit."""

    workspace: Workspace
    inputs: Mapping[str, Artifact]
    source: Callable[[], Path]
    store: LocalStore
    advance: Advance


def buildable_here(planned: PlannedUnit) -> str | None:
    """None if this machine can build the unit, else the reason why not."""
    if not planned.unit.gpu.is_cpu:
        return f"needs a {planned.unit.gpu.product} and {planned.unit.toolchain.name}"
    return None


def build_unit(
    planned: PlannedUnit, store: LocalStore, source: Callable[[Advance], Path], reporter: Reporter
) -> Report:
    """Make what is missing of one unit, up to its image.

    `source` gives the folder with the pinned model files. Raises PlanRefused for what the plan refuses or this
    machine can't build, and whatever a stage raises; nothing half-made stays behind.
    """
    unit = planned.unit
    refusals = [finding for finding in planned.findings if finding.severity == "refuse"]
    if refusals:
        first = refusals[0]
        raise PlanRefused(first.message, where=first.where, hint=first.suggestion, code=first.code)
    if reason := buildable_here(planned):
        raise PlanRefused(
            f"this machine can't build {unit.id}", why=f"it {reason}", hint="build it on such a host", code="NOT_HERE"
        )
    built: list[str] = []

    def want(stage: StagePlan) -> Artifact:
        if artifact := store.find(stage.stage, stage.derivation):
            return artifact
        inputs = {name: want(planned.stages[name]) for name in stage.below}
        content_key = key(stage.stage, stage.inputs, {name: artifact.digest for name, artifact in inputs.items()})
        artifact = store.get(stage.stage, content_key)
        if artifact is None:
            artifact = make(stage, content_key, inputs)
        else:
            reporter.done(unit.id, stage.stage, "reused")
        store.remember(stage.stage, stage.derivation, artifact)
        return artifact

    def make(stage: StagePlan, content_key: str, inputs: Mapping[str, Artifact]) -> Artifact:
        with store.building(stage.stage, content_key) as workspace:
            if artifact := store.get(stage.stage, content_key):  # another process was faster
                return artifact
            started = time.monotonic()
            function, total_bytes = STAGES[stage.stage], None
            if stage.stage in ("checkpoint", "engine"):
                total_bytes = sum(file.size for file in unit.lock.snapshot.of_kind("weights"))
            advance = reporter.stage(unit.id, stage.stage, total_bytes)
            function(unit, Context(workspace, inputs, lambda: source(advance), store, advance))
            facts = {"seconds": round(time.monotonic() - started, 3), "host": platform.node(), "unit": unit.id}
            artifact = store.seal(stage.stage, content_key, workspace, facts)
        built.append(stage.stage)
        reporter.done(unit.id, stage.stage, "built")
        return artifact

    image = want(planned.stages["image"])
    for stage in planned.stages.values():
        store.remember_inputs(unit.id, stage.stage, stage.inputs)
    return Report(image, built)
