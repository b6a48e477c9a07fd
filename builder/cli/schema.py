"""`engine-builder schema`: the format of recipes, for editors and for people."""

from __future__ import annotations

import click

from builder.recipe.documents import json_schema_text, reference_text


@click.command()
@click.option(
    "--format", "form", type=click.Choice(["json", "markdown"]), default="json", show_default=True,
    help="JSON Schema for editors and checkers, or the reference that people read.",
)  # fmt: skip
def command(form: str) -> None:
    """Print the JSON Schema of recipes, or the recipe reference."""
    click.echo(json_schema_text() if form == "json" else reference_text(), nl=False)
