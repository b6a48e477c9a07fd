"""Making a quantised checkpoint: groups, calibration, and what only published checkpoints have."""

import pytest

from tests.unit.plan.models import AWQ, GPTQ, LLAMA_8B, quantized
from tests.unit.plan.plans import MakeUnits, findings, recipe

CALIBRATED = "calibration: {dataset: file:chat.jsonl}"
AS_PUBLISHED = recipe("h100-sxm-80gb", "as-published")


def test_gptq_with_groups_of_32_is_refused(make_units: MakeUnits) -> None:
    finding = findings(make_units(AS_PUBLISHED, quantized(LLAMA_8B, GPTQ | {"group_size": 32})))[
        "GROUP_SIZE_UNSUPPORTED"
    ]
    assert finding.severity == "refuse"
    assert finding.values["supported"] == [64, 128]
    assert "32" in finding.message


@pytest.mark.parametrize("size", [64, 128])
def test_gptq_with_groups_that_have_kernels_is_accepted(make_units: MakeUnits, size: int) -> None:
    assert findings(make_units(AS_PUBLISHED, quantized(LLAMA_8B, GPTQ | {"group_size": size}))) == {}


def test_gptq_with_one_scale_per_channel_is_refused(make_units: MakeUnits) -> None:
    finding = findings(make_units(AS_PUBLISHED, quantized(LLAMA_8B, GPTQ | {"group_size": -1})))[
        "GROUP_SIZE_UNSUPPORTED"
    ]
    assert "-1" in finding.message


@pytest.mark.parametrize(("weights", "supported"), [("w4a8-awq", [128]), ("int4-awq", [64, 128]), ("nvfp4", [16])])
def test_the_recipe_chooses_among_the_sizes_of_the_precision(
    make_units: MakeUnits, weights: str, supported: list[int]
) -> None:
    def text(size: int) -> str:
        return recipe("h100-sxm-80gb", weights, extra=CALIBRATED).replace("kv_cache: auto", f"group_size: {size}")

    assert findings(make_units(text(256), LLAMA_8B))["GROUP_SIZE_UNSUPPORTED"].values["supported"] == supported
    assert "GROUP_SIZE_UNSUPPORTED" not in findings(make_units(text(supported[0]), LLAMA_8B))


def test_gptq_with_reordered_inputs_is_refused(make_units: MakeUnits) -> None:
    assert "GPTQ_DESC_ACT" in findings(make_units(AS_PUBLISHED, quantized(LLAMA_8B, GPTQ | {"desc_act": True})))
    assert "GPTQ_DESC_ACT" not in findings(make_units(AS_PUBLISHED, quantized(LLAMA_8B, GPTQ)))


def test_a_format_that_is_only_published_is_not_made_here(make_units: MakeUnits) -> None:
    finding = findings(make_units(recipe("h100-sxm-80gb", "int4-gptq"), LLAMA_8B))["PRECISION_PUBLISHED_ONLY"]
    assert "as-published" in finding.suggestion
    assert "PRECISION_PUBLISHED_ONLY" not in findings(make_units(AS_PUBLISHED, quantized(LLAMA_8B, GPTQ)))


@pytest.mark.parametrize("weights", ["fp8", "int4-awq", "int8-sq"])
def test_a_measured_format_needs_text_that_the_lock_can_pin(make_units: MakeUnits, weights: str) -> None:
    finding = findings(make_units(recipe("h100-sxm-80gb", weights), LLAMA_8B))["CALIBRATION_REQUIRED"]
    assert finding.severity == "refuse"
    assert "calibration.dataset" in finding.suggestion
    assert findings(make_units(recipe("h100-sxm-80gb", weights, extra=CALIBRATED), LLAMA_8B)) == {}


def test_an_int8_kv_cache_is_measured_in_the_engine_flow(make_units: MakeUnits) -> None:
    text = recipe("h100-sxm-80gb", "bf16", kv_cache="int8")
    assert "CALIBRATION_REQUIRED" in findings(make_units(text, LLAMA_8B))
    assert "CALIBRATION_REQUIRED" not in findings(make_units(text + CALIBRATED, LLAMA_8B))


