"""Base images, pinned by the digest of their manifest."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.errors import SourceError, StorageError
from builder.oci.descriptor import Platform
from builder.oci.manifest import Manifest, StoredManifest
from builder.oci.reference import Reference

if TYPE_CHECKING:
    from builder.oci.repository import Repository

PYTHON_LABEL = "io.engine-builder.python"


@dataclass(frozen=True)
class BaseImage:
    """`digest` is that of the platform's manifest; `python` the version in it, such as "3.11"."""

    digest: str
    platform: str
    python: str


def recipe_reference(name: str, folder: Path) -> Reference:
    """The reference that a recipe in `folder` writes: a layout is found relative to the recipe."""
    reference = Reference.parse(name)
    return replace(reference, layout=folder / reference.layout) if reference.layout else reference


def resolve_base(name: str, folder: Path, platform: str = "linux/amd64") -> BaseImage:
    """Ask the repository of a base image what it holds now. Raises SourceError."""
    from builder.oci.repository import open_repository  # a whole HTTP client, for the recipes that have a base

    reference = recipe_reference(name, folder)
    repository = open_repository(reference)
    try:
        manifest = _platform_manifest(repository, reference, platform)
        config = _config(repository, manifest, name)
    except StorageError as error:
        raise SourceError(
            f"can't read the base image {name}", where=error.where, why=error.message, hint=error.hint, code="BASE"
        ) from error
    return BaseImage(manifest.descriptor.digest, platform, _python(config, name))


def _platform_manifest(repository: Repository, reference: Reference, platform: str) -> StoredManifest:
    stored = repository.get_manifest(reference.target or "latest")
    if stored is None:
        raise SourceError(f"there is no base image {reference}", where=reference, code="BASE_MISSING")
    found = stored.parse()
    if isinstance(found, Manifest):
        return stored
    for entry in found.manifests:
        if entry.platform == Platform.parse(platform):
            chosen = repository.get_manifest(entry.digest)
            if chosen is not None:
                return chosen
    raise SourceError(f"the base image {reference} has nothing for {platform}", where=reference, code="BASE_PLATFORM")


def _config(repository: Repository, stored: StoredManifest, name: str) -> dict[str, Any]:
    manifest = stored.parse()
    if not isinstance(manifest, Manifest):
        raise SourceError(f"the base image {name} is an index of indexes", code="BASE")
    config: dict[str, Any] = json.loads(b"".join(repository.open_blob(manifest.config)))
    return config


def _python(config: dict[str, Any], name: str) -> str:
    """From our label, or from PYTHON_VERSION as the official Python images set it."""
    settings = config.get("config") or {}
    environment = dict(entry.partition("=")[::2] for entry in settings.get("Env") or [])
    stated = (settings.get("Labels") or {}).get(PYTHON_LABEL) or environment.get("PYTHON_VERSION") or ""
    match = re.match(r"3\.\d+", stated)
    if match is None:
        raise SourceError(
            f"the base image {name} doesn't say which Python it has",
            hint=f'give it the label {PYTHON_LABEL}="3.11"',
            code="BASE_PYTHON",
        )
    return match.group()
