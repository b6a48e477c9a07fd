"""`engine-builder serve`: run a release on this machine, without Docker."""

from __future__ import annotations

import logging
from pathlib import Path

import click

from builder.cli.options import store_option
from builder.cli.pull import pull_with_progress
from builder.errors import HostError
from builder.oci.reference import Reference
from builder.oci.repository import open_repository
from builder.registry.release import choose_image, find_release
from builder.store import LocalStore, default_store_root


@click.command()
@click.argument("reference")
@click.option("--unit", metavar="GLOB", help="Which unit, by id or SKU. [default: the first of the release]")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 for all.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes a free one.")
@store_option
def command(reference: str, unit: str | None, host: str, port: int, store: Path | None) -> None:
    """Serve a release, HOST/REPO[:TAG|@DIGEST] or oci:DIR[:TAG], or the folder that `pull` made of one.

    The OpenAI API is at /v1 when this prints that it is ready; Ctrl-C lets open answers finish and stops.
    """
    local = LocalStore(store or default_store_root())
    folder = Path(reference)
    if not (folder / "serving.json").exists():
        folder = _pulled(Reference.parse(reference), unit, local)
    try:
        from builder.runtime.serve import Endpoints, serve
    except ImportError as error:
        raise HostError(
            f"serving needs the package {error.name}",
            hint="pip install 'engine-builder[serve]'",
            code="NO_SERVE_EXTRA",
        ) from None

    def ready(endpoints: Endpoints) -> None:
        click.echo(f"ready: {endpoints.url}/v1 serves {endpoints.model}")

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs URLs, and those of downloads may carry signatures
    serve(folder, cache=local.root / "serve" / "cache", host=host, port=port, on_ready=ready)


def _pulled(reference: Reference, unit: str | None, store: LocalStore) -> Path:
    """The unpacked unit, kept in the store under its digest."""
    image = choose_image(find_release(open_repository(reference), reference), unit)
    folder = store.root / "serve" / image.digest.removeprefix("sha256:")
    return pull_with_progress(reference.with_digest(image.digest), folder, None).folder
