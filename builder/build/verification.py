"""What is in the store, held against what it was made from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from builder.build.loop import Fetch
from builder.build.reporter import Reporter
from builder.checkpoint.verification import verify
from builder.errors import PlanRefused
from builder.model.snapshot import FileKind
from builder.plan import PlannedUnit
from builder.store import Artifact, LocalStore, hash_file


@dataclass(frozen=True)
class Verified:
    """The checkpoint of a unit. `faults` are sentences, empty where all is right; `facts` what was compared."""

    artifact: Artifact
    faults: tuple[str, ...]
    facts: dict[str, Any]


def verify_unit(planned: PlannedUnit, store: LocalStore, fetch: Fetch, reporter: Reporter) -> Verified:
    """The checkpoint of a unit: its files as they were sealed, and where they are TensorRT-LLM's, every tensor.

    What was found out is kept as a fact of the artifact. PlanRefused NOT_BUILT where there is no checkpoint yet.
    """
    unit, stage = planned.unit, planned.stages["checkpoint"]
    artifact = store.find("checkpoint", stage.derivation)
    if artifact is None:
        raise PlanRefused(
            f"{unit.id} has no checkpoint yet",
            hint=f"engine-builder build --unit {unit.id} --until checkpoint",
            code="NOT_BUILT",
        )
    faults = _damaged(artifact, reporter, unit.id)
    facts: dict[str, Any] = {"files": len(artifact.entries), "bytes": artifact.size}
    if not faults and unit.flow == "engine" and unit.maker != "toolchain":
        kinds: tuple[FileKind, ...] = ("weights", "config")
        size = sum(file.size for file in unit.lock.snapshot.of_kind(*kinds))
        source = fetch(kinds, reporter.stage(unit.id, "fetch", size))
        advance = reporter.stage(unit.id, "verify", None)
        report = verify(artifact.files, source, unit.spec, dtype=unit.dtype, advance=advance)
        faults = report.faults
        facts |= report.to_json()
    store.note(artifact, {"verification": {**facts, "faults": list(faults)}})
    return Verified(artifact, faults, facts)


def _damaged(artifact: Artifact, reporter: Reporter, unit: str) -> tuple[str, ...]:
    advance = reporter.stage(unit, "digests", artifact.size)
    return tuple(
        f"{entry.path} isn't what was sealed: sha256 {found[:12]}, expected {entry.sha256[:12]}"
        for entry in artifact.entries
        if (found := hash_file(artifact.files / entry.path, advance).sha256) != entry.sha256
    )
