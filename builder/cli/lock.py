"""`engine-builder lock`: pin what recipes name outside."""

from __future__ import annotations

from pathlib import Path

import click

from builder.cli.options import recipe_option, store_option
from builder.cli.progress import Progress
from builder.errors import SourceError
from builder.lock import Lock, load_lock, make_lock, required_lock
from builder.recipe import Recipe, find_recipes, load_recipe
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
        if check:
            _check(item, local, progress)
            continue
        before = None if upgrade else load_lock(item.lock_file)
        if before and before.covers(item) and not before.unresolved:
            click.echo(f"{item.lock_file}: up to date", err=True)
            continue
        _look_up(item, local, progress, before).write(item.lock_file)
        click.echo(f"{item.lock_file}: written", err=True)


def _check(recipe: Recipe, store: LocalStore, progress: Progress) -> None:
    if changes := required_lock(recipe).drift(_look_up(recipe, store, progress, None)):
        raise SourceError(
            "the outside has drifted from the lock",
            where=recipe.lock_file,
            why="; ".join(changes),
            hint="look at the changes, then run `engine-builder lock --upgrade`",
            code="DRIFT",
        )
    click.echo(f"{recipe.lock_file}: no drift", err=True)


def _look_up(recipe: Recipe, store: LocalStore, progress: Progress, keep: Lock | None) -> Lock:
    name = recipe.content.name
    lock = make_lock(recipe, store, progress.stage(name, "lock", None), keep=keep)
    progress.done(name, "lock", "looked up")
    return lock
