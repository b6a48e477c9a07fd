"""The plan: units, their stages with keys, what is known to fail, and what is already built."""

from builder.plan.changes import Change, Changed, group_changes
from builder.plan.findings import Finding, Problem, Rule, check
from builder.plan.keys import StagePlan, difference, key
from builder.plan.memory import MemoryEstimate, estimate, legal_estimate, sizes
from builder.plan.plan import PlannedUnit, StageState, match_units, plan_units, stage_states
from builder.plan.rules import RULES
from builder.plan.stages import RuntimeDigest, plan_stages
from builder.plan.unit import Unit, resolve_units

__all__ = [
    "RULES",
    "Change",
    "Changed",
    "Finding",
    "MemoryEstimate",
    "PlannedUnit",
    "Problem",
    "Rule",
    "RuntimeDigest",
    "StagePlan",
    "StageState",
    "Unit",
    "check",
    "difference",
    "estimate",
    "group_changes",
    "key",
    "legal_estimate",
    "match_units",
    "plan_stages",
    "plan_units",
    "resolve_units",
    "sizes",
    "stage_states",
]
