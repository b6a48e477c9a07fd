"""`engine-builder plan`: what there is to do, and what is known to fail."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder.build.overview import UnitOverview, overview
from builder.cli.options import (
    frozen_option,
    human_bytes,
    print_json,
    pull_seconds,
    recipe_option,
    store_option,
    unit_option,
)
from builder.cli.progress import Progress
from builder.errors import PlanRefused
from builder.selection import matching_ids
from builder.store import LocalStore, default_store_root

if TYPE_CHECKING:
    from builder.plan import Change
    from builder.plan.since import Comparison

Finding = Mapping[str, Any]

SCHEMA = 1
"""Of the JSON; described in docs/plan.schema.json."""

MAX_MATRIX = 256
"""Jobs that GitHub runs from one matrix. https://docs.github.com/actions/reference/limits, 2026-11-30."""


@click.command()
@recipe_option
@unit_option
@store_option
@frozen_option
@click.option("--since", metavar="REV", help="List only units that changed since a git revision.")
@click.option(
    "--bandwidth", type=click.FloatRange(min=0, min_open=True), default=100, show_default=True, metavar="MB/S",
    help="Of a node's link to the registry, to estimate how long a pull takes.",
)  # fmt: skip
@click.option("--format", "form", type=click.Choice(["text", "json", "github"]), default="text", show_default=True)
def command(
    recipe: Path,
    units: tuple[str, ...],
    store: Path | None,
    frozen: bool,
    since: str | None,
    bandwidth: float,
    form: str,
) -> int:
    """Show units, their stages with hit or miss and why, and findings. Exit code 3 if a unit is refused.

    With --format github: a job matrix of what there is to build, for `matrix:` of a workflow.
    """
    local = LocalStore(store or default_store_root())
    plan = overview(recipe, local, frozen, Progress())
    selected = matching_ids([unit.id for unit in plan], units)
    plan = [unit for unit in plan if unit.id in selected]
    comparison = None
    if since is not None:
        from builder.build.preparation import stages_at
        from builder.plan.since import compare

        comparison = compare(stages_at(since, recipe), {unit.id: unit.stage_plans() for unit in plan})
        plan = [unit for unit in plan if unit.id in comparison.affected]
    if form == "json":
        print_json(_document(plan, comparison, bandwidth))
    elif form == "github":
        click.echo(json.dumps(_matrix(plan), separators=(",", ":")))
    else:
        _show(plan, comparison, bandwidth)
    return PlanRefused.exit_code if any(unit.refused for unit in plan) else 0


def _changes(plan: Sequence[UnitOverview]) -> list[Change]:
    if not any(stage.changes for unit in plan for stage in unit.stages.values()):
        return []
    from builder.plan import Changed, group_changes

    return group_changes(
        Changed(
            unit.id,
            {name: stage.changes for name, stage in unit.stages.items()},
            frozenset(name for name, stage in unit.stages.items() if stage.artifact),
        )
        for unit in plan
    )


def _show(plan: Sequence[UnitOverview], comparison: Comparison | None, bandwidth: float) -> None:
    shared: dict[tuple[str, ...], list[Finding]] = defaultdict(list)
    for unit in plan:
        for finding in unit.findings:
            shared[_words(finding)].append(finding)
    for unit in plan:
        click.echo(f"{unit.id}" + (f"  ({unit.obstacle})" if unit.obstacle else ""))
        for state, names in _by_state(unit).items():
            click.echo(f"  {', '.join(names)}: {state}")
        if unit.sizes:
            download, checkpoint, image = (unit.sizes[f"{name}_bytes"] for name in ("download", "checkpoint", "image"))
            click.echo(
                f"  sizes: download {human_bytes(download)}, checkpoint {human_bytes(checkpoint)}, image "
                f"{human_bytes(image)} (a pull takes {pull_seconds(image, bandwidth):,} s at {bandwidth:g} MB/s), "
                f"disk to build {human_bytes(unit.sizes['disk_bytes'][1])}"
            )
        for finding in unit.findings:
            if len(shared[_words(finding)]) == 1:
                _show_finding(finding)
    for found in shared.values():
        if len(found) > 1:
            click.echo(f"of {len(found)} units")
            _show_finding(found[0])
    for change in _changes(plan):
        click.echo(str(change))
    if comparison is not None:
        _show_comparison(comparison)


def _by_state(unit: UnitOverview) -> dict[str, list[str]]:
    states: dict[str, list[str]] = defaultdict(list)
    for name, stage in unit.stages.items():
        states["up to date" if stage.artifact else f"to do, {stage.reason}"].append(name)
    return states


def _words(finding: Finding) -> tuple[str, ...]:
    """What a finding says, whatever unit it is of: said once for all units that have it."""
    return (finding["code"], finding["severity"], finding["message"], finding["where"])


def _show_finding(finding: Finding) -> None:
    waived = f" (waived: {finding['waived']})" if finding["waived"] else ""
    click.echo(f"  {finding['severity']} {finding['code']}: {finding['message']}{waived}")
    click.echo(f"    where: {finding['where']}\n    try: {finding['suggestion']}")


def _show_comparison(comparison: Comparison) -> None:
    for name in comparison.added:
        click.echo(f"new: {name}")
    for name, stages in comparison.changed.items():
        what = sorted({change for stage in stages.values() for change in stage})
        click.echo(f"changed: {name}: {', '.join(stages)}" + (f" ({', '.join(what)})" if what else ""))
    for name in comparison.removed:
        click.echo(f"removed: {name}")
    if not (comparison.affected or comparison.removed):
        click.echo("no unit is affected")


def _document(plan: Sequence[UnitOverview], comparison: Comparison | None, bandwidth: float) -> dict[str, Any]:
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "units": [_unit(unit, bandwidth) for unit in plan],
        "changes": [vars(change) for change in _changes(plan)],
    }
    if comparison is not None:
        document["since"] = vars(comparison)
    return document


def _unit(unit: UnitOverview, bandwidth: float) -> dict[str, Any]:
    return {
        "id": unit.id,
        "recipe": unit.recipe,
        "sku": unit.sku,
        "gpus": unit.gpus,
        "toolchain": unit.toolchain,
        "flow": unit.flow,
        "buildable_here": unit.obstacle is None,
        "refused": unit.refused,
        "stages": {
            name: {
                "derivation": stage.derivation,
                "hit": stage.artifact is not None,
                "reason": stage.reason or None,
                "artifact": stage.artifact,
            }
            for name, stage in unit.stages.items()
        },
        "sizes": unit.sizes
        and {
            **unit.sizes,
            "pull_mb_per_s": bandwidth,
            "pull_seconds": pull_seconds(unit.sizes["image_bytes"], bandwidth),
        },
        "findings": unit.findings,
    }


def _matrix(plan: Sequence[UnitOverview]) -> dict[str, Any]:
    """One job for each unit that has something to do; what is refused isn't a job."""
    jobs = [
        {
            "unit": unit.id,
            "recipe": unit.recipe,
            "sku": unit.sku,
            "toolchain": unit.toolchain,
            "runner": unit.runner,
            "stages": unit.to_do,
        }
        for unit in plan
        if unit.to_do and not unit.refused
    ]
    if len(jobs) > MAX_MATRIX:
        click.echo(
            f"{len(jobs)} jobs; GitHub runs at most {MAX_MATRIX} from one matrix: select some with --unit", err=True
        )
    return {"include": jobs}
