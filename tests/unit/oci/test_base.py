from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from builder.errors import BuilderError
from builder.oci.base import read_base
from builder.oci.descriptor import (
    CONFIG,
    DOCKER_LAYER_TAR_GZIP,
    INDEX,
    LAYER_TAR_GZIP,
    MANIFEST,
    Descriptor,
    Platform,
)
from builder.oci.layout import LayoutRepository
from builder.oci.manifest import Index, Manifest

AMD64, ARM64 = Platform("linux", "amd64"), Platform("linux", "arm64")


@pytest.fixture
def layout(tmp_path: Path) -> LayoutRepository:
    return LayoutRepository(tmp_path)


def put_image(
    layout: LayoutRepository, platform: Platform, media_type: str = LAYER_TAR_GZIP, diff_ids: int = 1
) -> Descriptor:
    """An image whose layer was never stored: a base is read without its layers."""
    document = platform.to_json() | {"rootfs": {"type": "layers", "diff_ids": ["sha256:" + "1" * 64] * diff_ids}}
    config = json.dumps(document).encode()
    layout.put_blob(Descriptor.of(CONFIG, config), lambda: iter((config,)))
    layer = Descriptor(media_type, "sha256:" + "2" * 64, 99)
    content = Manifest(Descriptor.of(CONFIG, config), (layer,)).to_bytes()
    descriptor = replace(Descriptor.of(MANIFEST, content), platform=platform)
    layout.put_manifest(content, MANIFEST, descriptor.digest)
    return descriptor


def put_index(layout: LayoutRepository, *images: Descriptor) -> str:
    content = Index(images).to_bytes()
    digest = Descriptor.of(INDEX, content).digest
    layout.put_manifest(content, INDEX, digest)
    return digest


def test_a_base_is_read_without_its_layers(layout: LayoutRepository) -> None:
    image = put_image(layout, AMD64)
    base = read_base(layout, image.digest, AMD64)
    assert base.reference == layout.reference.with_digest(image.digest)
    assert base.layers == (Descriptor(LAYER_TAR_GZIP, "sha256:" + "2" * 64, 99),)
    assert base.config["architecture"] == "amd64"


def test_the_image_of_the_platform_is_chosen_from_an_index(layout: LayoutRepository) -> None:
    arm = put_image(layout, ARM64)
    digest = put_index(layout, put_image(layout, AMD64), arm)
    assert read_base(layout, digest, ARM64).reference.digest == arm.digest


def test_layers_in_dockers_words_are_named_in_ocis(layout: LayoutRepository) -> None:
    image = put_image(layout, AMD64, DOCKER_LAYER_TAR_GZIP)
    assert read_base(layout, image.digest, AMD64).layers[0].media_type == LAYER_TAR_GZIP


def refusal(layout: LayoutRepository, digest: str, platform: Platform = AMD64) -> str:
    with pytest.raises(BuilderError) as caught:
        read_base(layout, digest, platform)
    return caught.value.code


def test_what_does_not_fit_is_refused(layout: LayoutRepository) -> None:
    amd64 = put_image(layout, AMD64)
    assert refusal(layout, amd64.digest, ARM64) == "BASE_PLATFORM"
    assert refusal(layout, put_index(layout, amd64), ARM64) == "BASE_PLATFORM"
    assert refusal(layout, "sha256:" + "9" * 64) == "BASE_MISSING"
    assert refusal(layout, put_image(layout, AMD64, "application/vnd.windows.layer").digest) == "BAD_MANIFEST"
    assert refusal(layout, put_image(layout, AMD64, diff_ids=2).digest) == "BAD_MANIFEST"
    nested = Descriptor(INDEX, put_index(layout), 0, platform=AMD64)
    assert refusal(layout, put_index(layout, nested)) == "BAD_MANIFEST"
