"""The plan: units, their stages with keys, what is known to fail, and what is already built."""

from builder.plan.keys import StagePlan, difference, key
from builder.plan.memory import MemoryEstimate, estimate, legal_estimate
from builder.plan.plan import PlannedUnit, RuntimeDigest, StageState, match_units, plan_units, stage_states
from builder.plan.rules import Finding
from builder.plan.unit import Unit, resolve_units

__all__ = [
    "Finding",
    "MemoryEstimate",
    "PlannedUnit",
    "RuntimeDigest",
    "StagePlan",
    "StageState",
    "Unit",
    "difference",
    "estimate",
    "key",
    "legal_estimate",
    "match_units",
    "plan_units",
    "resolve_units",
    "stage_states",
]
