"""What a change means, over all units: "limits.max_batch_size 64 → 128 changes the engine of 3 units"."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from builder.plan.plan import PlannedUnit, StageState


@dataclass(frozen=True)
class Change:
    """One changed input: the stages that it is an input of, the units, and the stages that all of them keep."""

    what: str
    stages: tuple[str, ...]
    units: tuple[str, ...]
    reused: tuple[str, ...]

    def __str__(self) -> str:
        count = f"{len(self.units)} unit" + ("s" if len(self.units) > 1 else "")
        text = f"{self.what} changes the {' and '.join(self.stages)} of {count}"
        return text + (f"; {' and '.join(f'{stage}s' for stage in self.reused)} are reused" if self.reused else "")


def changes(planned: Iterable[tuple[PlannedUnit, Mapping[str, StageState]]]) -> list[Change]:
    """What changed since the last build of each unit, grouped by the change."""
    stages: dict[str, list[str]] = defaultdict(list)
    units: dict[str, list[str]] = defaultdict(list)
    kept: dict[str, list[set[str]]] = defaultdict(list)
    for item, states in planned:
        reused = {name for name, state in states.items() if state.artifact}
        for name, state in states.items():
            for what in state.changes:
                if name not in stages[what]:
                    stages[what].append(name)
                if item.unit.id not in units[what]:
                    units[what].append(item.unit.id)
                    kept[what].append(reused)
    result = []
    for what, touched in stages.items():
        common = set.intersection(*kept[what])
        reused_names = tuple(name for name in ("checkpoint", "engine", "repository") if name in common)
        result.append(Change(what, tuple(touched), tuple(units[what]), reused_names))
    return result
