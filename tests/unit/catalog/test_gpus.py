import re
import time
from collections import Counter
from importlib.resources import files
from typing import Any

import pytest
import yaml

from builder import catalog
from builder.catalog import Gpu, find_gpu, gpu_hint, gpus
from builder.catalog import gpus as read_gpus

WHOLE = [gpu for gpu in gpus().values() if gpu.mig is None]
CARDS = [gpu for gpu in WHOLE if not gpu.is_cpu]
SLICES = [gpu for gpu in gpus().values() if gpu.mig is not None]

ARCHITECTURES = {
    "7.0": "Volta",
    "7.5": "Turing",
    "8.0": "Ampere",
    "8.6": "Ampere",
    "8.9": "Ada",
    "9.0": "Hopper",
    "10.0": "Blackwell",
    "10.3": "Blackwell",
    "12.0": "Blackwell",
    "12.1": "Blackwell",
}


def sheet() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(files(catalog).joinpath("gpus.yaml").read_text())
    return content


def names(group: list[Gpu]) -> list[str]:
    return [gpu.name for gpu in group]


# memory.total as public nvidia-smi listings have it, one per generation and vendor of a listing.
@pytest.mark.parametrize(
    ("sku", "capability", "memory_mib"),
    [
        ("v100-sxm-32gb", "7.0", 32768),
        ("t4-16gb", "7.5", 15360),
        ("a10g-24gb", "8.6", 23028),
        ("a100-sxm-80gb", "8.0", 81920),
        ("l40s-48gb", "8.9", 46068),
        ("rtx-4090-24gb", "8.9", 24564),
        ("h20-96gb", "9.0", 97871),
        ("h100-sxm-80gb", "9.0", 81559),
        ("h200-sxm-141gb", "9.0", 143771),
        ("b200-180gb", "10.0", 183359),
        ("gb200-186gb", "10.0", 189471),
        ("b300-269gb", "10.3", 275040),
        ("rtx-5090-32gb", "12.0", 32607),
        ("h100-sxm-80gb-mig-1g.10gb", "9.0", 9984),
        ("h100-sxm-80gb-mig-3g.40gb", "9.0", 40448),
        ("a100-sxm-80gb-mig-2g.20gb", "8.0", 19968),
    ],
)
def test_gpus_have_the_memory_that_the_driver_reports(sku: str, capability: str, memory_mib: int) -> None:
    gpu = gpus()[sku]
    assert (gpu.compute_capability, gpu.memory_mib) == (capability, memory_mib)
    assert gpu.memory_exact
    assert gpu.memory_bytes == memory_mib * 2**20


def test_memory_that_the_driver_hides_is_the_nominal_size() -> None:
    spark = gpus()["gb10-128gb"]
    assert not spark.memory_exact
    assert spark.memory_bytes == 128 * 10**9
    assert gpus()["cpu"].memory_bytes is None


@pytest.mark.parametrize("name", names([gpu for gpu in gpus().values() if gpu.memory_exact]))
def test_memory_is_a_little_more_than_the_nominal_size(name: str) -> None:
    gpu = gpus()[name]
    assert gpu.memory_mib is not None
    assert gpu.nominal_gb is not None
    assert 1.0 <= gpu.memory_mib * 2**20 / (gpu.nominal_gb * 1e9) <= 1.12


@pytest.mark.parametrize("name", names(CARDS))
def test_the_size_in_a_name_is_the_nominal_size(name: str) -> None:
    size = re.search(r"-(\d+)gb$", name)
    assert size
    assert float(size[1]) == gpus()[name].nominal_gb


@pytest.mark.parametrize("name", names(CARDS))
def test_a_gpu_has_the_architecture_of_its_compute_capability(name: str) -> None:
    gpu = gpus()[name]
    assert gpu.compute_capability is not None
    assert gpu.architecture == ARCHITECTURES[gpu.compute_capability]


def test_product_names_belong_to_one_sku_but_for_the_two_sizes_of_the_rtx_3080() -> None:
    owners = Counter(product for gpu in gpus().values() for product in gpu.products)
    assert {product for product, count in owners.items() if count > 1} == {"NVIDIA GeForce RTX 3080"}


def test_device_ids_are_four_hex_digits_of_one_sku() -> None:
    owners = Counter(device for gpu in CARDS for device in gpu.pci_device_ids)
    assert set(owners.values()) == {1}
    assert all(re.fullmatch("[0-9a-f]{4}", device) for device in owners)
    assert all(gpu.pci_device_ids for gpu in CARDS)


def test_grace_and_gb10_are_arm_and_the_others_are_not() -> None:
    arm = {gpu.name.split("-")[0] for gpu in gpus().values() if gpu.platform == "linux/arm64"}
    assert arm == {"gh200", "gb200", "gb300", "gb10"}
    assert {gpu.platform for gpu in gpus().values()} == {"linux/amd64", "linux/arm64"}


def test_the_products_are_what_the_driver_calls_the_cards() -> None:
    assert gpus()["gh200-96gb"].products == ("NVIDIA GH200 480GB", "NVIDIA GH200 120GB")
    assert gpus()["h100-sxm-80gb-mig-1g.10gb"].product == "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
    assert all(gpu.product == gpu.products[0] for gpu in gpus().values())


@pytest.mark.parametrize("name", names(SLICES))
def test_a_slice_is_smaller_than_its_parent_and_alone(name: str) -> None:
    part = gpus()[name]
    assert part.parent is not None
    parent = gpus()[part.parent]
    assert part.mig is not None
    assert name == f"{parent.name}-mig-{part.mig}"
    assert part.memory_mib is not None
    assert parent.memory_mib is not None
    assert part.memory_mib < parent.memory_mib
    assert part.compute_capability == parent.compute_capability
    assert (part.gpus_per_node, part.nvlink_gb_s) == (1, None)


