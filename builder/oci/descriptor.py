"""The descriptor: media type, digest and size of something that a repository holds.

Source: OCI image specification 1.1, descriptor.md.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from builder.errors import StorageError

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER_TAR = "application/vnd.oci.image.layer.v1.tar"
LAYER_TAR_GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"
LAYER_TAR_ZSTD = "application/vnd.oci.image.layer.v1.tar+zstd"

# What Docker wrote before OCI: read, never written.
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LAYER_TAR = "application/vnd.docker.image.rootfs.diff.tar"
DOCKER_LAYER_TAR_GZIP = "application/vnd.docker.image.rootfs.diff.tar.gzip"

DIGEST_PATTERN = re.compile(r"sha256:[0-9a-f]{64}")


def sha256_digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@dataclass(frozen=True)
class Platform:
    os: str
    architecture: str
    variant: str | None = None

    @classmethod
    def parse(cls, text: str) -> Platform:
        """From "linux/amd64" or "linux/arm64/v8"."""
        return cls(*text.split("/"))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Platform:
        return cls(str(data.get("os")), str(data.get("architecture")), data.get("variant"))

    def to_json(self) -> dict[str, str]:
        platform = {"architecture": self.architecture, "os": self.os}
        return platform | ({"variant": self.variant} if self.variant else {})

    def __str__(self) -> str:
        return "/".join(filter(None, (self.os, self.architecture, self.variant)))


@dataclass(frozen=True)
class Descriptor:
    media_type: str
    digest: str
    size: int
    annotations: Mapping[str, str] = field(default_factory=dict, hash=False)
    platform: Platform | None = None
    artifact_type: str | None = None

    @classmethod
    def of(cls, media_type: str, content: bytes) -> Descriptor:
        return cls(media_type, sha256_digest(content), len(content))

    @classmethod
    def from_json(cls, data: object, where: str) -> Descriptor:
        """Read what someone else wrote. Raises StorageError "BAD_MANIFEST" on anything unusable."""
        if not isinstance(data, dict):
            raise bad_manifest(where, f"a descriptor is {type(data).__name__}, expected an object")
        media_type, digest, size = data.get("mediaType"), data.get("digest"), data.get("size")
        annotations, platform, artifact_type = data.get("annotations"), data.get("platform"), data.get("artifactType")
        if not isinstance(media_type, str):
            raise bad_manifest(where, "a descriptor has no mediaType")
        if not isinstance(digest, str) or not DIGEST_PATTERN.fullmatch(digest):
            raise bad_manifest(where, f"digest {digest!r} isn't sha256:HEX")
        if type(size) is not int or not 0 <= size < 1 << 63:
            raise bad_manifest(where, f"size {size!r} of {digest} isn't a number of bytes")
        return cls(
            media_type,
            digest,
            size,
            check_annotations(annotations, where),
            Platform.from_json(platform) if isinstance(platform, dict) else None,
            artifact_type if isinstance(artifact_type, str) else None,
        )

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {"mediaType": self.media_type, "digest": self.digest, "size": self.size}
        if self.artifact_type:
            data["artifactType"] = self.artifact_type
        if self.platform:
            data["platform"] = self.platform.to_json()
        if self.annotations:
            data["annotations"] = dict(self.annotations)
        return data


def check_annotations(annotations: object, where: str) -> dict[str, str]:
    """Annotations as read from JSON: absent, or a mapping from text to text."""
    if annotations is None:
        return {}
    if not isinstance(annotations, dict) or not all(isinstance(value, str) for value in annotations.values()):
        raise bad_manifest(where, "annotations aren't a mapping from text to text")
    return annotations


def bad_manifest(where: str, why: str) -> StorageError:
    return StorageError("this manifest can't be read", where=where, why=why, code="BAD_MANIFEST")
