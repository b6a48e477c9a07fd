"""Finding a release, and one image in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from builder.errors import StorageError, UsageError
from builder.image.image import SKU
from builder.image.index import unit_of
from builder.oci.descriptor import Descriptor
from builder.oci.manifest import Index, Manifest, StoredManifest
from builder.oci.reference import Reference
from builder.oci.repository import Repository


@dataclass(frozen=True)
class Release:
    """What a tag or digest names: an index of images, or a single image as its own only entry."""

    reference: Reference
    digest: str
    images: tuple[Descriptor, ...]


def find_release(repository: Repository, reference: Reference) -> Release:
    """Without tag and digest the only tag there is. Raises StorageError "NOT_FOUND", UsageError "WHICH_TAG"."""
    if reference.target is None:
        reference = reference.with_tag(_only_tag(repository))
    stored = get_manifest(repository, str(reference.target))
    manifest = stored.parse()
    if isinstance(manifest, Index):
        return Release(reference, stored.descriptor.digest, manifest.manifests)
    own = Descriptor(
        stored.descriptor.media_type, stored.descriptor.digest, stored.descriptor.size, manifest.annotations
    )
    return Release(reference, own.digest, (own,))


def get_manifest(repository: Repository, target: str) -> StoredManifest:
    stored = repository.get_manifest(target)
    if stored is None:
        tags = repository.tags()
        raise StorageError(
            f"{repository.reference} has no {target}",
            why=f"it has {_some(tags)}" if tags else "nothing is published there",
            code="NOT_FOUND",
        )
    return stored


def get_image_manifest(repository: Repository, digest: str) -> Manifest:
    manifest = get_manifest(repository, digest).parse()
    if isinstance(manifest, Index):
        raise StorageError("expected an image, found an index", where=f"{repository.reference}@{digest}")
    return manifest


def choose_image(release: Release, wanted: str | None) -> Descriptor:
    """The image of one unit: by its id, a glob over ids or SKUs, or its digest; the first one if nothing is wanted.

    Raises UsageError "NO_UNIT" or "AMBIGUOUS_UNIT".
    """
    if not release.images:
        raise StorageError("this release is empty", where=release.reference, code="NOT_FOUND")
    if wanted is None:
        return release.images[0]
    found = [image for image in release.images if _matches(image, wanted)]
    if len(found) == 1:
        return found[0]
    units = [unit_of(image) or image.digest for image in (found or release.images)]
    raise UsageError(
        f"{len(found) or 'no'} units of {release.reference} match {wanted!r}",
        why=f"it has {_some(units)}",
        hint=f"choose one, such as --unit {units[0]}",
        code="AMBIGUOUS_UNIT" if found else "NO_UNIT",
    )


def _matches(image: Descriptor, wanted: str) -> bool:
    names = (unit_of(image), image.annotations.get(SKU, ""), image.digest)
    return any(fnmatchcase(name, wanted) for name in names if name)


def _only_tag(repository: Repository) -> str:
    tags = repository.tags()
    if len(tags) == 1:
        return tags[0]
    if not tags:
        raise StorageError("nothing is published here", where=repository.reference, code="NOT_FOUND")
    raise UsageError(
        "which release?",
        where=repository.reference,
        why=f"there are {_some(tags)}",
        hint=f"add a tag: {repository.reference}:{tags[-1]}",
        code="WHICH_TAG",
    )


def _some(names: Sequence[str], limit: int = 8) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
