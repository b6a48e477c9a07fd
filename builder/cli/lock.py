"""`engine-builder lock`: pin what recipes name outside."""

from __future__ import annotations

from pathlib import Path

import click

from builder.cli.options import format_option, print_json, recipe_option, store_option
from builder.cli.progress import Progress
from builder.errors import SourceError, UsageError
from builder.lock import Lock, load_lock
from builder.lock.drift import Check, check_lock
from builder.lock.making import Findings, make_lock
from builder.recipe import Recipe, load_recipe
from builder.selection import find_recipes
from builder.store import LocalStore, default_store_root


@click.command()
@recipe_option
@store_option
@click.option("--check", is_flag=True, help="Write nothing; fail if the outside has changed, and say what.")
@click.option(
    "--upgrade", is_flag=True, help="Pin anew what is pinned already; images that can't be reached stay as pinned."
)
@format_option
def command(recipe: Path, store: Path | None, check: bool, upgrade: bool, form: str) -> None:
    """Pin the model's commit, files and tensors, images, calibration texts and templates, in NAME.lock.json."""
    if check and upgrade:
        raise UsageError("--check and --upgrade exclude each other", hint="check first, then upgrade")
    if form == "json" and not check:
        raise UsageError("--format json belongs to --check", hint="the lock file itself is JSON")
    local, progress = LocalStore(store or default_store_root()), Progress()
    recipes = [load_recipe(file) for file in find_recipes(recipe)]
    if check:
        checks = [(item, _check(item, local, progress)) for item in recipes]
        _report(checks, form)
        return
    for item in recipes:
        _pin(item, local, progress, upgrade)


def _pin(recipe: Recipe, store: LocalStore, progress: Progress, upgrade: bool) -> None:
    before = _before(recipe, upgrade)
    if before and not upgrade and before.covers(recipe) and not before.unresolved:
        click.echo(f"{recipe.lock_file}: up to date", err=True)
        return
    name, findings = recipe.content.name, Findings()
    advance = progress.stage(name, "lock", None)
    lock = make_lock(recipe, store, advance, keep=before, mode="refresh" if upgrade else "fill", findings=findings)
    progress.done(name, "lock", "looked up")
    lock.write(recipe.lock_file)
    click.echo(f"{recipe.lock_file}: written", err=True)
    for item in findings.kept:
        click.echo(f"  kept as pinned  {item.name}: {item.reason}", err=True)
    for item in lock.unresolved:
        click.echo(f"  unresolved  {item.name}: {item.reason}", err=True)


def _before(recipe: Recipe, upgrade: bool) -> Lock | None:
    try:
        return load_lock(recipe.lock_file)
    except SourceError:
        if upgrade:  # a damaged or outdated lock is what --upgrade mends
            return None
        raise


def _check(recipe: Recipe, store: LocalStore, progress: Progress) -> Check:
    name = recipe.content.name
    result = check_lock(recipe, store, progress.stage(name, "lock", None))
    progress.done(name, "lock", "compared")
    return result


def _report(checks: list[tuple[Recipe, Check]], form: str) -> None:
    if form == "json":
        print_json({"schema": 1, "locks": [_as_json(recipe, check) for recipe, check in checks]})
    for recipe, check in checks:
        for item in check.unchecked:
            click.echo(f"{recipe.lock_file}: not checked: {item.name}: {item.reason}", err=True)
        if not check.changes:
            click.echo(f"{recipe.lock_file}: no drift", err=True)
    drifted = [(recipe, check) for recipe, check in checks if check.changes]
    if drifted:
        classes = list(dict.fromkeys(name for _, check in drifted for name in check.classes))
        texts = {recipe.lock_file: "; ".join([*map(str, check.changes), *check.moved]) for recipe, check in drifted}
        raise SourceError(
            f"the outside has drifted from the lock: {', '.join(classes)}",
            where=", ".join(map(str, texts)),
            why=" | ".join(texts.values()) if len(texts) == 1 else " | ".join(f"{k}: {v}" for k, v in texts.items()),
            hint="look at the changes, then run `engine-builder lock --upgrade`",
            code="DRIFT",
        )
    for recipe, check in checks:
        if not check.complete:
            raise SourceError(
                "not everything that is pinned could be compared",
                where=recipe.lock_file,
                why="; ".join(f"{item.name}: {item.reason}" for item in check.unchecked),
                hint="run it again where these can be reached",
                code="NOT_CHECKED",
            )


def _as_json(recipe: Recipe, check: Check) -> dict[str, object]:
    return {
        "recipe": str(recipe.file),
        "lock": str(recipe.lock_file),
        "drift": [change.to_json() for change in check.changes],
        "revisions": list(check.moved),
        "unchecked": [vars(item) for item in check.unchecked],
    }
