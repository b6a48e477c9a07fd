"""A base image that is built upon without being pulled: only its manifest and its config are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from builder.errors import StorageError, UsageError
from builder.oci.descriptor import (
    DOCKER_LAYER_TAR,
    DOCKER_LAYER_TAR_GZIP,
    LAYER_TAR,
    LAYER_TAR_GZIP,
    LAYER_TAR_ZSTD,
    Descriptor,
    Platform,
    bad_manifest,
)
from builder.oci.manifest import Index, Manifest
from builder.oci.reference import Reference
from builder.oci.repository import Repository, read_json_blob

# The same bytes under the name that an OCI manifest may use for them.
_LAYER_TYPES = {
    LAYER_TAR: LAYER_TAR,
    LAYER_TAR_GZIP: LAYER_TAR_GZIP,
    LAYER_TAR_ZSTD: LAYER_TAR_ZSTD,
    DOCKER_LAYER_TAR: LAYER_TAR,
    DOCKER_LAYER_TAR_GZIP: LAYER_TAR_GZIP,
}


@dataclass(frozen=True)
class BaseImage:
    """`reference` names the image of one platform by its digest."""

    reference: Reference
    layers: tuple[Descriptor, ...]
    config: Mapping[str, Any]


def read_base(repository: Repository, target: str, platform: Platform) -> BaseImage:
    """The base under this tag or digest, or its image for the platform if that is an index."""
    where = f"{repository.reference.name} {target}"
    stored = repository.get_manifest(target)
    if stored is None:
        raise _missing(where)
    manifest = stored.parse()
    if isinstance(manifest, Index):
        chosen = _choose(manifest, platform, where)
        stored = repository.get_manifest(chosen.digest)
        if stored is None:
            raise _missing(f"{where} ({chosen.digest})")
        manifest = stored.parse()
    if not isinstance(manifest, Manifest):
        raise bad_manifest(where, "an index inside an index")
    config = read_json_blob(repository, manifest.config)
    layers = tuple(_as_oci(layer, where) for layer in manifest.layers)
    diff_ids = config.get("rootfs", {}).get("diff_ids", ())
    if len(diff_ids) != len(layers):
        raise bad_manifest(where, f"{len(layers)} layers, but its config has {len(diff_ids)} diff_ids")
    found = Platform.from_json(config)
    if (found.os, found.architecture) != (platform.os, platform.architecture):
        raise _wrong_platform(where, f"it is for {found}", platform)
    return BaseImage(repository.reference.with_digest(stored.descriptor.digest), layers, config)


def _choose(index: Index, platform: Platform, where: str) -> Descriptor:
    offered = [entry for entry in index.manifests if entry.platform]
    for entry in offered:
        if entry.platform and (entry.platform.os, entry.platform.architecture) == (platform.os, platform.architecture):
            return entry
    raise _wrong_platform(where, f"it is for {', '.join(str(entry.platform) for entry in offered)}", platform)


def _as_oci(layer: Descriptor, where: str) -> Descriptor:
    if layer.media_type not in _LAYER_TYPES:
        raise bad_manifest(where, f"layers of the type {layer.media_type} can't be published again")
    return Descriptor(_LAYER_TYPES[layer.media_type], layer.digest, layer.size)


def _missing(where: str) -> StorageError:
    return StorageError(
        "the base image isn't there",
        where=where,
        hint="lock again with --upgrade to pin the one that is there now",
        code="BASE_MISSING",
    )


def _wrong_platform(where: str, why: str, platform: Platform) -> UsageError:
    return UsageError(f"the base image isn't for {platform}", where=where, why=why, code="BASE_PLATFORM")
