"""Number formats: what a card can do, what a release does on it, and for which models."""

import pytest

from tests.unit.plan.models import FP8_BLOCK, LLAMA_7B, LLAMA_8B, QWEN3_30B_A3B, quantized
from tests.unit.plan.plans import MakeUnits, findings, recipe

CALIBRATED = "calibration: {dataset: file:chat.jsonl}"


def test_fp8_on_an_a100_is_refused_with_what_the_card_can_do(make_units: MakeUnits) -> None:
    finding = findings(make_units(recipe("a100-sxm-80gb", "fp8", extra=CALIBRATED), LLAMA_7B))["SM_TOO_OLD_FOR_FP8"]
    assert finding.severity == "refuse"
    assert (finding.values["sku_sm"], finding.values["min_sm"]) == ("8.0", "8.9")
    assert all(word in finding.message for word in ("A100", "FP8", "8.9 or newer"))
    runs = {"fp16", "bf16", "int8-sq", "int8-wo", "int4-wo", "int4-awq", "int4-gptq"}
    assert runs <= set(finding.values["valid_precisions"])
    assert all(name in finding.suggestion for name in runs)
    assert not {"fp8", "nvfp4"} & set(finding.values["valid_precisions"])


@pytest.mark.parametrize("sku", ["l40s-48gb", "h100-sxm-80gb", "b200-180gb"])
def test_fp8_on_newer_cards_is_accepted(make_units: MakeUnits, sku: str) -> None:
    assert findings(make_units(recipe(sku, "fp8", extra=CALIBRATED), LLAMA_8B)) == {}


@pytest.mark.parametrize(
    ("code", "weights", "too_old", "new_enough", "lowest"),
    [
        ("SM_TOO_OLD_FOR_BF16", "bf16", "v100-sxm-32gb", "a10-24gb", "8.0"),
        ("SM_TOO_OLD_FOR_INT8_SQ", "int8-sq", "t4-16gb", "a100-sxm-80gb", "8.0"),
        ("SM_TOO_OLD_FOR_INT4_AWQ", "int4-awq", "t4-16gb", "a30-24gb", "8.0"),
        ("SM_TOO_OLD_FOR_INT4_GPTQ", "int4-gptq", "t4-16gb", "a30-24gb", "8.0"),
        ("SM_TOO_OLD_FOR_INT8_GPTQ", "int8-gptq", "v100-sxm-32gb", "a30-24gb", "8.0"),
        ("SM_TOO_OLD_FOR_MIXED", "mixed", "v100-sxm-32gb", "a30-24gb", "8.0"),
        ("SM_TOO_OLD_FOR_FP8", "fp8", "a40-48gb", "l4-24gb", "8.9"),
        ("SM_TOO_OLD_FOR_FP8_ROWWISE", "fp8-rowwise", "a30-24gb", "h100-sxm-80gb", "8.9"),
        ("SM_TOO_OLD_FOR_W4A8_AWQ", "w4a8-awq", "a10-24gb", "l40s-48gb", "8.9"),
        ("SM_TOO_OLD_FOR_MXFP4", "mxfp4", "l40s-48gb", "b200-180gb", "9.0"),
        ("SM_TOO_OLD_FOR_NVFP4", "nvfp4", "h100-sxm-80gb", "b200-180gb", "10.0"),
    ],
)
def test_each_format_has_its_oldest_card(
    make_units: MakeUnits, code: str, weights: str, too_old: str, new_enough: str, lowest: str
) -> None:
    finding = findings(make_units(recipe(too_old, weights, extra=CALIBRATED), LLAMA_8B))[code]
    assert (finding.severity, finding.values["min_sm"]) == ("refuse", lowest)
    assert code not in findings(make_units(recipe(new_enough, weights, extra=CALIBRATED), LLAMA_8B))


def test_block_scaled_fp8_on_an_ada_card_is_another_ability_than_fp8(make_units: MakeUnits) -> None:
    text = recipe("rtx-5880-ada-48gb", "as-published", flow="pytorch")
    finding = findings(make_units(text, quantized(QWEN3_30B_A3B, FP8_BLOCK)))["SM_TOO_OLD_FOR_FP8_BLOCK"]
    assert finding.values["block_scale_sms"] == ["9.0", "10.0", "10.3"]
    assert finding.values["per_tensor_fp8_ok"] is True
    assert "block" in finding.message
    assert "9.0" in finding.message
    assert "bf16" in finding.suggestion


def test_block_scaled_fp8_on_a_card_without_any_fp8_offers_no_fp8(make_units: MakeUnits) -> None:
    text = recipe("a100-sxm-80gb", "as-published", flow="pytorch")
    finding = findings(make_units(text, quantized(QWEN3_30B_A3B, FP8_BLOCK)))["SM_TOO_OLD_FOR_FP8_BLOCK"]
    assert finding.values["per_tensor_fp8_ok"] is False


def test_block_scaled_fp8_on_hopper_is_accepted(make_units: MakeUnits) -> None:
    text = recipe("h100-sxm-80gb", "as-published", flow="pytorch")
    codes = findings(make_units(text, quantized(QWEN3_30B_A3B, FP8_BLOCK)))
    assert not {code for code in codes if code.startswith("SM_")}


