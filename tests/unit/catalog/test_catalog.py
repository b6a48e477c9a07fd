from importlib.resources import files

import pytest
import yaml

from builder import catalog
from builder.catalog import did_you_mean


def fact_sheets() -> dict[str, dict[str, object]]:
    folder = files(catalog)
    sheets = {f"gpus/{name}": entry for name, entry in yaml.safe_load(folder.joinpath("gpus.yaml").read_text()).items()}
    for path in folder.joinpath("toolchains").iterdir():
        sheets[f"toolchains/{path.name}"] = yaml.safe_load(path.read_text())
    return sheets


@pytest.mark.parametrize("name", sorted(fact_sheets()))
def test_every_fact_sheet_names_its_sources_with_their_dates(name: str) -> None:
    sources = fact_sheets()[name]["sources"]
    assert isinstance(sources, list)
    for source in sources:
        assert {"fact", "source", "date"} == source.keys()
        assert 2025 <= source["date"].year <= 2026


@pytest.mark.parametrize("name", sorted(name for name in fact_sheets() if name.startswith("gpus/")))
def test_every_fact_of_a_gpu_is_covered_by_a_source(name: str) -> None:
    sheet = fact_sheets()[name]
    covered = ", ".join(source["fact"] for source in sheet["sources"])
    for fact in ("compute_capability", "memory_mib", "pci_device_ids"):
        assert (fact in sheet) == (fact in covered)


@pytest.mark.parametrize(
    ("sku", "capability", "memory_mib"),
    [("l40s-48gb", "8.9", 46068), ("a100-sxm-80gb", "8.0", 81920), ("h100-sxm-80gb", "9.0", 81559)],
)
def test_gpus_have_the_memory_that_the_driver_reports(sku: str, capability: str, memory_mib: int) -> None:
    gpu = catalog.gpus()[sku]
    assert (gpu.compute_capability, gpu.memory_mib) == (capability, memory_mib)


def test_precisions_run_on_the_compute_capabilities_that_the_toolchain_lists() -> None:
    trtllm, reference = catalog.toolchains()["trtllm-1.2.1"], catalog.toolchains()["reference"]
    assert trtllm.runs("bf16", catalog.gpus()["l40s-48gb"])
    assert not trtllm.runs("bf16", catalog.gpus()["cpu"])
    assert reference.runs("bf16", catalog.gpus()["cpu"])
    assert not reference.runs("bf16", catalog.gpus()["l40s-48gb"])


def test_a_near_miss_is_answered_with_the_word_and_a_far_one_with_all() -> None:
    assert did_you_mean("l40s", ["l40s-48gb", "cpu"]) == "did you mean 'l40s-48gb'?"
    assert did_you_mean("zzz", ["b", "a"]) == "known are: a, b"
