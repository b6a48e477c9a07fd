"""`engine-builder pull`: a unit of a release as a folder."""

from __future__ import annotations

from pathlib import Path

import click

from builder.cli.options import format_option, print_json
from builder.cli.progress import Progress
from builder.oci.reference import Reference
from builder.registry.pull import Pulled, pull


@click.command()
@click.argument("reference")
@click.argument("destination", type=click.Path(path_type=Path, file_okay=False))
@click.option("--unit", metavar="GLOB", help="Which unit, by id or SKU. [default: the first of the release]")
@format_option
def command(reference: str, destination: Path, unit: str | None, form: str) -> None:
    """Fetch one unit of a release, HOST/REPO[:TAG|@DIGEST] or oci:DIR[:TAG], into the folder DESTINATION."""
    pulled = pull_with_progress(Reference.parse(reference), destination, unit)
    if form == "json":
        folder = {"folder": str(pulled.folder), "digest": pulled.digest, "unit": pulled.unit, "fresh": pulled.fresh}
        print_json({"schema": 1, **folder})
    else:
        click.echo(f"{pulled.folder}  {pulled.unit}  {pulled.digest}  {'pulled' if pulled.fresh else 'up to date'}")


def pull_with_progress(reference: Reference, destination: Path, unit: str | None) -> Pulled:
    progress = Progress()
    name = str(reference)
    advance = progress.stage(name, "pull", None)

    def announce(size: int) -> None:
        nonlocal advance
        advance = progress.stage(name, "pull", size)

    pulled = pull(reference, destination, unit=unit, announce=announce, advance=lambda count: advance(count))
    progress.done(name, "pull", "unpacked" if pulled.fresh else "up to date")
    return pulled
