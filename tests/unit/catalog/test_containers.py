from importlib.resources import files

import pytest
import yaml

from builder import catalog
from builder.catalog import container_of_image, containers, containers_with, mismatch, toolchains
from builder.errors import UsageError

DIGEST = "sha256:" + "0" * 64


# Rows of the compatibility page of triton-inference-server/server.
@pytest.mark.parametrize(
    ("release", "trtllm", "tensorrt", "cuda", "driver", "size_bytes"),
    [
        ("26.07", "1.2.1", "10.14.1.48", "13.1.0.036", "590.44.01", 14_200_000_000),
        ("25.12", "1.1.0", "10.13.3.9", "13.0.2.006", "580.95.05", 16_040_000_000),
        ("25.11", "1.0.3.2510", "10.13.3.9", "13.0.2.006", "580.95.05", 12_250_000_000),
        ("24.06", "0.10.0", "10.0.1", "12.4.0.041", "550.54.14", 31_000_000_000),
        ("24.04", "0.9.0", "9.3.0.post12.dev1", "12.3.2.001", "545.23.08", 34_000_000_000),
    ],
)
def test_a_container_has_the_versions_of_the_compatibility_page(
    release: str, trtllm: str, tensorrt: str, cuda: str, driver: str, size_bytes: int
) -> None:
    found = containers()[release]
    assert (found.trtllm, found.tensorrt, found.cuda, found.driver) == (trtllm, tensorrt, cuda, driver)
    assert found.size_bytes == size_bytes
    assert found.image == f"nvcr.io/nvidia/tritonserver:{release}-trtllm-python-py3"


def test_containers_run_without_a_gap_from_24_02_to_26_07_newest_first() -> None:
    months = [f"{year}.{month:02}" for year in (24, 25, 26) for month in range(1, 13)]
    expected = ["23.12", *months[months.index("24.02") : months.index("26.07") + 1]]
    assert list(containers()) == expected[::-1]


@pytest.mark.parametrize(
    "reference",
    [
        "nvcr.io/nvidia/tritonserver:25.12-trtllm-python-py3",
        f"nvcr.io/nvidia/tritonserver:25.12-trtllm-python-py3@{DIGEST}",
        "registry.example.com:5000/mirror/nvidia/tritonserver:25.12-trtllm-python-py3",
        "tritonserver:25.12-trtllm-python-py3",
    ],
)
def test_an_image_is_recognised_on_any_host_and_with_a_digest(reference: str) -> None:
    assert container_of_image(reference) == containers()["25.12"]


@pytest.mark.parametrize(
    "reference",
    [
        "nvcr.io/nvidia/tritonserver:25.12-py3",
        "nvcr.io/nvidia/tritonserver:25.12-vllm-python-py3",
        "nvcr.io/nvidia/tritonserver:99.12-trtllm-python-py3",
        f"nvcr.io/nvidia/tritonserver@{DIGEST}",
        "nvcr.io/nvidia/mytritonserver:25.12-trtllm-python-py3",
        "nvcr.io/nvidia/tensorrt-llm/release:1.2.1",
        "",
    ],
)
def test_another_image_is_no_container_of_the_table(reference: str) -> None:
    assert container_of_image(reference) is None


@pytest.mark.parametrize(
    ("trtllm", "tensorrt", "release"),
    [
        ("0.10.0", None, "24.06"),
        ("1.1.0", None, "25.12"),
        ("1.2.1", "10.14.1.48", "26.04"),
        (None, "10.0.1.6", "24.06"),
        (None, "10.13.3", "25.12"),
        (None, None, "25.12"),
        (None, "8.6.1", "24.03"),
    ],
)
def test_an_engine_of_the_same_versions_may_be_loaded(trtllm: str | None, tensorrt: str | None, release: str) -> None:
    assert mismatch(trtllm, tensorrt, containers()[release]) is None


@pytest.mark.parametrize(
    ("trtllm", "tensorrt", "release", "words"),
    [
        ("0.10.0", None, "24.03", "made by TensorRT-LLM 0.10.0, but Triton's container 24.03 has TensorRT-LLM 0.8.0"),
        (
            None,
            "10.14.1.48",
            "25.12",
            "made by TensorRT 10.14.1.48, but Triton's container 25.12 has TensorRT 10.13.3.9",
        ),
        (
            "1.2.1",
            "10.14.1.48",
            "25.12",
            "made by TensorRT-LLM 1.2.1 and TensorRT 10.14.1.48, "
            "but Triton's container 25.12 has TensorRT-LLM 1.1.0 and TensorRT 10.13.3.9",
        ),
    ],
)
def test_an_engine_of_other_versions_is_named_with_both(
    trtllm: str | None, tensorrt: str | None, release: str, words: str
) -> None:
    assert mismatch(trtllm, tensorrt, containers()[release]) == words


@pytest.mark.parametrize(
    ("trtllm", "tensorrt", "release"),
    [
        ("1.1.0rc2", None, "25.12"),
        ("1.0.3", None, "25.11"),
        (None, "10.13.3.10", "25.12"),
        (None, "10.13", "25.12"),
        (None, "9.3.0", "24.04"),
    ],
)
def test_a_pre_release_another_build_or_half_a_version_is_another_version(
    trtllm: str | None, tensorrt: str | None, release: str
) -> None:
    assert mismatch(trtllm, tensorrt, containers()[release]) is not None


def test_the_containers_that_hold_a_version_are_suggested_newest_first() -> None:
    assert [found.release for found in containers_with("0.10.0")] == ["24.06"]
    assert [found.release for found in containers_with("1.2.1")] == ["26.07", "26.06", "26.05", "26.04"]
    assert containers_with("0.10.1") == ()


def test_a_word_that_is_no_version_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        mismatch("latest", None, containers()["25.12"])
    assert caught.value.code == "BAD_VERSION"


def test_the_toolchains_that_build_are_served_by_containers_of_their_own_versions() -> None:
    for toolchain in (toolchain for toolchain in toolchains().values() if toolchain.retired is None):
        for image in (image for image in toolchain.serving_images if "/tritonserver:" in image):
            found = container_of_image(image)
            assert found is not None, image
            assert mismatch(toolchain.version, toolchain.tensorrt, found) is None


def test_the_container_map_names_its_sources_with_their_dates() -> None:
    sources = yaml.safe_load(files(catalog).joinpath("containers.yaml").read_text())["sources"]
    assert sources
    assert all(2025 <= source["date"].year <= 2026 and source["source"] for source in sources)
