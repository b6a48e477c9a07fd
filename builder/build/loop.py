"""Build one unit: walk down from the image to the first stages that are missing, then up again."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.build.context import Context
from builder.build.machine import obstacle
from builder.build.reporter import Reporter
from builder.build.stages import STAGES, image_of
from builder.errors import PlanRefused, SourceError
from builder.image.image import Image
from builder.lock import names_needed
from builder.model.snapshot import FileKind
from builder.plan import PlannedUnit, StagePlan, key
from builder.store import Artifact, LocalStore
from builder.store.digests import Advance


@dataclass(frozen=True)
class Report:
    """What a build of one unit came to: its last stage's artifact, and the stages that were really run."""

    artifact: Artifact
    built: tuple[str, ...]
    image: Image | None


Fetch = Callable[[tuple[FileKind, ...], Advance], Path]
"""Brings pinned model files of some kinds to this machine and returns their folder; see `preparation.model_files`."""


def build_unit(
    planned: PlannedUnit, store: LocalStore, fetch: Fetch, reporter: Reporter, until: str = "image"
) -> Report:
    """Make what is missing of one unit, up to its image, or to the stage `until`.

    Raises PlanRefused for what the plan refuses or this machine can't build, and whatever a stage raises; nothing
    half-made stays behind.
    """
    unit = planned.unit
    _refuse(planned, until)
    built: list[str] = []

    def want(stage: StagePlan) -> Artifact:
        if artifact := store.find(stage.stage, stage.derivation):
            return artifact
        inputs = {name: want(planned.stages[name]) for name in stage.below}
        content_key = key(stage.stage, stage.inputs, {name: artifact.digest for name, artifact in inputs.items()})
        artifact = store.get(stage.stage, content_key) or make(stage, content_key, inputs)
        store.remember(stage.stage, stage.derivation, artifact)
        return artifact

    def make(stage: StagePlan, content_key: str, inputs: Mapping[str, Artifact]) -> Artifact:
        with store.building(stage.stage, content_key) as workspace:
            if artifact := store.get(stage.stage, content_key):
                return artifact  # another process made it while we waited
            started = time.monotonic()
            facts: dict[str, Any] = {"host": platform.node(), "unit": unit.id}
            reporter.stage(unit.id, stage.stage, None)
            context = Context(
                workspace=workspace,
                inputs=inputs,
                facts=facts,
                fetch=fetch_files,
                progress=lambda total_bytes: reporter.stage(unit.id, stage.stage, total_bytes),
                store=store,
            )
            STAGES[stage.stage](unit, context)
            facts["seconds"] = round(time.monotonic() - started, 3)
            artifact = store.seal(stage.stage, content_key, workspace, facts)
        built.append(stage.stage)
        reporter.done(unit.id, stage.stage, "built")
        return artifact

    def fetch_files(kinds: tuple[FileKind, ...]) -> Path:
        size = sum(file.size for file in unit.lock.snapshot.of_kind(*kinds))
        folder = fetch(kinds, reporter.stage(unit.id, "fetch", size))
        reporter.done(unit.id, "fetch", "checked")
        return folder

    if "qualify" in planned.stages and until in ("engine", "image"):
        want(planned.stages["qualify"])
    artifact = want(planned.stages[until])
    for name in _needed(planned, until):
        store.remember_inputs(unit.id, name, planned.stages[name].inputs)
    return Report(artifact, tuple(built), image_of(unit, artifact, store) if until == "image" else None)


def _needed(planned: PlannedUnit, stage: str) -> set[str]:
    """A stage and all below it; all stages for an image, which nothing unqualified becomes."""
    if stage == "image":
        return set(planned.stages)
    return {stage}.union(*(_needed(planned, below) for below in planned.stages[stage].below))


def _refuse(planned: PlannedUnit, until: str) -> None:
    unit = planned.unit
    for finding in planned.findings:
        if finding.severity == "refuse":
            raise PlanRefused(finding.message, where=finding.where, hint=finding.suggestion, code=finding.code)
    if until not in planned.stages:
        raise PlanRefused(
            f"{unit.id} has no stage {until}", why=f"its stages are {', '.join(planned.stages)}", code="NO_STAGE"
        )
    if reason := obstacle(planned, until):
        raise PlanRefused(f"this machine can't build {unit.id}", why=reason, hint="build it there", code="NOT_HERE")
    needed = names_needed(unit.recipe, unit.target)
    if until in ("checkpoint", "qualify"):  # no image has a part in them
        needed -= {unit.toolchain.build_image, unit.toolchain.serving_image, unit.package.base}
    for item in unit.lock.unresolved:
        if item.name in needed:
            raise SourceError(
                f"{unit.id} needs {item.name}, which isn't pinned",
                where=unit.recipe.lock_file,
                why=item.reason,
                hint="make it reachable, then run `engine-builder lock`",
                code="UNRESOLVED",
            )
