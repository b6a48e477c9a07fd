"""`engine-builder plan`: what there is to do, and what is known to fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from builder.build.machine import obstacle
from builder.build.preparation import prepare
from builder.cli.options import format_option, frozen_option, print_json, recipe_option, store_option, unit_option
from builder.cli.progress import Progress
from builder.errors import PlanRefused
from builder.plan import PlannedUnit, StageState, match_units, stage_states
from builder.store import LocalStore, default_store_root


@click.command()
@recipe_option
@unit_option
@store_option
@frozen_option
@format_option
def command(recipe: Path, units: tuple[str, ...], store: Path | None, frozen: bool, form: str) -> int:
    """Show units, their stages with hit or miss and why, and findings. Exit code 3 if a unit is refused."""
    local = LocalStore(store or default_store_root())
    planned = match_units(prepare(recipe, local, frozen, Progress()), units)
    states = [stage_states(item, local) for item in planned]
    if form == "json":
        print_json({"schema": 1, "units": [_unit(item, state) for item, state in zip(planned, states, strict=True)]})
    else:
        for item, state in zip(planned, states, strict=True):
            _show(item, state)
    return PlanRefused.exit_code if any(item.refused for item in planned) else 0


def _show(planned: PlannedUnit, states: dict[str, StageState]) -> None:
    here = obstacle(planned)
    click.echo(f"{planned.unit.id}" + (f"  ({here})" if here else ""))
    for name, state in states.items():
        click.echo(f"  {name:<11}" + ("up to date" if state.artifact else f"to do: {state.reason}"))
    for finding in planned.findings:
        click.echo(f"  {finding.severity} {finding.code}: {finding.message}")
        click.echo(f"    where: {finding.where}\n    try: {finding.suggestion}")


def _unit(planned: PlannedUnit, states: dict[str, StageState]) -> dict[str, Any]:
    return {
        "id": planned.unit.id,
        "sku": planned.unit.gpu.name,
        "toolchain": planned.unit.toolchain.name,
        "buildable_here": obstacle(planned) is None,
        "refused": planned.refused,
        "stages": {
            name: {
                "derivation": planned.stages[name].derivation,
                "hit": state.artifact is not None,
                "reason": state.reason or None,
                "artifact": state.artifact.digest if state.artifact else None,
            }
            for name, state in states.items()
        },
        "findings": [vars(finding) for finding in planned.findings],
    }
