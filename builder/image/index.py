"""The release: one OCI index with an image for each unit of a version."""

from __future__ import annotations

from collections.abc import Iterable

from builder.image.image import SKU, TITLE, UNIT, VERSION
from builder.oci.descriptor import Descriptor
from builder.oci.manifest import Index


def release_index(images: Iterable[Descriptor], title: str, version: str) -> Index:
    """The index of a release from the descriptors of its images (`Image.descriptor`).

    The same images give the same bytes, in whatever order they come. docker and skopeo take the first entry of their
    platform: that is the unit of `cpu`, which runs everywhere, if there is one.
    """
    ordered = sorted(images, key=lambda image: (image.annotations.get(SKU) != "cpu", unit_of(image), image.digest))
    return Index(tuple(ordered), {TITLE: title, VERSION: version})


def unit_of(image: Descriptor) -> str:
    """The unit id of an entry; empty where someone else wrote it."""
    return image.annotations.get(UNIT, "")