@pytest.mark.parametrize("sku", ["v100-sxm-32gb", "t4-16gb"])
def test_cards_that_a_release_has_no_kernels_for_are_refused_whatever_the_format(
    make_units: MakeUnits, sku: str
) -> None:
    finding = findings(make_units(recipe(sku, "fp16"), LLAMA_8B | {"torch_dtype": "float16"}))["GPU_UNSUPPORTED"]
    assert finding.severity == "refuse"
    assert "8.0" in finding.values["supported_sms"]
    assert "GPU_UNSUPPORTED" not in findings(make_units(recipe("a100-sxm-80gb"), LLAMA_8B))


@pytest.mark.parametrize("weights", ["int8-wo", "int4-wo", "int4-awq", "int8-sq", "fp8-rowwise"])
def test_what_the_builder_raises_for_on_blackwell_is_refused(make_units: MakeUnits, weights: str) -> None:
    finding = findings(make_units(recipe("b200-180gb", weights, extra=CALIBRATED), LLAMA_8B))[
        "SM_UNSUPPORTED_PRECISION"
    ]
    assert finding.severity == "refuse"
    assert "9.0" in finding.values["supported_sms"]
    assert {"fp8", "nvfp4"} <= set(finding.values["valid_precisions"])


def test_a_format_that_the_flow_has_on_no_card_is_refused(make_units: MakeUnits) -> None:
    text = recipe("h100-sxm-80gb", "int8-sq", flow="pytorch", extra=CALIBRATED)
    finding = findings(make_units(text, LLAMA_8B))["PRECISION_UNSUPPORTED"]
    assert "the engine flow of trtllm-1.2.1 has" in finding.suggestion
    assert "int8-sq" not in finding.values["valid_precisions"]
    text = recipe("h100-sxm-80gb", "int8-sq", extra=CALIBRATED)
    assert "PRECISION_UNSUPPORTED" not in findings(make_units(text, LLAMA_8B))


def test_a_format_that_no_source_states_is_still_refused_where_none_could(make_units: MakeUnits) -> None:
    found = findings(make_units(recipe("b200-180gb", "int8-wo", flow="pytorch"), LLAMA_8B))
    assert found["SM_UNSUPPORTED_PRECISION"].values["supported_sms"] == []
    assert "may on SM 8.0" in found["SM_UNSUPPORTED_PRECISION"].message


def test_the_reference_model_has_the_formats_that_can_be_made_here(make_units: MakeUnits) -> None:
    finding = findings(make_units(recipe("cpu", "mxfp4")))["PRECISION_UNSUPPORTED"]
    assert {"bf16", "fp8", "nvfp4", "int8-sq"} <= set(finding.values["valid_precisions"])
    assert findings(make_units(recipe("cpu", "bf16"))) == {}
    assert findings(make_units(recipe("cpu", "fp8", extra=CALIBRATED))) == {}
    assert "CALIBRATION_REQUIRED" in findings(make_units(recipe("cpu", "fp8")))


def test_what_no_source_states_is_refused_until_it_is_waived(make_units: MakeUnits) -> None:
    text = recipe("rtx-5090-32gb", "int8-wo")
    finding = findings(make_units(text, LLAMA_8B))["PRECISION_UNCONFIRMED"]
    assert finding.severity == "refuse-waivable"
    assert finding.refuses
    waiver = "waivers: [{code: PRECISION_UNCONFIRMED, reason: measured on our bench}]"
    waived = findings(make_units(text + waiver, LLAMA_8B))["PRECISION_UNCONFIRMED"]
    assert waived.waived == "measured on our bench"
    assert not waived.refuses


def test_a_kv_cache_that_the_card_lacks_is_refused(make_units: MakeUnits) -> None:
    text = recipe("b200-180gb", "fp8", kv_cache="int8", extra=CALIBRATED)
    finding = findings(make_units(text, LLAMA_8B))["KV_PRECISION_UNSUPPORTED"]
    assert finding.severity == "refuse"
    assert finding.values["valid_kv_precisions"] == ["fp32", "fp16", "bf16", "fp8"]
    text = recipe("h100-sxm-80gb", "fp8", kv_cache="fp8", extra=CALIBRATED)
    assert findings(make_units(text, LLAMA_8B)) == {}


def test_a_kv_cache_that_no_source_states_is_refused_until_it_is_waived(make_units: MakeUnits) -> None:
    text = recipe("a100-sxm-80gb", "bf16", kv_cache="fp8", extra=CALIBRATED)
    assert findings(make_units(text, LLAMA_8B))["KV_PRECISION_UNCONFIRMED"].severity == "refuse-waivable"
    text = recipe("a100-sxm-80gb", "bf16", kv_cache="fp8", flow="pytorch")
    assert "KV_PRECISION_UNCONFIRMED" not in findings(make_units(text, LLAMA_8B))


def test_a_format_that_the_models_row_does_not_list_can_be_waived(make_units: MakeUnits) -> None:
    mistral = LLAMA_8B | {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": None}
    text = recipe("b200-180gb", "nvfp4", extra=CALIBRATED)
    finding = findings(make_units(text, mistral))["MODEL_PRECISION_UNSUPPORTED"]
    assert finding.severity == "refuse-waivable"
    assert "fp8" in finding.values["listed"]
    assert findings(make_units(text, LLAMA_8B)) == {}


def test_a_format_without_a_column_in_the_table_is_told(make_units: MakeUnits) -> None:
    found = findings(make_units(recipe("h100-sxm-80gb", "w4a8-awq", extra=CALIBRATED), LLAMA_8B))
    assert found["MODEL_PRECISION_UNSTATED"].severity == "warn"
    found = findings(make_units(recipe("h100-sxm-80gb", "int4-awq", extra=CALIBRATED), LLAMA_8B))
    assert "MODEL_PRECISION_UNSTATED" not in found
