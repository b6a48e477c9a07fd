"""`engine-builder list`: what is published."""

from __future__ import annotations

import click

from builder.cli.options import format_option, print_json
from builder.oci.reference import Reference
from builder.registry.inspect import list_releases


@click.command()
@click.argument("repository")
@format_option
def command(repository: str, form: str) -> None:
    """List the releases of REPOSITORY (HOST/REPO or oci:DIR), oldest version first."""
    releases = list_releases(Reference.parse(repository))
    if form == "json":
        print_json({"schema": 1, "releases": releases})
        return
    for release in releases:
        click.echo(f"{release['tag']}  {release['digest']}")
        for unit in release["units"]:
            click.echo(f"  {unit['unit']}  {unit['digest']}")
