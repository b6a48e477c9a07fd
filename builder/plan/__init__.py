"""The plan: units, their stages with keys, what is known to fail, and what is already built."""

from builder.plan.keys import StagePlan, difference, key
from builder.plan.memory import MemoryEstimate, estimate
from builder.plan.plan import PlannedUnit, StageState, match_units, plan_units, stage_states
from builder.plan.rules import Finding
from builder.plan.unit import Unit

__all__ = [
    "Finding",
    "MemoryEstimate",
    "PlannedUnit",
    "StagePlan",
    "StageState",
    "Unit",
    "difference",
    "estimate",
    "key",
    "match_units",
    "plan_units",
    "stage_states",
]
