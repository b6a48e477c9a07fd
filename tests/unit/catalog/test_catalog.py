from importlib.resources import files

import pytest
import yaml

from builder import catalog
from builder.catalog import did_you_mean


def fact_sheets() -> dict[str, dict[str, object]]:
    folder = files(catalog)
    sheets: dict[str, dict[str, object]] = {}
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


def test_precisions_run_on_the_compute_capabilities_that_the_toolchain_lists() -> None:
    trtllm, reference = catalog.toolchains()["trtllm-1.2.1"], catalog.toolchains()["reference"]
    assert trtllm.runs("bf16", catalog.gpus()["l40s-48gb"])
    assert not trtllm.runs("bf16", catalog.gpus()["cpu"])
    assert reference.runs("bf16", catalog.gpus()["cpu"])
    assert not reference.runs("bf16", catalog.gpus()["l40s-48gb"])


def test_a_near_miss_is_answered_with_the_word_and_a_far_one_with_all() -> None:
    assert did_you_mean("l40s", ["l40s-48gb", "cpu"]) == "did you mean 'l40s-48gb'?"
    assert did_you_mean("zzz", ["b", "a"]) == "known are: a, b"
