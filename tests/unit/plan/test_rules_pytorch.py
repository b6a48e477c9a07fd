from typing import Any

import pytest

from tests.unit.plan.found import found
from tests.unit.plan.plans import MakeUnits


def graphs(**config: Any) -> dict[str, Any]:
    return {"flow": "pytorch", "serving": {"family": "llmapi"}, "llm_args": {"cuda_graph_config": config}}


def test_cuda_graphs_are_listed_or_bounded(make_units: MakeUnits) -> None:
    assert found(make_units, **graphs(batch_sizes=[1, 2], max_batch_size=8))["CUDA_GRAPH_SIZES"].severity == "refuse"


@pytest.mark.parametrize("config", [{"batch_sizes": [1, 2]}, {"max_batch_size": 8}])
def test_one_of_the_two_is_accepted(make_units: MakeUnits, config: dict[str, Any]) -> None:
    assert not found(make_units, **graphs(**config)).keys() & {"CUDA_GRAPH_SIZES", "CUDA_GRAPH_MEMORY"}


def test_many_cuda_graphs_take_memory_from_the_cache(make_units: MakeUnits) -> None:
    """200 MB each: 43 of them are more than a tenth of 81,559 MiB."""
    assert "CUDA_GRAPH_MEMORY" not in found(make_units, **graphs(batch_sizes=list(range(1, 43))))
    finding = found(make_units, **graphs(batch_sizes=list(range(1, 44))))["CUDA_GRAPH_MEMORY"]
    assert finding.values["graph_bytes"] == 8_600_000_000
