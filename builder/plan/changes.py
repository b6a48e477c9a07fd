"""What a change means, over all units: "limits.max_batch_size 64 → 128 changes the engine of 3 units"."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_REUSABLE = ("checkpoint", "engine", "repository")


@dataclass(frozen=True)
class Change:
    """One changed input: the stages that it is an input of, the units, and the stages that all of them keep."""

    what: str
    stages: tuple[str, ...]
    units: tuple[str, ...]
    reused: tuple[str, ...]

    def __str__(self) -> str:
        count = f"{len(self.units)} unit" + ("s" if len(self.units) > 1 else "")
        kept = [stage.replace("repository", "repositorie") + "s" for stage in self.reused]
        text = f"{self.what} changes the {' and '.join(self.stages)} of {count}"
        return text + (f"; {' and '.join(kept)} are reused" if kept else "")


@dataclass(frozen=True)
class Changed:
    """One unit: what changed of each stage's inputs since its last build, and the stages that are up to date."""

    unit: str
    stages: Mapping[str, tuple[str, ...]]
    kept: frozenset[str]


def group_changes(units: Iterable[Changed]) -> list[Change]:
    """What changed since the last build of each unit, grouped by the change."""
    stages: dict[str, dict[str, None]] = defaultdict(dict)
    touched: dict[str, dict[str, frozenset[str]]] = defaultdict(dict)
    for unit in units:
        for stage, changes in unit.stages.items():
            for what in changes:
                stages[what][stage] = None
                touched[what][unit.unit] = unit.kept
    return [
        Change(
            what,
            tuple(names),
            tuple(touched[what]),
            tuple(stage for stage in _REUSABLE if all(stage in kept for kept in touched[what].values())),
        )
        for what, names in stages.items()
    ]
