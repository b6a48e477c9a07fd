"""`engine-builder build`: make what isn't made yet."""

from __future__ import annotations

from pathlib import Path

import click

from builder.build.loop import Report, build_unit
from builder.build.machine import obstacle
from builder.build.preparation import model_files, prepare
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
@format_option
def command(recipe: Path, units: tuple[str, ...], store: Path | None, frozen: bool, form: str) -> int:
    """Build what isn't built yet: without --unit, every unit that this machine can build."""
    local = LocalStore(store or default_store_root())
    progress = Progress()
    planned = match_units(prepare(recipe, local, frozen, progress), units)
    if not units:
        for item in planned:
            if reason := obstacle(item):
                click.echo(f"  not here    {item.unit.id}  {reason}", err=True)
        planned = [item for item in planned if obstacle(item) is None]
        if not planned:
            raise PlanRefused("this machine can build none of the units", hint="see `engine-builder plan`")
    reports: dict[str, Report] = {}
    failures = []
    for item in planned:
        try:
            reports[item.unit.id] = build_unit(item, local, model_files(item, local), progress)
        except BuilderError as error:
            progress.done(item.unit.id, "build", "failed")
            click.echo(error.render(), err=True)
            failures.append(error.exit_code)
    _show(reports, form)
    return worst(failures)


def _show(reports: dict[str, Report], form: str) -> None:
    if form == "json":
        units = [{"id": unit, "image": report.image.digest, "built": report.built} for unit, report in reports.items()]
        print_json({"schema": 1, "units": units})
        return
    for unit, report in reports.items():
        click.echo(f"{unit}  {report.image.digest}  {'built' if report.built else 'up to date'}")
