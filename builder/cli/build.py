"""`engine-builder build`: make what isn't made yet."""

from __future__ import annotations

from pathlib import Path

import click

from builder.build.loop import Report, build_unit
from builder.build.machine import obstacle
from builder.build.preparation import model_files, prepare
from builder.build.stages import STAGES
from builder.cli.options import format_option, frozen_option, print_json, recipe_option, store_option, unit_option
from builder.cli.progress import Progress
from builder.errors import BuilderError, PlanRefused, worst
from builder.plan import match_units
from builder.store import LocalStore, default_store_root


@click.command()
@recipe_option
@unit_option
@store_option
@frozen_option
@click.option(
    "--until",
    type=click.Choice([*STAGES]),
    default="image",
    help="the last stage to make; checkpoints of GPU units can be made and qualified without a GPU",
)
@format_option
def command(recipe: Path, units: tuple[str, ...], store: Path | None, frozen: bool, until: str, form: str) -> int:
    """Build what isn't built yet: without --unit, every unit that this machine can build."""
    local = LocalStore(store or default_store_root())
    progress = Progress()
    planned = match_units(prepare(recipe, local, frozen, progress), units)
    if not units:
        for item in planned:
            if reason := obstacle(item, until):
                click.echo(f"  not here    {item.unit.id}  {reason}", err=True)
        planned = [item for item in planned if obstacle(item, until) is None]
        if not planned:
            raise PlanRefused("this machine can build none of the units", hint="see `engine-builder plan`")
    reports: dict[str, Report] = {}
    failures = []
    for item in planned:
        try:
            reports[item.unit.id] = build_unit(item, local, model_files(item, local), progress, until)
        except BuilderError as error:
            progress.done(item.unit.id, "build", "failed")
            click.echo(error.render(), err=True)
            failures.append(error.exit_code)
    _show(reports, form)
    return worst(failures)


def _show(reports: dict[str, Report], form: str) -> None:
    if form == "json":
        print_json({"schema": 1, "units": [_entry(unit, report) for unit, report in reports.items()]})
        return
    for unit, report in reports.items():
        result = report.image.digest if report.image else report.artifact.files
        click.echo(f"{unit}  {result}  {'built' if report.built else 'up to date'}")


def _entry(unit: str, report: Report) -> dict[str, object]:
    made = {"image": report.image.digest} if report.image else {"artifact": str(report.artifact.root)}
    return {"id": unit, **made, "built": report.built}
