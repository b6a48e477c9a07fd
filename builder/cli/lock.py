"""`engine-builder lock`: pin what recipes name outside."""

from __future__ import annotations

from pathlib import Path

import click

from builder.cli.options import recipe_option, store_option
from builder.cli.progress import Progress
from builder.errors import SourceError
from builder.lock import load_lock, make_lock
from builder.recipe import find_recipes, load_recipe
from builder.store import LocalStore, default_store_root


@click.command()
@recipe_option
@store_option
@click.option("--check", is_flag=True, help="Write nothing; fail if the outside has changed.")
@click.option("--upgrade", is_flag=True, help="Pin anew what is pinned already.")
def command(recipe: Path, store: Path | None, check: bool, upgrade: bool) -> None:
    """Pin the model's commit and files, and base images, in NAME.lock.json beside each recipe."""
    local = LocalStore(store or default_store_root())
    progress = Progress()
    for file in find_recipes(recipe):
        item = load_recipe(file)
        before = None if upgrade else load_lock(item.lock_file)
        if before and before.covers(item) and not check:
            click.echo(f"{item.lock_file}: up to date", err=True)
            continue
        now = make_lock(item, local, progress.stage(item.content.name, "lock", None))
        progress.done(item.content.name, "lock", "looked up")
        if not check:
            now.write(item.lock_file)
            click.echo(f"{item.lock_file}: written", err=True)
        elif before is None:
            raise SourceError(
                "there is no lock", where=item.lock_file, hint="run `engine-builder lock`", code="NO_LOCK"
            )
        elif changes := before.drift(now):
            raise SourceError(
                "the outside has drifted from the lock",
                where=item.lock_file,
                why="; ".join(changes),
                hint="look at the changes, then run `engine-builder lock --upgrade`",
                code="DRIFT",
            )
        else:
            click.echo(f"{item.lock_file}: no drift", err=True)