def test_a_slice_has_its_share_of_the_bandwidth() -> None:
    assert gpus()["h100-sxm-80gb-mig-1g.10gb"].bandwidth_gb_s == 3350 / 8
    assert gpus()["h100-sxm-80gb-mig-3g.40gb"].bandwidth_gb_s == 3350 / 2
    assert gpus()["h100-sxm-80gb-mig-7g.80gb"].bandwidth_gb_s == 3350


def test_every_fact_has_a_source_with_a_date() -> None:
    content = sheet()
    legend = content["sources"]
    assert all(source["source"] and 2025 <= source["date"].year <= 2026 for source in legend.values())
    assert {"architectures"} <= legend.keys()
    assert set(content["mig_sources"].values()) <= legend.keys()
    for name, entry in content["gpus"].items():
        own = entry.get("sources", {})
        for fact in entry.keys() - {"sources", "aliases"}:
            assert own.get(fact, content["read"].get(fact)) in legend, f"{name}: {fact}"
        assert own.keys() <= entry.keys(), f"{name}: a source without its fact"


def test_no_source_of_the_legend_is_idle() -> None:
    content = sheet()
    used = set(content["read"].values()) | set(content["mig_sources"].values()) | {"architectures"}
    used |= {source for entry in content["gpus"].values() for source in entry.get("sources", {}).values()}
    assert used == content["sources"].keys()


def test_the_catalog_of_gpus_is_read_in_a_moment() -> None:
    read_gpus.cache_clear()
    start = time.perf_counter()
    read_gpus()
    assert time.perf_counter() - start < 0.25  # about 8 ms; room for a busy machine


@pytest.mark.parametrize(
    ("word", "sku"),
    [
        ("h100-sxm-80gb", "h100-sxm-80gb"),
        ("H100-SXM-80GB", "h100-sxm-80gb"),
        ("H100_SXM5_80G", "h100-sxm-80gb"),
        ("h100-sxm", "h100-sxm-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm-80gb"),
        ("NVIDIA-H100-80GB-HBM3", "h100-sxm-80gb"),
        ("H100 80GB HBM3", "h100-sxm-80gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("a100-sxm4-40gb", "a100-sxm-40gb"),
        ("Tesla V100-SXM2-16GB", "v100-sxm-16gb"),
        ("v100-sxm2-32gb", "v100-sxm-32gb"),
        ("RTX-5880-Ada", "rtx-5880-ada-48gb"),
        ("rtx-4090", "rtx-4090-24gb"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090-24gb"),
        ("4070s", "rtx-4070-super-12gb"),
        ("L20", "l20-48gb"),
        ("l40", "l40-48gb"),
        ("L40S", "l40s-48gb"),
        ("b200-192gb", "b200-180gb"),
        ("b300-288gb", "b300-269gb"),
        ("NVIDIA GH200 120GB", "gh200-96gb"),
        ("NVIDIA H200", "h200-sxm-141gb"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-server-96gb"),
        ("RTX PRO 6000 Max-Q", "rtx-pro-6000-max-q-96gb"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "h100-sxm-80gb-mig-1g.10gb"),
        ("h100-sxm-mig-1g.10gb", "h100-sxm-80gb-mig-1g.10gb"),
        ("CPU", "cpu"),
    ],
)
def test_what_people_and_drivers_call_a_gpu_finds_it(word: str, sku: str) -> None:
    found = find_gpu(word)
    assert found is not None
    assert found.name == sku


@pytest.mark.parametrize("name", list(gpus()))
def test_every_sku_finds_itself(name: str) -> None:
    assert find_gpu(name) == gpus()[name]


@pytest.mark.parametrize("name", list(gpus()))
def test_every_product_name_finds_its_sku_or_several(name: str) -> None:
    for product in gpus()[name].products:
        assert find_gpu(product) == (None if name.startswith("rtx-3080") else gpus()[name])


@pytest.mark.parametrize(
    ("word", "variants"),
    [
        ("A100-80GB", ["a100-pcie-80gb", "a100-sxm-80gb"]),
        ("H100", ["h100-pcie-80gb", "h100-sxm-80gb", "h100-nvl-94gb"]),
        ("h200", ["h200-sxm-141gb", "h200-nvl-141gb"]),
        ("NVIDIA GeForce RTX 3080", ["rtx-3080-10gb", "rtx-3080-12gb"]),
        ("h100-mig-1g.10gb", ["h100-pcie-80gb-mig-1g.10gb", "h100-sxm-80gb-mig-1g.10gb"]),
    ],
)
def test_between_variants_nothing_is_guessed_and_the_hint_lists_them(word: str, variants: list[str]) -> None:
    assert find_gpu(word) is None
    hint = gpu_hint(word)
    assert hint == f"{word!r} may be {', '.join(variants[:-1])} or {variants[-1]}: name the one that you have"


@pytest.mark.parametrize(
    "word",
    [
        "",
        "nvidia",
        "80gb",
        "sxm",
        "rtx",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "RTX 4090 D",
        "rtx-4070",
        "RTX 3080 Ti",
        "mi300x",
    ],
)
def test_another_product_or_half_a_name_finds_nothing(word: str) -> None:
    assert find_gpu(word) is None


def test_a_misspelt_sku_is_answered_with_the_nearest() -> None:
    assert gpu_hint("rtx4090") == "did you mean 'rtx-4090-24gb'?"
    assert gpu_hint("rtx-4090") == "did you mean 'rtx-4090-24gb'?"
    assert gpu_hint("mi300x").startswith("known are: a10-24gb, ")
