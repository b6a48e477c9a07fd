"""Looking at releases: what is published, and what is in it. Plain data, ready for JSON."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from packaging.version import InvalidVersion, Version

from builder.image.image import SKU
from builder.image.index import unit_of
from builder.image.layer import ROLE
from builder.oci.descriptor import Descriptor
from builder.oci.reference import Reference
from builder.oci.repository import Connect, Repository, open_repository, read_json_blob
from builder.registry.release import find_release, get_image_manifest
from builder.registry.transfer import PARALLEL


def list_releases(reference: Reference, *, connect: Connect = open_repository) -> list[dict[str, Any]]:
    """[{"tag", "digest", "units": [{"unit", "sku", "digest"}]}], versions in ascending order. A tag that isn't a
    release of ours has no units.
    """
    repository = connect(reference)

    def summary(tag: str) -> dict[str, Any]:
        release = find_release(repository, reference.with_tag(tag))
        units = [_entry(image) for image in release.images if unit_of(image)]
        return {"tag": tag, "digest": release.digest, "units": units}

    with ThreadPoolExecutor(PARALLEL, "list") as pool:
        return list(pool.map(summary, sorted(repository.tags(), key=_version_order)))


def inspect(reference: Reference, *, connect: Connect = open_repository) -> dict[str, Any]:
    """{"reference", "digest", "images": [{"unit", "sku", "digest", "platform", "size", "annotations", "config",
    "layers": [{"role", "digest", "size", "media_type"}]}]}; layers of the base have the role "base".
    """
    repository = connect(reference)
    release = find_release(repository, reference)
    return {
        "reference": str(release.reference),
        "digest": release.digest,
        "images": [_image(repository, image) for image in release.images],
    }


def _image(repository: Repository, image: Descriptor) -> dict[str, Any]:
    manifest = get_image_manifest(repository, image.digest)
    config = read_json_blob(repository, manifest.config)
    layers = [
        {
            "role": layer.annotations.get(ROLE, "base"),
            "digest": layer.digest,
            "size": layer.size,
            "media_type": layer.media_type,
        }
        for layer in manifest.layers
    ]
    return {
        **_entry(image),
        "platform": f"{config.get('os')}/{config.get('architecture')}",
        "size": manifest.config.size + sum(layer.size for layer in manifest.layers),
        "annotations": dict(manifest.annotations),
        "config": config.get("config") or {},
        "layers": layers,
    }


def _entry(image: Descriptor) -> dict[str, str]:
    return {"unit": unit_of(image), "sku": image.annotations.get(SKU, ""), "digest": image.digest}


def _version_order(tag: str) -> tuple[Any, ...]:
    """Versions by their meaning, other tags before them by name."""
    try:
        return (1, Version(tag), tag)
    except InvalidVersion:
        return (0, tag)
