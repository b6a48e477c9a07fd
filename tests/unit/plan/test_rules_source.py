"""What the source holds: quantised weights, tokens, a second head, and what the lock couldn't pin."""

import pytest

from builder.lock import TensorSummary, TokenizerSummary, Unresolved
from tests.unit.plan.models import (
    AWQ,
    FP8_BLOCK,
    GPTQ,
    LLAMA_7B,
    LLAMA_8B,
    MODELOPT_FP8,
    QWEN3_0_6B,
    QWEN3_30B_A3B,
    quantized,
)
from tests.unit.plan.plans import MakeUnits, findings, recipe

AS_PUBLISHED = recipe(weights="as-published")
AS_PUBLISHED_PYTORCH = recipe(weights="as-published", flow="pytorch")
BITSANDBYTES = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}


def tensors(rows: int | None, size: int = 1, head: bool = False) -> TensorSummary:
    return TensorSummary("sha256:0", 1, size, {"BF16": size}, rows, head)


def test_a_quantised_source_is_not_converted_to_another_format(make_units: MakeUnits) -> None:
    finding = findings(make_units(recipe(weights="fp16"), quantized(LLAMA_7B, AWQ)))["CHECKPOINT_ALREADY_QUANTIZED"]
    assert finding.severity == "refuse"
    assert "as-published" in finding.suggestion
    assert finding.values["awq_qweight"] == [4096, 512]
    assert finding.values["gptq_qweight"] == [512, 4096]
    assert finding.values["scales"] == [32, 4096]
    assert "CHECKPOINT_ALREADY_QUANTIZED" not in findings(make_units(AS_PUBLISHED, quantized(LLAMA_7B, AWQ)))


def test_an_unquantised_source_is_fine_as_published(make_units: MakeUnits) -> None:
    assert findings(make_units(AS_PUBLISHED, LLAMA_8B)) == {}


def test_a_method_that_nothing_reads_is_refused_by_its_name(make_units: MakeUnits) -> None:
    for text in (recipe(weights="fp16"), AS_PUBLISHED, AS_PUBLISHED_PYTORCH):
        found = findings(make_units(text, quantized(LLAMA_8B, BITSANDBYTES)))
        assert "bitsandbytes" in found["QUANT_METHOD_UNSUPPORTED"].message
        assert "unquantised model" in found["QUANT_METHOD_UNSUPPORTED"].suggestion


@pytest.mark.parametrize("quantization", [AWQ, GPTQ])
def test_each_flow_reads_its_own_methods(make_units: MakeUnits, quantization: dict[str, object]) -> None:
    config = quantized(LLAMA_8B, quantization)
    assert "QUANT_METHOD_UNSUPPORTED" not in findings(make_units(AS_PUBLISHED, config))
    found = findings(make_units(AS_PUBLISHED_PYTORCH, config))
    assert "flow: engine" in found["QUANT_METHOD_UNSUPPORTED"].suggestion


def test_fp8_blocks_belong_to_the_pytorch_flow(make_units: MakeUnits) -> None:
    config = quantized(QWEN3_30B_A3B, FP8_BLOCK)
    assert "flow: pytorch" in findings(make_units(AS_PUBLISHED, config))["QUANT_METHOD_UNSUPPORTED"].suggestion
    assert "QUANT_METHOD_UNSUPPORTED" not in findings(make_units(AS_PUBLISHED_PYTORCH, config))


def test_a_known_format_under_a_method_that_no_source_mentions_can_be_waived(make_units: MakeUnits) -> None:
    group = {"weights": {"type": "float", "num_bits": 8, "strategy": "tensor"}, "targets": ["Linear"]}
    config = quantized(LLAMA_8B, {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}})
    found = findings(make_units(AS_PUBLISHED_PYTORCH, config))
    assert found["QUANT_METHOD_UNSUPPORTED"].severity == "refuse-waivable"


def test_the_kv_cache_of_a_published_checkpoint_is_not_overridden(make_units: MakeUnits) -> None:
    text = recipe(weights="as-published", kv_cache="bf16", flow="pytorch")
    found = findings(make_units(text, LLAMA_8B, hf_quant_config=MODELOPT_FP8))
    assert found["KV_CACHE_CONTRADICTS_SOURCE"].severity == "refuse"
    for kv_cache in ("auto", "fp8"):
        text = recipe(weights="as-published", kv_cache=kv_cache, flow="pytorch")
        assert findings(make_units(text, LLAMA_8B, hf_quant_config=MODELOPT_FP8)) == {}


def test_a_converter_adds_no_kv_cache_format_to_a_published_checkpoint(make_units: MakeUnits) -> None:
    text = recipe(weights="as-published", kv_cache="int8")
    assert "KV_CACHE_CONTRADICTS_SOURCE" in findings(make_units(text, quantized(LLAMA_8B, AWQ)))


