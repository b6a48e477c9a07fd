"""What this machine can build."""

from __future__ import annotations

from builder.plan import PlannedUnit


def obstacle(planned: PlannedUnit, until: str = "image") -> str | None:
    """Why this machine can't build a unit up to a stage; None if it can."""
    unit = planned.unit
    if unit.gpu.is_cpu or until == "repository":
        return None
    if until not in ("checkpoint", "qualify"):
        return f"needs {unit.gpu.product} and {unit.toolchain.name}"
    if unit.maker == "toolchain":
        return f"its checkpoint is made in the image of {unit.toolchain.name}"
    return None
