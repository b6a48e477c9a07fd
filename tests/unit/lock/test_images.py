import json
from pathlib import Path

import pytest

from builder.errors import SourceError
from builder.lock.images import PLATFORMS, PlatformImage, pin_image, pin_images
from builder.lock.wanted import ImageUse
from builder.oci.descriptor import CONFIG, INDEX, LAYER_TAR_GZIP, MANIFEST, Descriptor, sha256_digest
from builder.oci.layout import LayoutRepository
from builder.oci.manifest import Index, Manifest

PLAIN = ImageUse(base=False, platforms=frozenset({"linux/amd64"}))
BASE = ImageUse(base=True, platforms=frozenset({"linux/amd64"}))


def push_image(repository: LayoutRepository, architecture: str, target: str, **settings: object) -> Descriptor:
    """An image of one platform with a config, and a layer of 1000 bytes that nobody asks for."""
    config = json.dumps({"os": "linux", "architecture": architecture, "config": settings}).encode()
    repository.put_blob(Descriptor.of(CONFIG, config), lambda: iter((config,)))
    layer = Descriptor(LAYER_TAR_GZIP, sha256_digest(architecture.encode()), 1000)
    content = Manifest(Descriptor.of(CONFIG, config), (layer,)).to_bytes()
    repository.put_manifest(content, MANIFEST, target)
    return Descriptor.of(MANIFEST, content)


def push_index(repository: LayoutRepository, tag: str, architectures: tuple[str, ...]) -> str:
    """The digest of an index over images, and over an attestation as BuildKit adds them."""
    entries = []
    for architecture in (*architectures, "unknown"):
        image = push_image(repository, architecture, sha256_digest(b""))
        platform = {"os": "unknown" if architecture == "unknown" else "linux", "architecture": architecture}
        entries.append(Descriptor.from_json({**image.to_json(), "platform": platform}, "here"))
    content = Index(tuple(entries)).to_bytes()
    repository.put_manifest(content, INDEX, tag)
    return sha256_digest(content)


def test_index_and_manifests_of_both_platforms_are_pinned(tmp_path: Path) -> None:
    digest = push_index(LayoutRepository(tmp_path / "images"), "1", ("amd64", "arm64", "s390x"))
    pinned = pin_image("oci:images:1", PLAIN, tmp_path)
    assert pinned.index == pinned.top_digest == digest
    assert tuple(pinned.platforms) == PLATFORMS
    assert len({image.digest for image in pinned.platforms.values()}) == 2
    assert all(1000 < image.size < 1200 for image in pinned.platforms.values())
    assert pinned.python is None


def test_an_image_without_an_index_is_pinned_for_its_own_platform(tmp_path: Path) -> None:
    image = push_image(LayoutRepository(tmp_path / "images"), "amd64", "1")
    pinned = pin_image("oci:images:1", PLAIN, tmp_path)
    assert pinned.index is None
    assert set(pinned.platforms) == {"linux/amd64"}
    assert pinned.top_digest == pinned.platforms["linux/amd64"].digest == image.digest


@pytest.mark.parametrize(
    "settings", [{"Labels": {"io.engine-builder.python": "3.11"}}, {"Env": ["PATH=/bin", "PYTHON_VERSION=3.11.9"]}]
)
def test_the_python_of_a_base_is_known_from_its_label_or_its_environment(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    push_image(LayoutRepository(tmp_path / "images"), "amd64", "1", **settings)
    assert pin_image("oci:images:1", BASE, tmp_path).python == "3.11"


def test_a_base_that_does_not_say_which_python_it_has_is_refused(tmp_path: Path) -> None:
    push_image(LayoutRepository(tmp_path / "images"), "amd64", "1")
    with pytest.raises(SourceError) as error:
        pin_image("oci:images:1", BASE, tmp_path)
    assert error.value.code == "BASE_PYTHON"


def test_an_image_for_another_platform_is_refused(tmp_path: Path) -> None:
    push_index(LayoutRepository(tmp_path / "images"), "1", ("arm64",))
    with pytest.raises(SourceError) as error:
        pin_image("oci:images:1", PLAIN, tmp_path)
    assert error.value.code == "BASE_PLATFORM"
    assert "linux/arm64" in error.value.message


def test_all_images_are_asked_for_and_each_failure_is_its_own(tmp_path: Path) -> None:
    push_index(LayoutRepository(tmp_path / "images"), "1", ("amd64",))
    uses = {"oci:images:1": PLAIN, "oci:images:2": PLAIN, "127.0.0.1:9/absent/image:1": PLAIN}
    answers = pin_images(uses, tmp_path)
    assert list(answers) == list(uses)
    there, absent, unreachable = answers.values()
    assert not isinstance(there, SourceError)
    assert isinstance(absent, SourceError)
    assert (absent.code, absent.message) == ("NOT_FOUND", "there is no image oci:images:2")
    assert isinstance(unreachable, SourceError)
    assert unreachable.code == "UNREACHABLE"


def test_the_bytes_of_a_pull_are_those_of_config_and_layers(tmp_path: Path) -> None:
    image = push_image(LayoutRepository(tmp_path / "images"), "amd64", "1")
    config = json.dumps({"os": "linux", "architecture": "amd64", "config": {}}).encode()
    pinned = pin_image("oci:images:1", PLAIN, tmp_path).platforms["linux/amd64"]
    assert pinned == PlatformImage(image.digest, len(config) + 1000)
