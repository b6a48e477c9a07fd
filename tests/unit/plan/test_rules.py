from typing import Any

import pytest

from builder.errors import RecipeError
from builder.lock import Unresolved
from builder.plan import Finding, estimate
from tests.unit.plan.plans import RECIPE, MakePlan


def findings(make_plan: MakePlan, unit: int = 0, **changes: Any) -> dict[str, Finding]:
    return {finding.code: finding for finding in make_plan(**changes)[unit].findings}


def with_tp(tp: int) -> str:
    return RECIPE + f"parallelism: {{tensor: {tp}}}\n"


def limits(text: str) -> str:
    return RECIPE.replace("max_batch_size: 4, max_seq_len: 1024, max_num_tokens: 4096", text)


def test_a_sound_recipe_has_no_findings(make_plan: MakePlan) -> None:
    assert [planned.findings for planned in make_plan()] == [(), ()]


@pytest.mark.parametrize("tp", [1, 3])
def test_a_tp_that_divides_the_heads_is_accepted(make_plan: MakePlan, tp: int) -> None:
    assert findings(make_plan, text=with_tp(tp)) == {}


@pytest.mark.parametrize(("tp", "reason"), [(2, "num_attention_heads is 9"), (9, "intermediate_size is 1536")])
def test_a_tp_that_does_not_divide_is_refused_with_the_legal_sizes(make_plan: MakePlan, tp: int, reason: str) -> None:
    finding = findings(make_plan, text=with_tp(tp))["TP_HEADS"]
    assert finding.severity == "refuse"
    assert reason in finding.message
    assert finding.values["valid_tp"] == [1, 3]
    assert finding.where.endswith("tiny.yaml:11:15")


def test_fewer_kv_heads_than_ranks_are_replicated_not_refused(make_plan: MakePlan) -> None:
    config = {"num_attention_heads": 12, "num_key_value_heads": 3, "hidden_size": 768}
    assert findings(make_plan, text=with_tp(6), config=config) == {}


def test_more_pipeline_stages_than_layers_are_refused(make_plan: MakePlan) -> None:
    assert findings(make_plan, text=RECIPE + "parallelism: {pipeline: 31}\n")["PP_LAYERS"].values["max_pipeline"] == 30
    assert findings(make_plan, text=RECIPE + "parallelism: {pipeline: 30}\n") == {}


def test_a_sequence_longer_than_the_model_is_refused(make_plan: MakePlan) -> None:
    finding = findings(make_plan, text=limits("max_seq_len: 8193"))["SEQ_LEN_GT_MODEL"]
    assert "8193" in finding.message
    assert finding.values["max_legal"] == 8192
    assert "SEQ_LEN_GT_MODEL" not in findings(make_plan, text=limits("max_seq_len: 8192"))


def test_linear_rope_scaling_stretches_the_longest_sequence(make_plan: MakePlan) -> None:
    config = {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}
    assert "SEQ_LEN_GT_MODEL" not in findings(make_plan, text=limits("max_seq_len: 16384"), config=config)


def test_a_prompt_that_fills_the_sequence_is_refused(make_plan: MakePlan) -> None:
    assert "INPUT_GT_SEQ_LEN" in findings(make_plan, text=limits("max_seq_len: 64, max_input_len: 64"))
    assert "INPUT_GT_SEQ_LEN" not in findings(make_plan, text=limits("max_seq_len: 64, max_input_len: 63"))


def test_a_pass_smaller_than_the_batch_is_refused(make_plan: MakePlan) -> None:
    assert "NUM_TOKENS_LT_BATCH" in findings(make_plan, text=limits("max_seq_len: 64, max_num_tokens: 63"))
    assert "NUM_TOKENS_LT_BATCH" not in findings(make_plan, text=limits("max_seq_len: 64, max_num_tokens: 64"))


def test_clipped_num_tokens_are_told(make_plan: MakePlan) -> None:
    finding = findings(make_plan, text=limits("max_batch_size: 2, max_seq_len: 64"))["NUM_TOKENS_CLIPPED"]
    assert (finding.severity, finding.values["becomes"]) == ("warn", 128)


def test_rounding_to_another_format_is_told(make_plan: MakePlan) -> None:
    assert findings(make_plan, config={"torch_dtype": "float32"})["FP32_SOURCE"].severity == "warn"
    assert findings(make_plan, config={"torch_dtype": "float16"})["DTYPE_CHANGE"].severity == "warn"


def test_the_reference_toolchain_is_refused_for_a_gpu(make_plan: MakePlan) -> None:
    text = RECIPE.replace("toolchain: trtllm-1.2.1\n", "")
    assert "TOOLCHAIN_SKU" in findings(make_plan, unit=1, text=text)
    assert "TOOLCHAIN_SKU" not in findings(make_plan, unit=0, text=text)


def test_a_precision_that_the_toolchain_lacks_is_refused(make_plan: MakePlan) -> None:
    finding = findings(make_plan, unit=1, text=RECIPE.replace("bf16", "fp32"), config={"torch_dtype": "float32"})
    assert finding["PRECISION_UNSUPPORTED"].values["valid_precisions"] == ["fp16", "bf16"]


LLAMA_70B = {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "num_hidden_layers": 80,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "max_position_embeddings": 131072,
}


def test_weights_larger_than_the_gpu_are_refused_and_fit_when_split(make_plan: MakePlan) -> None:
    assert "WEIGHTS_DO_NOT_FIT" in findings(make_plan, unit=1, config=LLAMA_70B)
    assert "WEIGHTS_DO_NOT_FIT" not in findings(make_plan, unit=1, config=LLAMA_70B, text=with_tp(8))


def test_a_kv_cache_smaller_than_one_sequence_is_refused(make_plan: MakePlan) -> None:
    config = LLAMA_70B | {"max_position_embeddings": 1048576}
    text = with_tp(4).replace("max_seq_len: 1024", "max_seq_len: 1000000")
    assert "KV_POOL_BELOW_MINIMUM" in findings(make_plan, unit=1, config=config, text=text)


def test_the_estimate_reproduces_published_sizes(make_plan: MakePlan) -> None:
    """Llama-3.1-70B: 141,107,412,992 bytes in the Hub's index, 327,680 bytes of KV cache per token in 16 bit."""
    memory = estimate(make_plan(config=LLAMA_70B)[0].unit)
    assert memory.weights_bytes == 141_107_412_992
    assert memory.kv_bytes_per_token == 327_680


def test_a_model_without_an_end_token_is_refused(make_plan: MakePlan) -> None:
    assert findings(make_plan, config={"eos_token_id": None})["NO_END_TOKEN"].severity == "refuse"


def test_two_targets_with_one_id_are_refused(make_plan: MakePlan) -> None:
    with pytest.raises(RecipeError, match="same unit") as error:
        make_plan(text=RECIPE + "  - sku: cpu\n")
    assert error.value.code == "DUPLICATE_UNIT"
    named = make_plan(text=RECIPE + "  - {sku: cpu, name: small}\n")
    assert named[2].unit.id == "tiny/bf16-tp1/cpu/small"


def test_a_base_that_could_not_be_pinned_is_told_and_never_taken_for_none(make_plan: MakePlan) -> None:
    text = RECIPE + "package: {base: 'oci:base:py3.11'}\n"
    (planned, _) = make_plan(text=text, unresolved=(Unresolved("oci:base:py3.11", "not there"),))
    assert {finding.code: finding.severity for finding in planned.findings} == {"UNRESOLVED": "warn"}
    assert planned.stages["image"].derivation != make_plan()[0].stages["image"].derivation
