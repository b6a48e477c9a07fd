"""What this machine can build."""

from __future__ import annotations

from builder.plan import PlannedUnit


def obstacle(planned: PlannedUnit) -> str | None:
    """Why this machine can't build a unit; None if it can."""
    if not planned.unit.gpu.is_cpu:
        return f"needs {planned.unit.gpu.product} and {planned.unit.toolchain.name}"
    return None