def test_an_fp8_kv_cache_is_not_measured_in_the_pytorch_flow(make_units: MakeUnits) -> None:
    text = recipe("h100-sxm-80gb", "bf16", kv_cache="fp8", flow="pytorch")
    assert "CALIBRATION_REQUIRED" not in findings(make_units(text, LLAMA_8B))


@pytest.mark.parametrize("weights", ["int8-wo", "int4-wo", "bf16"])
def test_calibration_data_that_nothing_reads_is_told(make_units: MakeUnits, weights: str) -> None:
    found = findings(make_units(recipe("h100-sxm-80gb", weights, extra=CALIBRATED), LLAMA_8B))
    assert found["CALIBRATION_UNUSED"].severity == "warn"
    assert "CALIBRATION_REQUIRED" not in findings(make_units(recipe("h100-sxm-80gb", weights), LLAMA_8B))


def test_calibration_data_of_a_recipe_may_be_for_another_target(make_units: MakeUnits) -> None:
    text = recipe("h100-sxm-80gb", "fp8") + "  - {sku: a100-sxm-80gb, precision: {weights: int8-wo}}\n" + CALIBRATED
    assert [findings(make_units(text, LLAMA_8B), unit) for unit in (0, 1)] == [{}, {}]


def test_a_published_checkpoint_needs_no_calibration(make_units: MakeUnits) -> None:
    assert findings(make_units(AS_PUBLISHED, quantized(LLAMA_8B, AWQ))) == {}


def test_blocks_that_leave_a_part_of_a_row_are_refused_with_those_that_fit(make_units: MakeUnits) -> None:
    """SmolLM2-135M has 576 = 4.5 x 128 inputs."""
    finding = findings(make_units(recipe("h100-sxm-80gb", "int4-awq", extra=CALIBRATED)))["GROUP_SIZE_MISFIT"]
    assert finding.severity == "refuse"
    assert finding.values["misfits"] == [576]
    assert finding.values["fitting"] == [64]
    assert "group_size: 64" in finding.suggestion
    fitting = recipe("h100-sxm-80gb", "int4-awq", extra=CALIBRATED).replace("int4-awq", "int4-awq, group_size: 64")
    assert "GROUP_SIZE_MISFIT" not in findings(make_units(fitting))


def test_a_width_that_no_block_divides_is_sent_to_formats_without_blocks(make_units: MakeUnits) -> None:
    narrow = {"hidden_size": 540, "head_dim": 60}
    finding = findings(make_units(recipe("h100-sxm-80gb", "int4-awq", extra=CALIBRATED), narrow))["GROUP_SIZE_MISFIT"]
    assert finding.values["fitting"] == []
    assert "fp8" in finding.suggestion


def test_nvfp4_needs_blocks_of_16(make_units: MakeUnits) -> None:
    text = recipe("b200-180gb", "nvfp4", extra=CALIBRATED)
    assert "GROUP_SIZE_MISFIT" not in findings(make_units(text))
    assert findings(make_units(text, {"intermediate_size": 1544}))["GROUP_SIZE_MISFIT"].values["misfits"] == [1544]


@pytest.mark.parametrize(
    ("sku", "weights", "more", "hint"),
    [
        ("h100-sxm-80gb", "fp8", "", "quantizer: host"),
        ("h100-sxm-80gb", "bf16", ", quantizer: host", "modelopt_recipe: null"),
        ("cpu", "int8-wo", "", "modelopt_recipe: null"),
    ],
)
def test_a_recipe_of_modelopt_that_nothing_reads_is_refused(
    make_units: MakeUnits, sku: str, weights: str, more: str, hint: str
) -> None:
    text = recipe(sku, weights, extra=CALIBRATED).replace("kv_cache: auto", "modelopt_recipe: file:own.yaml" + more)
    finding = findings(make_units(text, LLAMA_8B))["MODELOPT_RECIPE_UNUSED"]
    assert finding.severity == "refuse"
    assert hint in finding.suggestion


def test_a_recipe_of_modelopt_is_accepted_where_the_library_quantises(make_units: MakeUnits) -> None:
    text = recipe("h100-sxm-80gb", "fp8", extra=CALIBRATED)
    text = text.replace("kv_cache: auto", "modelopt_recipe: file:own.yaml, quantizer: host")
    assert "MODELOPT_RECIPE_UNUSED" not in findings(make_units(text, LLAMA_8B))
