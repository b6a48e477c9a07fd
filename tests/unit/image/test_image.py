from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from builder.errors import PlanRefused, StorageError, VerificationError
from builder.image.config import ContainerSettings
from builder.image.image import Image, build_image
from builder.image.layer import Layer
from builder.image.tar import Entry
from builder.oci.base import BaseImage
from builder.oci.descriptor import LAYER_TAR_GZIP, Descriptor
from builder.oci.reference import Reference
from builder.store import Artifact, LocalStore

REPOSITORY = Layer.pack("repository", [Entry("opt/engine-builder/serving.json", 2, b"{}")])
BASE = BaseImage(
    Reference.parse("registry.test/base@sha256:" + "b" * 64),
    (Descriptor(LAYER_TAR_GZIP, "sha256:" + "1" * 64, 50),),
    {"architecture": "amd64", "os": "linux", "rootfs": {"diff_ids": ["sha256:" + "2" * 64]}},
)


def image_of(*layers: Layer, base: BaseImage | None = None) -> Image:
    return build_image(
        unit="m/bf16-tp1/cpu",
        sku="cpu",
        platform="linux/amd64",
        title="m",
        version="1.0.0",
        layers=layers,
        base=base,
        settings=ContainerSettings(entrypoint=("run",)) if base else None,
        annotations={"io.engine-builder.toolchain": "reference", "org.opencontainers.image.licenses": "MIT"},
    )


def test_the_manifest_says_what_the_image_is(artifact: Artifact) -> None:
    engine = Layer.from_artifact("engine", artifact)
    image = image_of(REPOSITORY, engine, base=BASE)
    manifest = json.loads(image.manifest)
    assert manifest["mediaType"] == "application/vnd.oci.image.manifest.v1+json"
    assert manifest["config"]["digest"] == image.blobs[0].digest
    assert [layer["digest"] for layer in manifest["layers"]] == [
        BASE.layers[0].digest,
        REPOSITORY.descriptor.digest,
        engine.descriptor.digest,
    ]
    assert manifest["annotations"] == {
        "io.engine-builder.unit": "m/bf16-tp1/cpu",
        "io.engine-builder.sku": "cpu",
        "io.engine-builder.toolchain": "reference",
        "org.opencontainers.image.title": "m",
        "org.opencontainers.image.version": "1.0.0",
        "org.opencontainers.image.licenses": "MIT",
        "org.opencontainers.image.base.digest": BASE.reference.digest,
    }
    assert json.loads(image.config)["rootfs"]["diff_ids"][1:] == [
        REPOSITORY.descriptor.digest,
        engine.descriptor.digest,
    ]


def test_the_descriptor_for_an_index_has_platform_unit_and_sku() -> None:
    image = image_of(REPOSITORY)
    assert str(image.descriptor.platform) == "linux/amd64"
    assert image.descriptor.annotations == {
        "io.engine-builder.unit": "m/bf16-tp1/cpu",
        "io.engine-builder.sku": "cpu",
        "io.engine-builder.toolchain": "reference",
    }
    assert image.unit == "m/bf16-tp1/cpu"


def test_where_a_base_comes_from_does_not_change_the_image() -> None:
    mirror = replace(BASE, reference=Reference(layout=Path("/mirror"), digest=BASE.reference.digest))
    assert image_of(REPOSITORY, base=BASE).digest == image_of(REPOSITORY, base=mirror).digest


def test_a_saved_image_loads_as_it_was(artifact: Artifact, store: LocalStore, tmp_path: Path) -> None:
    image = image_of(REPOSITORY, Layer.from_artifact("engine", artifact), base=BASE)
    image.save(tmp_path, store)
    assert Image.load(tmp_path, store, BASE.reference) == image
    saved = sum(path.stat().st_size for path in tmp_path.iterdir() if path.is_file())
    assert saved < 6000 < artifact.size


def test_a_folder_without_image_is_one_clear_error(store: LocalStore, tmp_path: Path) -> None:
    with pytest.raises(StorageError) as caught:
        Image.load(tmp_path, store)
    assert caught.value.code == "NOT_AN_IMAGE"


def test_a_file_in_two_layers_is_refused() -> None:
    """Case: a later layer that repeats paths stores all bytes twice."""
    with pytest.raises(VerificationError) as caught:
        image_of(REPOSITORY, Layer.pack("engine", REPOSITORY.entries))
    assert caught.value.code == "REPEATED_PATH"


def test_more_layers_than_runtimes_stack_are_refused() -> None:
    """Case: a base of 60 layers and one layer for each of 70 shards."""
    shards = [Layer.pack("engine", [Entry(f"rank{n}.engine", 1, b"x")]) for n in range(70)]
    base = replace(BASE, layers=BASE.layers * 60, config={**BASE.config, "rootfs": {"diff_ids": ["x"] * 60}})
    with pytest.raises(PlanRefused, match="130 layers") as caught:
        image_of(*shards, base=base)
    assert caught.value.code == "TOO_MANY_LAYERS"
    assert len(json.loads(image_of(*shards[:67], base=base).manifest)["layers"]) == 127
