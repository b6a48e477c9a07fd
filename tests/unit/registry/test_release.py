from __future__ import annotations

import pytest

from builder.errors import StorageError, UsageError
from builder.oci.layout import LayoutRepository
from builder.oci.reference import Reference
from builder.registry.inspect import inspect, list_releases
from builder.registry.publish import publish
from builder.registry.release import choose_image, find_release
from tests.unit.registry.conftest import Trees


@pytest.fixture
def release(trees: Trees, target: Reference) -> Reference:
    images = [trees.image(sku) for sku in ("h100-sxm-80gb", "cpu", "h100-pcie-80gb")]
    return publish(images, target, "1.0.0", "m").reference


def choose(reference: Reference, wanted: str | None) -> str:
    assert reference.layout
    release = find_release(LayoutRepository(reference.layout), reference)
    return choose_image(release, wanted).annotations["io.engine-builder.sku"]


def test_an_image_is_chosen_by_unit_sku_glob_or_digest(release: Reference) -> None:
    digest = next(i["digest"] for i in inspect(release)["images"] if i["sku"] == "h100-pcie-80gb")
    assert choose(release, None) == "cpu"
    assert choose(release, "m/bf16-tp1/h100-sxm-80gb") == "h100-sxm-80gb"
    assert choose(release, "*-sxm-*") == "h100-sxm-80gb"
    assert choose(release, "cpu") == "cpu"
    assert choose(release, digest) == "h100-pcie-80gb"
    assert choose(release.with_digest(digest), None) == "h100-pcie-80gb"


@pytest.mark.parametrize(("wanted", "code"), [("h100-*", "AMBIGUOUS_UNIT"), ("b200-180gb", "NO_UNIT")])
def test_a_choice_that_is_none_lists_what_there_is(release: Reference, wanted: str, code: str) -> None:
    with pytest.raises(UsageError) as caught:
        choose(release, wanted)
    assert caught.value.code == code
    assert "m/bf16-tp1/h100-sxm-80gb" in (caught.value.why or "")


def test_without_a_tag_the_only_one_is_meant(release: Reference, trees: Trees) -> None:
    bare = Reference(layout=release.layout)
    assert choose(bare, None) == "cpu"
    publish([trees.image("cpu")], bare, "1.1.0", "m")
    with pytest.raises(UsageError) as caught:
        choose(bare, None)
    assert caught.value.code == "WHICH_TAG"
    assert "1.0.0, 1.1.0" in (caught.value.why or "")


def test_what_is_not_there_is_one_clear_error(release: Reference) -> None:
    with pytest.raises(StorageError) as caught:
        inspect(release.with_tag("9.9.9"))
    assert caught.value.code == "NOT_FOUND"
    assert "1.0.0" in (caught.value.why or "")
    with pytest.raises(StorageError):
        inspect(Reference(layout=release.layout and release.layout / "none"))


def test_releases_are_listed_in_the_order_of_versions(trees: Trees, target: Reference) -> None:
    for version in ("1.10.0", "nightly", "1.9.0", "1.10.0-rc1"):
        publish([trees.image("cpu")], target, version, "m")
    listed = list_releases(target)
    assert [release["tag"] for release in listed] == ["nightly", "1.9.0", "1.10.0-rc1", "1.10.0"]
    assert [unit["unit"] for unit in listed[0]["units"]] == ["m/bf16-tp1/cpu"]


def test_inspect_tells_layers_roles_and_sizes(release: Reference) -> None:
    image = inspect(release)["images"][0]
    assert (image["unit"], image["platform"]) == ("m/bf16-tp1/cpu", "linux/amd64")
    assert [layer["role"] for layer in image["layers"]] == ["repository", "engine"]
    assert image["size"] > sum(layer["size"] for layer in image["layers"])
    assert image["annotations"]["org.opencontainers.image.version"] == "1.0.0"
