"""What a repository can do, wherever it lies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from builder.oci.client import PATIENT, Effort
from builder.oci.descriptor import Descriptor, bad_manifest
from builder.oci.http import HttpRepository
from builder.oci.layout import LayoutRepository
from builder.oci.manifest import MAX_MANIFEST_BYTES, StoredManifest, parse_json_object
from builder.oci.reference import Reference
from builder.oci.stream import Advance

OpenChunks = Callable[[], Iterator[bytes]]
"""Opens the content of a blob from its beginning; called again when an upload has to be resumed."""


class Repository(Protocol):
    """Blobs and manifests under one name. Every method raises StorageError (registry) or HostError (disk)."""

    @property
    def reference(self) -> Reference: ...

    def has_blob(self, descriptor: Descriptor) -> bool: ...

    def open_blob(self, descriptor: Descriptor) -> Iterator[bytes]:
        """The blob, verified (see `stream.verified`)."""

    def put_blob(self, descriptor: Descriptor, open_chunks: OpenChunks, advance: Advance) -> None:
        """Store a blob unless it is there; content with another digest is refused with VerificationError."""

    def mount_blob(self, descriptor: Descriptor, source: Reference) -> bool:
        """Take a blob over from another repository without moving its bytes; False where that isn't possible."""

    def get_manifest(self, target: str) -> StoredManifest | None:
        """The manifest under a tag or digest, or None."""

    def put_manifest(self, content: bytes, media_type: str, target: str) -> None:
        """Store a manifest under a tag, or under its digest."""

    def tags(self) -> list[str]:
        """All tags, sorted; none where there is no repository yet."""


Connect = Callable[[Reference], Repository]


def open_repository(reference: Reference, effort: Effort = PATIENT) -> Repository:
    """The repository that a reference names. Nothing is contacted or written yet."""
    if reference.layout is not None:
        return LayoutRepository(reference.layout)
    return HttpRepository(reference, effort=effort)


def read_json_blob(repository: Repository, descriptor: Descriptor) -> dict[str, Any]:
    """A small blob, such as an image config. Raises StorageError "BAD_MANIFEST" if it is large or no JSON object."""
    where = f"{repository.reference}@{descriptor.digest}"
    if descriptor.size > MAX_MANIFEST_BYTES:
        raise bad_manifest(where, f"{descriptor.size} bytes, at most {MAX_MANIFEST_BYTES} are sensible")
    return parse_json_object(b"".join(repository.open_blob(descriptor)), where)
