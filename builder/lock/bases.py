"""Base images, pinned by the digest of their manifest."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from builder.errors import SourceError, StorageError
from builder.oci.reference import Reference

PYTHON_LABEL = "io.engine-builder.python"
PLATFORM = "linux/amd64"
"""Of all bases: the runtime's wheels are pinned for it alone."""


@dataclass(frozen=True)
class PinnedBase:
    """`digest` is that of the platform's manifest; `python` the version in it, such as "3.11"."""

    digest: str
    python: str


def recipe_reference(name: str, folder: Path) -> Reference:
    """The reference that a recipe in `folder` writes: a layout is found relative to the recipe."""
    reference = Reference.parse(name)
    return replace(reference, layout=folder / reference.layout) if reference.layout else reference


def pin_base(name: str, folder: Path) -> PinnedBase:
    """Ask the repository of a base image what it holds now. Raises SourceError where it can't be read."""
    # A whole HTTP client, loaded only for recipes that have a base.
    from builder.oci.base import read_base
    from builder.oci.descriptor import Platform
    from builder.oci.repository import open_repository

    reference = recipe_reference(name, folder)
    try:
        base = read_base(open_repository(reference), reference.target or "latest", Platform.parse(PLATFORM))
    except StorageError as error:
        raise SourceError(
            f"can't read the base image {name}", where=error.where, why=error.message, hint=error.hint, code=error.code
        ) from error
    return PinnedBase(str(base.reference.digest), _python(base.config, name))


def _python(config: Mapping[str, Any], name: str) -> str:
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
