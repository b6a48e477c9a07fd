"""`engine-builder validate`: are the recipes well-formed?"""

from __future__ import annotations

from pathlib import Path

import click

from builder.cli.options import format_option, print_json, recipe_option
from builder.recipe import load_recipe
from builder.selection import find_recipes


@click.command()
@recipe_option
@format_option
def command(recipe: Path, form: str) -> None:
    """Check recipes without asking anything outside."""
    recipes = [load_recipe(file) for file in find_recipes(recipe)]
    if form == "json":
        valid = [{"recipe": str(item.file), "name": item.content.name} for item in recipes]
        print_json({"schema": 1, "valid": valid})
    else:
        for item in recipes:
            click.echo(f"{item.file}: valid, {len(item.content.targets)} targets")
