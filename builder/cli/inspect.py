"""`engine-builder inspect`: what a release contains."""

from __future__ import annotations

import click

from builder.cli.options import format_option, human_bytes, print_json
from builder.oci.reference import Reference
from builder.registry.inspect import inspect


@click.command()
@click.argument("reference")
@format_option
def command(reference: str, form: str) -> None:
    """Show the units, layers and settings of the release REFERENCE (HOST/REPO[:TAG|@DIGEST] or oci:DIR[:TAG])."""
    release = inspect(Reference.parse(reference))
    if form == "json":
        print_json({"schema": 1, **release})
        return
    click.echo(f"{release['reference']}  {release['digest']}")
    for image in release["images"]:
        click.echo(f"\n{image['unit'] or image['digest']}  {image['platform']}  {human_bytes(image['size'])}")
        click.echo(f"  {image['digest']}")
        for layer in image["layers"]:
            click.echo(f"  {layer['role']:<11}{human_bytes(layer['size']):>9}  {layer['digest']}")
        for name, value in sorted(image["annotations"].items()):
            click.echo(f"  {name}: {value}")