def test_a_tied_head_that_is_stored_all_the_same_is_told_with_both_sizes(make_units: MakeUnits) -> None:
    found = findings(make_units(recipe(), QWEN3_0_6B, tensors=tensors(151936, 1_503_264_768, head=True)))
    assert found["HEAD_STORED_TWICE"].severity == "warn"
    assert found["HEAD_STORED_TWICE"].values == {
        "tensor_bytes": 1_503_264_768,
        "unique_bytes": 1_192_099_840,
        "head_bytes": 311_164_928,
    }
    assert findings(make_units(recipe(), QWEN3_0_6B, tensors=tensors(151936, 1_192_099_840))) == {}


def test_a_token_beyond_the_embedding_is_refused_by_name(make_units: MakeUnits) -> None:
    tokenizer = TokenizerSummary(32000, {"<pad>": 32000, "</s>": 2})
    finding = findings(make_units(recipe(), LLAMA_7B, tokenizer=tokenizer, tensors=tensors(32000)))[
        "TOKEN_ID_OUT_OF_RANGE"
    ]
    assert finding.severity == "refuse-waivable"
    assert (finding.values["max_id"], finding.values["max_legal"]) == (32000, 31999)
    assert "<pad>" in finding.message
    assert "32000" in finding.message
    assert "</s>" not in finding.message


def test_a_tokenizer_smaller_than_the_embedding_is_accepted(make_units: MakeUnits) -> None:
    tokenizer = TokenizerSummary(31999, {"</s>": 2})
    stored = tensors(32000, 13_476_831_232)
    assert findings(make_units(recipe(), LLAMA_7B, tokenizer=tokenizer, tensors=stored)) == {}


def test_a_config_resized_without_its_embedding_is_refused(make_units: MakeUnits) -> None:
    tokenizer = TokenizerSummary(32000, {"<pad>": 32000})
    config = LLAMA_7B | {"vocab_size": 32001}
    found = findings(make_units(recipe(), config, tokenizer=tokenizer, tensors=tensors(32000)))
    assert found["EMBEDDING_ROWS"].values == {"vocab_size": 32001, "embedding_rows": 32000}
    assert found["TOKEN_ID_OUT_OF_RANGE"].values["max_legal"] == 31999
    assert "EMBEDDING_ROWS" not in findings(make_units(recipe(), LLAMA_7B, tensors=tensors(32000)))


def test_what_could_not_be_pinned_is_told_to_the_units_that_need_it(make_units: MakeUnits) -> None:
    image = "nvcr.io/nvidia/tensorrt-llm/release:1.2.1"
    text = recipe("cpu") + "  - {sku: l40s-48gb}\n"
    cpu, l40s = (
        findings(make_units(text, unresolved=(Unresolved(image, "no route to host"),)), unit) for unit in (0, 1)
    )
    assert cpu == {}
    assert l40s["UNRESOLVED"].severity == "warn"
    assert "no route to host" in l40s["UNRESOLVED"].message
    assert l40s["UNRESOLVED"].where.endswith("tiny.yaml:5:1")


@pytest.mark.parametrize(
    ("stored", "warned"),
    [
        (13_476_831_232, False),
        (13_476_835_328, False),  # total_size of its index on the Hub: with 32 inv_freq of 64 float16 numbers
        (13_476_831_231, True),
        (26_953_662_464, True),  # all of it in float32
    ],
)
def test_stored_bytes_that_config_json_does_not_make_are_told(make_units: MakeUnits, stored: int, warned: bool) -> None:
    found = findings(make_units(recipe(), LLAMA_7B, tensors=tensors(32000, stored)))
    assert ("TENSOR_BYTES" in found) is warned
    if warned:
        assert found["TENSOR_BYTES"].severity == "warn"
        assert found["TENSOR_BYTES"].values == {"stored": stored, "expected": 13_476_831_232}


def test_a_second_head_and_layers_that_may_be_left_out_are_no_difference(make_units: MakeUnits) -> None:
    for size, head in ((1_192_099_840, False), (1_503_264_768, True)):
        assert "TENSOR_BYTES" not in findings(make_units(recipe(), QWEN3_0_6B, tensors=tensors(151936, size, head)))
    missing_head = tensors(32000, 13_476_831_232 - 2 * 32000 * 4096)
    assert "TENSOR_BYTES" in findings(make_units(recipe(), LLAMA_7B, tensors=missing_head))


def test_the_bytes_of_quantised_weights_are_not_judged(make_units: MakeUnits) -> None:
    text = recipe(weights="as-published")
    assert "TENSOR_BYTES" not in findings(make_units(text, quantized(LLAMA_7B, AWQ), tensors=tensors(32000, 4)))
