"""What a recipe wants proved of a checkpoint, and whether it can be."""

import pytest

from tests.unit.plan.models import AWQ, GPTQ, LLAMA_8B, quantized
from tests.unit.plan.plans import MakePlan, MakeUnits, findings, recipe

CALIBRATED = "calibration: {dataset: file:chat.jsonl}\n"
GATES = "qualify: {perplexity: {text: file:text.txt}, agreement: {min: 0.9}, logits: {max_difference: 0.1}}\n"
MIMO = LLAMA_8B | {"architectures": ["MiMoForCausalLM"], "model_type": "mimo", "num_nextn_predict_layers": 1}


@pytest.mark.parametrize(
    ("weights", "proof"), [("bf16", "logits"), ("fp8", "perplexity"), ("int8-wo", "perplexity"), ("fp16", "logits")]
)
def test_quantised_weights_are_held_against_the_model_and_others_against_transformers(
    make_units: MakeUnits, weights: str, proof: str
) -> None:
    (unit,) = make_units(recipe("h100-sxm-80gb", weights, extra=CALIBRATED + GATES))
    assert unit.proof == proof
    assert "QUALIFY_IMPOSSIBLE" not in findings([unit])


def test_a_unit_without_a_gate_that_is_about_it_has_no_such_stage(make_plan: MakePlan) -> None:
    gates = "qualify: {perplexity: {text: file:text.txt}}\n"
    (planned,) = make_plan(recipe("h100-sxm-80gb", "bf16", extra=gates))
    assert "qualify" not in planned.stages
    (planned,) = make_plan(recipe("h100-sxm-80gb", "fp8", extra=CALIBRATED + gates))
    assert planned.stages["qualify"].below == ("checkpoint",)
    assert "qualify" not in planned.stages["engine"].below


def test_a_gate_changes_the_proof_and_nothing_else(make_plan: MakePlan) -> None:
    text = recipe("h100-sxm-80gb", "fp8", extra=CALIBRATED + GATES)
    before, after = (make_plan(version)[0].stages for version in (text, text.replace("0.9", "0.8")))
    changed = {name for name in before if before[name].derivation != after[name].derivation}
    assert changed == {"qualify"}


@pytest.mark.parametrize(
    ("text", "config", "words"),
    [
        (recipe("h100-sxm-80gb", "as-published", extra=GATES), quantized(LLAMA_8B, AWQ), "quantised already"),
        (recipe("h100-sxm-80gb", "as-published", extra=GATES), quantized(LLAMA_8B, GPTQ), "quantised already"),
        (recipe("h100-sxm-80gb", "fp8", flow="pytorch", extra=CALIBRATED + GATES), LLAMA_8B, "pytorch flow"),
        (recipe("h100-sxm-80gb", "fp8", extra=CALIBRATED + GATES), MIMO, "MiMoForCausalLM"),
        (recipe("h100-sxm-80gb", "bf16", extra=GATES), MIMO, "MiMoForCausalLM"),
    ],
)
def test_what_can_not_be_proved_is_refused(
    make_units: MakeUnits, text: str, config: dict[str, object], words: str
) -> None:
    finding = findings(make_units(text, config))["QUALIFY_IMPOSSIBLE"]
    assert finding.severity == "refuse"
    assert words in finding.message
    assert "qualify: null" in finding.suggestion
