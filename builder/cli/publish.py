"""`engine-builder publish`: built units become a release."""

from __future__ import annotations

from pathlib import Path

import click

from builder.build.preparation import prepare
from builder.build.stages import image_of
from builder.cli.options import (
    format_option,
    frozen_option,
    print_json,
    recipe_option,
    registry_option,
    store_option,
    unit_option,
)
from builder.cli.progress import Progress
from builder.errors import StorageError, UsageError
from builder.image.image import Image
from builder.lock import recipe_reference
from builder.oci.reference import Reference
from builder.plan import match_units, stage_states
from builder.recipe import Recipe
from builder.registry.publish import Publication, publish, size_to_send
from builder.store import LocalStore, default_store_root


@click.command()
@recipe_option
@unit_option
@store_option
@registry_option
@frozen_option
@format_option
def command(
    recipe: Path, units: tuple[str, ...], store: Path | None, registry: str | None, frozen: bool, form: str
) -> None:
    """Publish every built unit of each recipe under its version; units can be added to a release, never changed."""
    local = LocalStore(store or default_store_root())
    progress = Progress()
    images: dict[Path, tuple[Recipe, list[Image]]] = {}
    missing = []
    for item in match_units(prepare(recipe, local, frozen, progress), units):
        artifact = stage_states(item.unit.id, item.stages, local)["image"].artifact
        if artifact is None:
            missing.append(item.unit.id)
        else:
            found = images.setdefault(item.unit.recipe.file, (item.unit.recipe, []))
            found[1].append(image_of(item.unit, artifact, local))
    _tell(missing, needed=bool(units) or not images)
    publications = [_publish(item, built, registry, progress) for item, built in images.values()]
    if form == "json":
        print_json({"schema": 1, "releases": [_release(publication) for publication in publications]})
        return
    for publication in publications:
        state = "published" if publication.published else "already published"
        click.echo(f"{publication.reference}  {publication.digest}  {state}")


def _publish(recipe: Recipe, images: list[Image], registry: str | None, progress: Progress) -> Publication:
    target = Reference.parse(registry) if registry else _from_recipe(recipe)
    if target.target is not None:
        raise UsageError("a release is tagged with its version", where=target, hint=f"write {target.name}")
    title = recipe.content.name
    advance = progress.stage(title, "publish", size_to_send(images))
    publication = publish(images, target, recipe.content.version, title, advance=advance)
    progress.done(title, "publish", "sent" if publication.published else "up to date")
    return publication


def _from_recipe(recipe: Recipe) -> Reference:
    repository = recipe.content.publish.repository
    if repository is None:
        raise UsageError(
            "where to?",
            where=recipe.file,
            why="the recipe has no publish.repository",
            hint="add --registry HOST/REPOSITORY or --registry oci:DIR",
            code="NO_REPOSITORY",
        )
    return recipe_reference(repository, recipe.folder)


def _tell(missing: list[str], needed: bool) -> None:
    """What isn't built isn't published; StorageError where it was asked for, or nothing else is left."""
    if missing and needed:
        raise StorageError(
            f"not built: {', '.join(missing)}", hint="run `engine-builder build` first", code="NOT_BUILT"
        )
    for unit in missing:
        click.echo(f"  not built  {unit}  not in this release yet", err=True)


def _release(publication: Publication) -> dict[str, object]:
    return {
        "reference": str(publication.reference),
        "digest": publication.digest,
        "published": list(publication.published),
        "present": list(publication.present),
    }
