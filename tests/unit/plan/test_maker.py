"""Who makes a checkpoint, and what counts for its key."""

from typing import Any

import pytest

from builder.plan import PlannedUnit
from tests.unit.plan.models import AWQ, GPTQ, LLAMA_8B, QWEN2_7B, quantized
from tests.unit.plan.plans import MakePlan, MakeUnits, recipe

CALIBRATED = "calibration: {dataset: file:chat.jsonl}\n"
HOST = "{weights: fp8, kv_cache: auto, quantizer: host}"
MIMO = LLAMA_8B | {"architectures": ["MiMoForCausalLM"], "model_type": "mimo", "num_nextn_predict_layers": 1}


def on_host(text: str) -> str:
    return text.replace("{weights: fp8, kv_cache: auto}", HOST)


@pytest.mark.parametrize(
    ("text", "config", "maker"),
    [
        (recipe("l40s-48gb"), {}, "converter"),
        (recipe("l40s-48gb"), QWEN2_7B, "converter"),
        (recipe("l40s-48gb", "int8-wo"), QWEN2_7B, "converter"),
        (recipe("l40s-48gb", "fp16"), MIMO, "toolchain"),
        (recipe("l40s-48gb", flow="pytorch"), MIMO, "snapshot"),
        (recipe("l40s-48gb", "as-published", flow="pytorch"), quantized(LLAMA_8B, AWQ), "snapshot"),
        (recipe("l40s-48gb", "as-published"), quantized(LLAMA_8B, AWQ), "toolchain"),
        (recipe("l40s-48gb", "as-published"), quantized(LLAMA_8B, GPTQ), "converter"),
        (recipe("l40s-48gb", "as-published"), quantized(LLAMA_8B, GPTQ | {"desc_act": True}), "toolchain"),
        (recipe("l40s-48gb", "fp8", extra=CALIBRATED), {}, "toolchain"),
        (on_host(recipe("l40s-48gb", "fp8", extra=CALIBRATED)), {}, "modelopt"),
        (on_host(recipe("l40s-48gb", "fp8", flow="pytorch", extra=CALIBRATED)), MIMO, "modelopt"),
        (recipe("cpu", "fp8", extra=CALIBRATED), {}, "modelopt"),
        (recipe("l40s-48gb", kv_cache="fp8", extra=CALIBRATED), {}, "toolchain"),
        (recipe("cpu", kv_cache="fp8", extra=CALIBRATED), {}, "modelopt"),
        (recipe("l40s-48gb", kv_cache="fp8", flow="pytorch"), {}, "snapshot"),
    ],
)
def test_the_plan_says_who_makes_the_checkpoint(
    make_units: MakeUnits, text: str, config: dict[str, Any], maker: str
) -> None:
    (unit,) = make_units(text, config)
    assert unit.maker == maker


def inputs(planned: list[PlannedUnit]) -> dict[str, Any]:
    parameters: dict[str, Any] = planned[0].stages["checkpoint"].inputs["parameters"]
    return parameters


def test_the_version_of_modelopt_counts_where_it_runs_here(make_plan: MakePlan) -> None:
    here = inputs(make_plan(on_host(recipe("l40s-48gb", "fp8", extra=CALIBRATED))))
    assert here["modelopt"] == "==0.47.0"
    assert "toolchain" not in here
    there = inputs(make_plan(recipe("l40s-48gb", "fp8", extra=CALIBRATED)))
    assert "modelopt" not in there
    assert there["toolchain"]["name"] == "trtllm-1.2.1"


def test_what_shapes_a_checkpoint_that_we_convert(make_plan: MakePlan) -> None:
    split = "parallelism: {tensor: 3, context: 2, use_parallel_embedding: true, embedding_sharding_dim: 1}\n"
    plain, parted = inputs(make_plan(recipe("l40s-48gb"))), inputs(make_plan(recipe("l40s-48gb", extra=split)))
    assert plain == {"precision": "bf16", "dtype": "bfloat16", "tensor": 1, "pipeline": 1}
    assert parted == plain | {"tensor": 3, "context": 2, "embedding_sharding_dim": 1}


def test_nothing_shapes_a_snapshot_but_its_files(make_plan: MakePlan) -> None:
    first, second = (make_plan(recipe(sku, flow="pytorch"))[0] for sku in ("l40s-48gb", "h100-sxm-80gb"))
    assert inputs([first]) == {"maker": "snapshot"}
    assert first.stages["checkpoint"].derivation == second.stages["checkpoint"].derivation
