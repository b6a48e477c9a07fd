"""The TensorRT-LLM release: whether it is in use, has the flow, and matches the serving container."""

import pytest

from tests.unit.plan.models import LLAMA_8B
from tests.unit.plan.plans import MakeUnits, findings, recipe

TRITON = "nvcr.io/nvidia/tritonserver"


def served(release: str, toolchain: str = "trtllm-1.2.1", flow: str = "engine") -> str:
    return recipe(toolchain=toolchain, flow=flow, extra=f"package: {{base: '{TRITON}:{release}-trtllm-python-py3'}}\n")


def test_the_reference_toolchain_is_refused_for_a_gpu(make_units: MakeUnits) -> None:
    found = findings(make_units(recipe(toolchain="reference")))
    assert set(found) == {"TOOLCHAIN_SKU"}
    assert "TOOLCHAIN_SKU" not in findings(make_units(recipe("cpu", toolchain="reference")))


def test_a_retired_release_is_refused_and_nothing_else_is_said_of_it(make_units: MakeUnits) -> None:
    found = findings(make_units(recipe(toolchain="trtllm-0.10.0"), LLAMA_8B))
    assert found["TOOLCHAIN_RETIRED"].severity == "refuse"
    assert set(found) == {"TOOLCHAIN_RETIRED"}
    assert "TOOLCHAIN_RETIRED" not in findings(make_units(recipe(toolchain="trtllm-0.20.0"), LLAMA_8B))


def test_engines_of_a_release_that_lost_them_are_refused_with_the_last_that_has_them(make_units: MakeUnits) -> None:
    finding = findings(make_units(recipe(toolchain="trtllm-1.4.0rc1"), LLAMA_8B))["ENGINE_BACKEND_REMOVED"]
    assert finding.severity == "refuse"
    assert set(finding.values["console_scripts_left"]) == {"trtllm-bench", "trtllm-serve", "trtllm-eval"}
    assert "tensorrt-backend-removal" in finding.message
    assert "trtllm-1.2.1" in finding.suggestion
    assert "pytorch" in finding.suggestion


@pytest.mark.parametrize(("toolchain", "flow"), [("trtllm-1.4.0rc1", "pytorch"), ("trtllm-1.2.1", "engine")])
def test_a_flow_that_the_release_has_is_accepted(make_units: MakeUnits, toolchain: str, flow: str) -> None:
    found = findings(make_units(recipe(toolchain=toolchain, flow=flow), LLAMA_8B))
    assert not {"ENGINE_BACKEND_REMOVED", "FLOW_NOT_OFFERED"} & set(found)


def test_the_pytorch_flow_of_a_release_without_it_is_refused(make_units: MakeUnits) -> None:
    finding = findings(make_units(recipe(toolchain="trtllm-0.20.0", flow="pytorch"), LLAMA_8B))["FLOW_NOT_OFFERED"]
    assert finding.severity == "refuse"
    assert finding.values["flows"] == ["engine"]
    assert findings(make_units(recipe("cpu", flow="pytorch")))["FLOW_NOT_OFFERED"].severity == "refuse"


@pytest.mark.parametrize(
    ("toolchain", "container", "versions"),
    [("trtllm-1.2.1", "25.12", "1.1.0 / TRT 10.13.3.9"), ("trtllm-0.10.0", "24.05", "0.9.0 / TRT 10.0.1.6")],
)
def test_a_container_of_another_tensorrt_is_refused_with_those_that_match(
    make_units: MakeUnits, toolchain: str, container: str, versions: str
) -> None:
    finding = findings(make_units(served(container, toolchain), LLAMA_8B))["TRT_VERSION_MISMATCH"]
    assert finding.severity == "refuse"
    assert finding.values[container] == versions
    matching = {"trtllm-1.2.1": "26.07", "trtllm-0.10.0": "24.06"}[toolchain]
    assert f"{TRITON}:{matching}-trtllm-python-py3" in finding.suggestion


@pytest.mark.parametrize(("toolchain", "container"), [("trtllm-1.1.0", "25.12"), ("trtllm-0.10.0", "24.06")])
def test_a_container_of_the_same_versions_is_accepted(make_units: MakeUnits, toolchain: str, container: str) -> None:
    assert "TRT_VERSION_MISMATCH" not in findings(make_units(served(container, toolchain), LLAMA_8B))


def test_without_an_engine_another_release_in_the_container_is_only_told(make_units: MakeUnits) -> None:
    finding = findings(make_units(served("25.12", flow="pytorch"), LLAMA_8B))["TRT_VERSION_MISMATCH"]
    assert finding.severity == "warn"
    assert "1.1.0" in finding.message


def test_a_container_that_no_table_describes_can_be_waived(make_units: MakeUnits) -> None:
    assert findings(make_units(served("99.01"), LLAMA_8B))["CONTAINER_UNKNOWN"].severity == "refuse-waivable"
    assert "CONTAINER_UNKNOWN" not in findings(make_units(served("26.07"), LLAMA_8B))
    other = recipe(extra="package: {base: 'registry.example.com/base:1'}\n")
    assert "CONTAINER_UNKNOWN" not in findings(make_units(other, LLAMA_8B))
