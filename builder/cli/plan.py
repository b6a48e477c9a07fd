"""`engine-builder plan`: what there is to do, and what is known to fail."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from builder.build.machine import obstacle
from builder.build.preparation import prepare, prepare_at
from builder.cli.options import frozen_option, human_bytes, print_json, recipe_option, store_option, unit_option
from builder.cli.progress import Progress
from builder.errors import PlanRefused
from builder.plan import Finding, PlannedUnit, StageState, changes, match_units, sizes, stage_states
from builder.plan.since import Comparison, compare
from builder.store import LocalStore, default_store_root

SCHEMA = 1
"""Of the JSON; described in docs/plan.schema.json."""

MAX_MATRIX = 256
"""Jobs that GitHub runs from one matrix. https://docs.github.com/actions/reference/limits, 2026-11-30."""

States = Mapping[str, StageState]


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
    planned = match_units(prepare(recipe, local, frozen, Progress()), units)
    comparison = None
    if since is not None:
        comparison = compare(prepare_at(since, recipe), planned)
        planned = [item for item in planned if item.unit.id in comparison.affected]
    plan = [(item, stage_states(item, local)) for item in planned]
    if form == "json":
        print_json(_document(plan, comparison, bandwidth))
    elif form == "github":
        click.echo(json.dumps(_matrix(plan), separators=(",", ":")))
    else:
        _show(plan, comparison, bandwidth)
    return PlanRefused.exit_code if any(item.refused for item in planned) else 0


def _show(plan: list[tuple[PlannedUnit, States]], comparison: Comparison | None, bandwidth: float) -> None:
    shared: dict[tuple[str, ...], list[Finding]] = defaultdict(list)
    for item, _ in plan:
        for finding in item.findings:
            shared[_words(finding)].append(finding)
    for item, states in plan:
        here = obstacle(item)
        click.echo(f"{item.unit.id}" + (f"  ({here})" if here else ""))
        for name, state in states.items():
            click.echo(f"  {name:<11}" + ("up to date" if state.artifact else f"to do: {state.reason}"))
        if estimated := sizes(item.unit):
            click.echo(
                f"  {'sizes':<11}download {human_bytes(estimated.download_bytes)}, "
                f"checkpoint {human_bytes(estimated.checkpoint_bytes)}, image {human_bytes(estimated.image_bytes)} "
                f"(a pull takes {estimated.pull_seconds(bandwidth):,.0f} s at {bandwidth:g} MB/s)"
            )
        for finding in item.findings:
            if len(shared[_words(finding)]) == 1:
                _show_finding(finding)
    for finding, units in ((found[0], found) for found in shared.values() if len(found) > 1):
        click.echo(f"{len(units)} units")
        _show_finding(finding)
    for change in changes(plan):
        click.echo(str(change))
    if comparison is not None:
        _show_comparison(comparison)


def _words(finding: Finding) -> tuple[str, ...]:
    """What a finding says, whatever unit it is of: said once for all units that have it."""
    return (finding.code, finding.severity, finding.message, finding.where)


def _show_finding(finding: Finding) -> None:
    waived = f" (waived: {finding.waived})" if finding.waived else ""
    click.echo(f"  {finding.severity} {finding.code}: {finding.message}{waived}")
    click.echo(f"    where: {finding.where}\n    try: {finding.suggestion}")


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


def _document(
    plan: list[tuple[PlannedUnit, States]], comparison: Comparison | None, bandwidth: float
) -> dict[str, Any]:
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "units": [_unit(item, states, bandwidth) for item, states in plan],
        "changes": [
            {"what": change.what, "stages": change.stages, "units": change.units, "reused": change.reused}
            for change in changes(plan)
        ],
    }
    if comparison is not None:
        document["since"] = {
            "added": comparison.added,
            "removed": comparison.removed,
            "changed": comparison.changed,
        }
    return document


def _unit(item: PlannedUnit, states: States, bandwidth: float) -> dict[str, Any]:
    unit = item.unit
    estimated = sizes(unit)
    return {
        "id": unit.id,
        "recipe": str(unit.recipe.file),
        "sku": unit.gpu.name,
        "gpus": unit.gpus,
        "toolchain": unit.toolchain.name,
        "flow": unit.flow,
        "buildable_here": obstacle(item) is None,
        "refused": item.refused,
        "stages": {
            name: {
                "derivation": item.stages[name].derivation,
                "hit": state.artifact is not None,
                "reason": state.reason or None,
                "artifact": state.artifact.digest if state.artifact else None,
            }
            for name, state in states.items()
        },
        "sizes": estimated.to_json(bandwidth) if estimated else None,
        "findings": [vars(finding) for finding in item.findings],
    }


def _matrix(plan: list[tuple[PlannedUnit, States]]) -> dict[str, Any]:
    """One job for each unit that has something to do; what is refused isn't a job."""
    jobs = []
    for item, states in plan:
        to_do = [name for name, state in states.items() if state.artifact is None]
        unit = item.unit
        if item.refused or not to_do:
            continue
        labels = unit.settings.runner.labels or ("self-hosted", *(() if unit.gpu.is_cpu else ("gpu",)), unit.gpu.name)
        jobs.append(
            {
                "unit": unit.id,
                "recipe": str(unit.recipe.file),
                "sku": unit.gpu.name,
                "toolchain": unit.toolchain.name,
                "runner": list(labels),
                "stages": to_do,
            }
        )
    if len(jobs) > MAX_MATRIX:
        click.echo(
            f"{len(jobs)} jobs; GitHub runs at most {MAX_MATRIX} from one matrix: select some with --unit", err=True
        )
    return {"include": jobs}
