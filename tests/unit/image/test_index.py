from __future__ import annotations

from itertools import permutations

from builder.image.index import release_index
from builder.oci.descriptor import MANIFEST, Descriptor, Platform


def image(unit: str, sku: str) -> Descriptor:
    annotations = {"io.engine-builder.unit": unit, "io.engine-builder.sku": sku}
    content = unit.encode()
    described = Descriptor.of(MANIFEST, content)
    return Descriptor(MANIFEST, described.digest, described.size, annotations, Platform("linux", "amd64"))


IMAGES = [
    image("m/bf16-tp1/a100-sxm-80gb", "a100-sxm-80gb"),
    image("m/bf16-tp1/cpu", "cpu"),
    image("m/fp8-tp1/h100-sxm-80gb", "h100-sxm-80gb"),
]


def test_the_order_of_publishing_does_not_change_a_release() -> None:
    assert len({release_index(order, "m", "1.0.0").to_bytes() for order in permutations(IMAGES)}) == 1


def test_the_image_that_runs_everywhere_comes_first() -> None:
    assert release_index(IMAGES, "m", "1.0.0").manifests[0] == IMAGES[1]


def test_a_release_states_its_name_and_version() -> None:
    assert release_index(IMAGES, "m", "1.0.0").annotations == {
        "org.opencontainers.image.title": "m",
        "org.opencontainers.image.version": "1.0.0",
    }
