"""Publishing: blobs, then image manifests, then the index, and the tag last: a release is seen whole or not at all.

Version tags are immutable: units can be added to a release, but a unit that it has stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from builder.errors import StorageError
from builder.image.image import Image
from builder.image.index import release_index, unit_of
from builder.oci.descriptor import CONFIG, DOCKER_INDEX, INDEX, Descriptor
from builder.oci.manifest import Index, StoredManifest
from builder.oci.reference import Reference
from builder.oci.repository import Connect, OpenChunks, Repository, open_repository
from builder.oci.stream import Advance, ignore_progress
from builder.registry.transfer import copy_blob, for_each

_ATTEMPTS = 5


@dataclass(frozen=True)
class Publication:
    """What `publish` did. `published` is empty where all was there already."""

    reference: Reference
    digest: str
    published: tuple[str, ...]
    present: tuple[str, ...]


def size_to_send(images: Sequence[Image]) -> int:
    """Bytes of all blobs of these images, each counted once."""
    return sum({blob.digest: blob.size for image in images for blob in image.blobs}.values())


def publish(
    images: Sequence[Image],
    target: Reference,
    version: str,
    title: str,
    *,
    connect: Connect = open_repository,
    advance: Advance = ignore_progress,
) -> Publication:
    """Publish images, one per unit, as the release `version`, or add them to it.

    `advance` counts up to the `size_to_send` of the images; blobs that are there are counted, not sent. StorageError
    "VERSION_EXISTS" before anything is sent if the release has another image for one of the units.
    """
    reference = target.with_tag(version)
    repository = connect(reference)
    missing = _missing(images, _read(repository, reference), reference)
    # Those of the other images as well: a repository that has lost a blob is mended by publishing again.
    for_each(_blobs(images, connect), lambda blob, report: blob.send(repository, report), advance)
    for image in images:
        if image in missing or repository.get_manifest(image.digest) is None:
            repository.put_manifest(image.manifest, image.descriptor.media_type, image.digest)
    digest = _put_release(images, repository, reference, title)
    published = tuple(image.unit for image in missing)
    present = tuple(image.unit for image in images if image not in missing)
    return Publication(reference, digest, published, present)


def _put_release(images: Sequence[Image], repository: Repository, reference: Reference, title: str) -> str:
    """Add the images to the index under the tag, on top of what is there by now, and look whether they stayed.

    Registries can't compare and swap: of two machines that read the index in the same instant, the first to write can
    lose its units. It sees that here unless the other is slower than this look; running it again adds them.
    """
    for _ in range(_ATTEMPTS):
        stored = _read(repository, reference)
        missing = _missing(images, stored, reference)
        if stored and not missing:
            return stored.descriptor.digest
        entries = _entries(stored) if stored else ()
        index = release_index([*entries, *(image.descriptor for image in missing)], title, str(reference.tag))
        repository.put_manifest(index.to_bytes(), INDEX, str(reference.tag))
    raise StorageError(
        "the release changes as fast as we add to it",
        where=reference,
        why="other machines are publishing to it, or the registry answers with old content",
        hint="run it again: everything but the index is there",
        code="CONTENDED",
    )


def _read(repository: Repository, reference: Reference) -> StoredManifest | None:
    stored = repository.get_manifest(str(reference.tag))
    if stored and stored.descriptor.media_type not in (INDEX, DOCKER_INDEX):
        raise _exists(reference, "the tag names a single image that isn't a release")
    return stored


def _entries(stored: StoredManifest) -> tuple[Descriptor, ...]:
    index = stored.parse()
    return index.manifests if isinstance(index, Index) else ()


def _missing(images: Sequence[Image], stored: StoredManifest | None, reference: Reference) -> list[Image]:
    """The images whose units the release lacks; units with another image are a conflict."""
    there = {unit_of(entry): entry.digest for entry in (_entries(stored) if stored else ())}
    for image in images:
        if there.get(image.unit, image.digest) != image.digest:
            raise _exists(reference, f"{image.unit} is published as {there[image.unit]}; this one is {image.digest}")
    return [image for image in images if image.unit not in there]


def _exists(reference: Reference, why: str) -> StorageError:
    return StorageError(
        f"version {reference.tag} is published already, and published versions don't change",
        where=reference,
        why=why,
        hint="raise `version` in the recipe",
        code="VERSION_EXISTS",
    )


@dataclass(frozen=True)
class _Blob:
    """Something to be sent: from its own source, or from the repository of a base."""

    descriptor: Descriptor
    source: OpenChunks | Repository

    def send(self, target: Repository, advance: Advance) -> None:
        if callable(self.source):
            target.put_blob(self.descriptor, self.source, advance)
        else:
            copy_blob(self.descriptor, self.source, target, advance)


def _blobs(images: Sequence[Image], connect: Connect) -> Iterator[_Blob]:
    """Each blob once, the largest first so that none is left to run alone at the end."""
    blobs: dict[str, _Blob] = {}
    for image in images:
        config = Descriptor.of(CONFIG, image.config)
        blobs[config.digest] = _Blob(config, partial(iter, (image.config,)))
        for layer in image.layers:
            blobs[layer.descriptor.digest] = _Blob(layer.descriptor, layer.chunks)
        if image.base_reference:
            base = connect(image.base_reference)
            for descriptor in image.base_layers:
                blobs.setdefault(descriptor.digest, _Blob(descriptor, base))
    return iter(sorted(blobs.values(), key=lambda blob: -blob.descriptor.size))
