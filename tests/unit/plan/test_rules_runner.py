from typing import Any

import pytest

from tests.unit.plan.found import LLAMA_70B, found
from tests.unit.plan.plans import MakeUnits
from tests.unit.plan.test_rules_fusion import CALIBRATION

TRITON = "nvcr.io/nvidia/tritonserver:{}-trtllm-python-py3"


@pytest.mark.parametrize(
    ("release", "severity"),
    [("25.12", "refuse-waivable"), ("25.11", "warn"), ("25.08", "refuse-waivable"), ("24.05", "refuse-waivable")],
)
def test_a_runner_of_14_gb_holds_no_large_base_image(make_units: MakeUnits, release: str, severity: str) -> None:
    """actions/runner-images issue 10237: 14 GB are free; the containers have 16.04, 12.25, 20.49 and 34 GB."""
    recipe: dict[str, Any] = {"sku": "cpu", "package": {"base": TRITON.format(release)}, "runner": {"disk_gb": 14}}
    assert found(make_units, {}, **recipe)["DISK"].severity == severity


def test_a_runner_with_room_is_accepted(make_units: MakeUnits) -> None:
    recipe: dict[str, Any] = {"sku": "cpu", "package": {"base": TRITON.format("25.11")}, "runner": {"disk_gb": 26}}
    assert "DISK" not in found(make_units, {}, **recipe)


def test_without_a_description_of_the_runner_nothing_is_said(make_units: MakeUnits) -> None:
    assert found(make_units) == {}


def test_disk_counts_checkpoint_and_engines(make_units: MakeUnits) -> None:
    """16.06 GB of checkpoint and 16.13 GB of engine with its rope table."""
    finding = found(make_units, runner={"disk_gb": 32})["DISK"]
    assert finding.severity == "refuse-waivable"
    assert finding.values["needed_bytes"]["low"] // 10**6 == 32188
    assert "DISK" not in found(make_units, runner={"disk_gb": 33})


@pytest.mark.parametrize(("memory", "severity"), [(20, "refuse-waivable"), (40, "warn"), (100, None)])
def test_memory_of_the_runner_is_checked_at_both_ends(make_units: MakeUnits, memory: int, severity: str | None) -> None:
    """ "48 GB of memory" is a common advice for building an 8B model in 16 bit."""
    finding = found(make_units, runner={"memory_gb": memory}).get("HOST_MEMORY")
    assert (finding.severity if finding else None) == severity


def test_a_model_that_is_too_large_to_calibrate_on_its_own_gpus_is_told(make_units: MakeUnits) -> None:
    """Llama-3.1-70B has 141 GB in 16 bit; its AWQ weights fit one H100."""
    recipe: dict[str, Any] = {"precision": {"weights": "int4-awq"}, "calibration": CALIBRATION}
    finding = found(make_units, LLAMA_70B, **recipe)["QUANTIZE_MEMORY"]
    assert finding.severity == "warn"
    assert finding.values["needed_bytes"] == 141_107_412_992
    assert "QUANTIZE_MEMORY" not in found(make_units, LLAMA_70B, **recipe, gpus=2)
    assert "QUANTIZE_MEMORY" not in found(make_units, **recipe)
