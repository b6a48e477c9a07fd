from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from builder.errors import StorageError, UsageError, VerificationError
from builder.image.image import Image, build_image
from builder.image.index import release_index
from builder.image.layer import Layer
from builder.oci.base import BaseImage, read_base
from builder.oci.descriptor import INDEX, Descriptor, Platform
from builder.oci.layout import LayoutRepository
from builder.oci.reference import Reference
from builder.registry.inspect import inspect, list_releases
from builder.registry.publish import publish, size_to_send
from tests.unit.registry.conftest import Trees


class CountingLayout(LayoutRepository):
    """A layout that notes what is written to it, and lets something happen in between."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.written: list[str] = []
        self.before_image: Callable[[], object] | None = None
        self.after_tag: Callable[[], object] | None = None

    def put_blob(self, descriptor: Descriptor, *rest: object) -> None:  # type: ignore[override]
        if not self.has_blob(descriptor):
            self.written.append(descriptor.digest)
        super().put_blob(descriptor, *rest)  # type: ignore[arg-type]

    def put_manifest(self, content: bytes, media_type: str, target: str) -> None:
        if self.before_image and ":" in target:
            before, self.before_image = self.before_image, None
            before()
        super().put_manifest(content, media_type, target)
        if self.after_tag and ":" not in target:
            after, self.after_tag = self.after_tag, None
            after()


@pytest.fixture
def repository(target: Reference) -> CountingLayout:
    assert target.layout
    return CountingLayout(target.layout)


def units(target: Reference, tag: str = "1.0.0") -> list[str]:
    return [image["unit"] for image in inspect(target.with_tag(tag))["images"]]


def test_a_release_holds_everything_that_it_names(trees: Trees, target: Reference) -> None:
    images = [trees.image("cpu"), trees.image("l40s-48gb", "other")]
    progress: list[int] = []
    published = publish(images, target, "1.0.0", "m", advance=progress.append)
    assert published.published == ("m/bf16-tp1/cpu", "m/bf16-tp1/l40s-48gb")
    assert sum(progress) == size_to_send(images)
    assert target.layout
    layout = LayoutRepository(target.layout)
    for image in images:
        for blob in image.blobs:
            assert sum(map(len, layout.open_blob(blob))) == blob.size
    assert published.digest == inspect(published.reference)["digest"]


def test_publishing_again_writes_nothing(trees: Trees, target: Reference, repository: CountingLayout) -> None:
    first = publish([trees.image("cpu")], target, "1.0.0", "m", connect=lambda _: repository)
    repository.written.clear()
    again = publish([trees.image("cpu")], target, "1.0.0", "m", connect=lambda _: repository)
    assert again == replace(first, published=(), present=("m/bf16-tp1/cpu",))
    assert repository.written == []


def test_a_unit_is_added_to_a_release_and_sends_only_what_is_new(
    trees: Trees, target: Reference, repository: CountingLayout
) -> None:
    first, second = trees.image("cpu"), trees.image("l40s-48gb")
    publish([first], target, "1.0.0", "m")
    added = publish([first, second], target, "1.0.0", "m", connect=lambda _: repository)
    assert (added.published, added.present) == (("m/bf16-tp1/l40s-48gb",), ("m/bf16-tp1/cpu",))
    assert units(target) == ["m/bf16-tp1/cpu", "m/bf16-tp1/l40s-48gb"]
    # The engine's layer is the same here; only the config, the image and the index are new.
    assert set(repository.written) == {second.blobs[0].digest, second.digest, added.digest} - {first.blobs[0].digest}


def test_another_image_for_a_published_unit_is_refused_before_anything_is_sent(
    trees: Trees, target: Reference, repository: CountingLayout
) -> None:
    publish([trees.image("cpu")], target, "1.0.0", "m")
    images = [trees.image("l40s-48gb"), trees.image("cpu", "changed")]
    with pytest.raises(StorageError) as caught:
        publish(images, target, "1.0.0", "m", connect=lambda _: repository)
    assert caught.value.code == "VERSION_EXISTS"
    assert "raise `version`" in (caught.value.hint or "")
    assert repository.written == []
    assert units(target) == ["m/bf16-tp1/cpu"]


def test_a_unit_that_another_machine_adds_while_we_upload_is_kept(
    trees: Trees, target: Reference, repository: CountingLayout
) -> None:
    repository.before_image = lambda: publish([trees.image("cpu")], target, "1.0.0", "m")
    publish([trees.image("l40s-48gb")], target, "1.0.0", "m", connect=lambda _: repository)
    assert units(target) == ["m/bf16-tp1/cpu", "m/bf16-tp1/l40s-48gb"]


def test_units_that_another_machine_overwrites_are_added_again(
    trees: Trees, target: Reference, repository: CountingLayout
) -> None:
    without_ours = release_index([trees.image("cpu").descriptor], "m", "1.0.0").to_bytes()
    publish([trees.image("cpu")], target, "0.9.0", "m")
    repository.after_tag = lambda: repository.put_manifest(without_ours, INDEX, "1.0.0")
    publish([trees.image("l40s-48gb")], target, "1.0.0", "m", connect=lambda _: repository)
    assert units(target) == ["m/bf16-tp1/cpu", "m/bf16-tp1/l40s-48gb"]


def test_a_tag_that_someone_else_gave_to_an_image_is_not_overwritten(trees: Trees, target: Reference) -> None:
    image = trees.image("cpu")
    assert target.layout
    LayoutRepository(target.layout).put_manifest(image.manifest, image.descriptor.media_type, "1.0.0")
    with pytest.raises(StorageError) as caught:
        publish([image], target, "1.0.0", "m")
    assert caught.value.code == "VERSION_EXISTS"


def test_a_version_that_is_no_tag_is_refused(trees: Trees, target: Reference) -> None:
    with pytest.raises(UsageError):
        publish([trees.image("cpu")], target, "1.0.0+cu12", "m")


def test_a_file_that_changed_after_the_build_is_never_published(trees: Trees, target: Reference) -> None:
    image = trees.image("cpu")
    (trees.root / "cpu-weights/engine/rank0.engine").write_text("WEIGHTS")
    with pytest.raises(VerificationError) as caught:
        publish([image], target, "1.0.0", "m")
    assert caught.value.code == "WRONG_DIGEST"
    assert list_releases(target) == []


def test_a_stopped_publication_is_finished_by_the_next(trees: Trees, target: Reference) -> None:
    def stop(count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        publish([trees.image("cpu")], target, "1.0.0", "m", advance=stop)
    assert list_releases(target) == []
    publish([trees.image("cpu")], target, "1.0.0", "m")
    assert units(target) == ["m/bf16-tp1/cpu"]


def test_the_layers_of_a_base_are_brought_along(trees: Trees, target: Reference, tmp_path: Path) -> None:
    base_reference = Reference(layout=tmp_path / "base")
    base_image = trees.image("cpu", "base")
    publish([base_image], base_reference, "3.11", "base")
    base = read_base(LayoutRepository(tmp_path / "base"), base_image.digest, Platform("linux", "amd64"))
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours/file").write_text("x")
    image = on_base(Layer.from_folder("runtime", tmp_path / "ours"), base)
    publish([image], target, "1.0.0", "m")
    assert target.layout
    assert all(LayoutRepository(target.layout).has_blob(blob) for blob in image.blobs)
    layers = inspect(target.with_tag("1.0.0"))["images"][0]["layers"]
    assert [layer["role"] for layer in layers] == ["base", "base", "runtime"]


def on_base(layer: Layer, base: BaseImage) -> Image:
    return build_image(
        unit="u",
        sku="cpu",
        platform="linux/amd64",
        title="m",
        version="1.0.0",
        layers=[layer],
        base=base,
    )
