"""Image manifests and indexes: the two JSON documents that hold an image together.

Source: OCI image specification 1.1, manifest.md and image-index.md. Docker's older media types are read as well.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from builder.oci.descriptor import (
    DOCKER_INDEX,
    DOCKER_MANIFEST,
    INDEX,
    MANIFEST,
    Descriptor,
    bad_manifest,
    check_annotations,
)

MAX_MANIFEST_BYTES = 4 << 20
"""Registries refuse larger ones (OCI distribution specification 1.1, "Pushing manifests")."""

MANIFEST_TYPES = (MANIFEST, INDEX, DOCKER_MANIFEST, DOCKER_INDEX)


def canonical_json(value: Mapping[str, Any]) -> bytes:
    """One spelling for one value, so that the same value has the same digest."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def parse_json_object(content: bytes, where: str) -> dict[str, Any]:
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise bad_manifest(where, f"not JSON: {error}") from error
    if not isinstance(data, dict):
        raise bad_manifest(where, "not a JSON object")
    return data


@dataclass(frozen=True)
class Manifest:
    config: Descriptor
    layers: tuple[Descriptor, ...]
    annotations: Mapping[str, str] = field(default_factory=dict, hash=False)

    @classmethod
    def from_json(cls, data: Mapping[str, Any], where: str) -> Manifest:
        layers = data.get("layers")
        if not isinstance(layers, list):
            raise bad_manifest(where, "an image manifest needs a list of layers")
        return cls(
            Descriptor.from_json(data.get("config"), where),
            tuple(Descriptor.from_json(layer, where) for layer in layers),
            check_annotations(data.get("annotations"), where),
        )

    def to_bytes(self) -> bytes:
        return canonical_json(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": self.config.to_json(),
                "layers": [layer.to_json() for layer in self.layers],
                "annotations": dict(self.annotations),
            }
        )


@dataclass(frozen=True)
class Index:
    manifests: tuple[Descriptor, ...]
    annotations: Mapping[str, str] = field(default_factory=dict, hash=False)

    @classmethod
    def from_json(cls, data: Mapping[str, Any], where: str) -> Index:
        manifests = data.get("manifests")
        if not isinstance(manifests, list):
            raise bad_manifest(where, "an index needs a list of manifests")
        return cls(
            tuple(Descriptor.from_json(manifest, where) for manifest in manifests),
            check_annotations(data.get("annotations"), where),
        )

    def to_bytes(self) -> bytes:
        return canonical_json(
            {
                "schemaVersion": 2,
                "mediaType": INDEX,
                "manifests": [manifest.to_json() for manifest in self.manifests],
                "annotations": dict(self.annotations),
            }
        )


@dataclass(frozen=True)
class StoredManifest:
    """A manifest or index exactly as a repository holds it."""

    descriptor: Descriptor
    content: bytes
    where: str

    @classmethod
    def of(cls, content: bytes, media_type: str | None, where: str) -> StoredManifest:
        """The media type in the document counts; one from outside (an HTTP header) only where that is absent."""
        stated = parse_json_object(content, where).get("mediaType") or media_type
        if stated not in MANIFEST_TYPES:
            raise bad_manifest(where, f"media type {stated!r}, expected an OCI or Docker v2 manifest or index")
        return cls(Descriptor.of(stated, content), content, where)

    def parse(self) -> Manifest | Index:
        data = parse_json_object(self.content, self.where)
        if self.descriptor.media_type in (INDEX, DOCKER_INDEX):
            return Index.from_json(data, self.where)
        return Manifest.from_json(data, self.where)
