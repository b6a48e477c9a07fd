"""From recipes and locks to planned units, and from a store to what of them is already there."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from builder.errors import UsageError
from builder.model.snapshot import FileKind
from builder.plan.keys import StagePlan, difference, key, plan_stage
from builder.plan.rules import Finding, check
from builder.plan.unit import Unit
from builder.store import Artifact, LocalStore

RuntimeDigest = Callable[[str], str]
"""The digest of what the runtime layer for a Python version ("3.11") would hold."""


@dataclass(frozen=True)
class PlannedUnit:
    unit: Unit
    stages: Mapping[str, StagePlan]
    findings: tuple[Finding, ...]

    @property
    def refused(self) -> bool:
        return any(finding.severity == "refuse" for finding in self.findings)


@dataclass(frozen=True)
class StageState:
    """Whether a stage's output is in the store; if not, why."""

    artifact: Artifact | None
    reason: str


def plan_units(units: Iterable[Unit], runtime_digest: RuntimeDigest) -> list[PlannedUnit]:
    return [PlannedUnit(unit, _stages(unit, runtime_digest), tuple(check(unit))) for unit in units]


def match_units(units: Iterable[PlannedUnit], patterns: Iterable[str]) -> list[PlannedUnit]:
    """The units that one of the globs names; all without a glob. Raises UsageError for a glob that names none."""
    units, patterns = list(units), list(patterns)
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(planned.unit.id, pattern) for planned in units):
            known = "\n       ".join(planned.unit.id for planned in units)
            raise UsageError(
                f"no unit matches {pattern!r}", hint=f"the units are:\n       {known}", code="UNKNOWN_UNIT"
            )
    if not patterns:
        return units
    return [p for p in units if any(fnmatch.fnmatchcase(p.unit.id, pattern) for pattern in patterns)]


def stage_states(planned: PlannedUnit, store: LocalStore) -> dict[str, StageState]:
    """For each stage: the sealed artifact, or the reason why there is none."""
    states: dict[str, StageState] = {}
    for name, stage in planned.stages.items():
        artifact = store.find(name, stage.derivation)
        below = {lower: states[lower].artifact for lower in stage.below}
        made = {lower: found.digest for lower, found in below.items() if found}
        if artifact is None and len(made) == len(below):
            artifact = store.get(name, key(name, stage.inputs, made))
        states[name] = StageState(artifact, "" if artifact else _reason(planned.unit, stage, store, states))
    return states


def _reason(unit: Unit, stage: StagePlan, store: LocalStore, states: Mapping[str, StageState]) -> str:
    before = store.history(unit.id, stage.stage)
    if before is None:
        return "not built yet"
    if changes := difference(before, stage.inputs):
        return ", ".join(changes)
    missing = [name for name in stage.below if states[name].artifact is None]
    return f"{' and '.join(missing)} will be made anew" if missing else "no longer in the store"


def _stages(unit: Unit, runtime_digest: RuntimeDigest) -> dict[str, StagePlan]:
    limits, parallelism, serving = unit.limits, unit.parallelism, unit.serving
    checkpoint = plan_stage(
        "checkpoint",
        {"dtype": unit.precision.dtype, "tensor": parallelism.tensor, "pipeline": parallelism.pipeline},
        _files(unit, "weights") | _files(unit, "config", only="config.json"),
        {},
    )
    engine = plan_stage(
        "engine",
        {
            "sku": unit.gpu.name,
            "toolchain": {
                "name": unit.toolchain.name,
                "tensorrt": unit.toolchain.tensorrt,
                "cuda": unit.toolchain.cuda,
            },
            "max_batch_size": limits.max_batch_size,
            "max_input_len": unit.max_input_len,
            "max_seq_len": limits.max_seq_len,
            "max_num_tokens": limits.max_num_tokens,
            "max_beam_width": limits.max_beam_width,
        },
        {},
        {"checkpoint": checkpoint},
    )
    repository = plan_stage(
        "repository",
        {
            "unit": unit.id,
            "backend": unit.toolchain.backend,
            "served_model_name": unit.served_model_name,
            "family": serving.family,
            "kv_cache_free_gpu_mem_fraction": serving.kv_cache_free_gpu_mem_fraction,
            "enable_kv_cache_reuse": serving.enable_kv_cache_reuse,
            "max_queue_size": serving.max_queue_size,
            "max_batch_size": limits.max_batch_size,
            "max_input_len": unit.max_input_len,
            "max_seq_len": limits.max_seq_len,
            "max_beam_width": limits.max_beam_width,
        },
        _files(unit, "tokenizer") | _files(unit, "config"),
        {},
    )
    image = plan_stage(
        "image", _image_parameters(unit, runtime_digest), {}, {"engine": engine, "repository": repository}
    )
    return {"checkpoint": checkpoint, "engine": engine, "repository": repository, "image": image}


def _image_parameters(unit: Unit, runtime_digest: RuntimeDigest) -> dict[str, object]:
    content = unit.recipe.content
    parameters: dict[str, object] = {
        "unit": unit.id,
        "platform": unit.gpu.platform,
        "title": content.name,
        "version": content.version,
        "license": content.model.license,
    }
    if base := unit.lock.bases.get(unit.package.base):
        parameters |= {"base": base.digest, "runtime": runtime_digest(base.python)}
    elif unit.package.base != "none":
        parameters["base"] = f"{unit.package.base}, unresolved"
    return parameters


def _files(unit: Unit, kind: FileKind, only: str | None = None) -> dict[str, str]:
    files = unit.lock.snapshot.of_kind(kind)
    return {file.path: file.sha256 for file in files if only is None or file.path == only}
