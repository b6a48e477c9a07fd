"""Splitting a model over GPUs: heads, layers and ranks, quantised weights, experts."""

import pytest

from tests.unit.plan.models import (
    AWQ,
    FP8_BLOCK,
    LLAMA_8B,
    MIXTRAL_8X7B,
    QWEN1_5_14B,
    QWEN2_1_5B,
    QWEN2_5_72B,
    QWEN2_7B,
    QWEN3_30B_A3B,
    quantized,
)
from tests.unit.plan.plans import MakeUnits, findings, recipe

CALIBRATED = "calibration: {dataset: file:chat.jsonl}\n"


def split(
    sizes: str, sku: str = "h100-sxm-80gb", weights: str = "bf16", *, flow: str = "engine", target: str = ""
) -> str:
    calibration = CALIBRATED if weights in ("fp8", "int4-awq", "w4a8-awq") else ""
    return recipe(sku, weights, flow=flow, target=target, extra=f"parallelism: {{{sizes}}}\n{calibration}")


def test_28_heads_on_8_gpus_are_refused_with_the_legal_sizes(make_units: MakeUnits) -> None:
    finding = findings(make_units(split("tensor: 8", "l20-48gb"), QWEN2_7B))["TP_HEADS"]
    assert finding.severity == "refuse"
    assert finding.values["valid_tp"] == [1, 2, 4]
    assert finding.values["valid_by_heads_and_kv_only"] == [1, 2, 4, 28]
    assert "num_attention_heads 28" in finding.message
    assert "tensor: 4 with pipeline: 2 (14 + 14 layers)" in finding.suggestion
    assert finding.where.endswith("tiny.yaml:11:15")


@pytest.mark.parametrize("tp", [1, 3])
def test_a_tp_that_divides_the_heads_is_accepted(make_units: MakeUnits, tp: int) -> None:
    assert findings(make_units(split(f"tensor: {tp}"))) == {}


@pytest.mark.parametrize(("tp", "reason"), [(2, "num_attention_heads 9"), (9, "intermediate_size 1536")])
def test_what_does_not_divide_is_named(make_units: MakeUnits, tp: int, reason: str) -> None:
    finding = findings(make_units(split(f"tensor: {tp}")))["TP_HEADS"]
    assert reason in finding.message
    assert finding.values["valid_tp"] == [1, 3]


def test_kv_heads_that_neither_divide_nor_are_divided_are_refused(make_units: MakeUnits) -> None:
    config = LLAMA_8B | {"num_attention_heads": 12, "num_key_value_heads": 4, "hidden_size": 1536}
    assert "num_key_value_heads 4" in findings(make_units(split("tensor: 6"), config))["TP_HEADS"].message


def test_attention_data_parallelism_splits_no_heads(make_units: MakeUnits) -> None:
    text = split("tensor: 8", flow="pytorch")
    assert "TP_HEADS" in findings(make_units(text, QWEN2_7B))
    text += "llm_args: {enable_attention_dp: true}\n"
    assert "TP_HEADS" not in findings(make_units(text, QWEN2_7B))


def test_fewer_kv_heads_than_ranks_are_replicated_not_refused(make_units: MakeUnits) -> None:
    found = findings(make_units(split("tensor: 4"), QWEN2_1_5B))
    assert set(found) == {"KV_HEADS_REPLICATED"}
    assert found["KV_HEADS_REPLICATED"].severity == "warn"
    assert "replicated" in found["KV_HEADS_REPLICATED"].message
    assert found["KV_HEADS_REPLICATED"].values == {
        "kv_dup": 2,
        "kv_bytes_per_token_rank": 14336,
        "kv_bytes_per_token_tp1": 28672,
    }


def test_as_many_kv_heads_as_ranks_are_not_replicated(make_units: MakeUnits) -> None:
    assert findings(make_units(split("tensor: 2"), QWEN2_1_5B)) == {}


@pytest.mark.parametrize(
    ("vocabulary", "tp", "padded", "rows"),
    [(32001, 2, 32002, 16001), (151851, 2, 151852, 75926), (151552, 6, 151554, 25259)],
)
def test_an_odd_vocabulary_is_padded(make_units: MakeUnits, vocabulary: int, tp: int, padded: int, rows: int) -> None:
    config = {"hidden_size": 768, "num_attention_heads": 12, "num_key_value_heads": 12, "vocab_size": vocabulary}
    finding = findings(make_units(split(f"tensor: {tp}"), config))["VOCAB_PADDED"]
    assert finding.severity == "warn"
    assert finding.values == {"padded": padded, "rows_per_rank": rows}
    assert "VOCAB_PADDED" not in findings(make_units(split("tensor: 1"), config))


def test_more_pipeline_stages_than_layers_are_refused(make_units: MakeUnits) -> None:
    assert findings(make_units(split("pipeline: 31")))["PP_LAYERS"].values["max_pipeline"] == 30
    assert "PP_LAYERS" not in findings(make_units(split("pipeline: 30", target=", gpus: 30")))


def test_context_parallelism_of_engines_needs_a_reason_and_enough_heads(make_units: MakeUnits) -> None:
    found = findings(make_units(split("tensor: 2, context: 3"), LLAMA_8B))
    assert found["CONTEXT_PARALLEL"].severity == "refuse-waivable"
    assert found["CP_HEADS"].values["valid_products"] == [1, 2, 4, 8, 16, 32]
    assert "CP_HEADS" not in findings(make_units(split("tensor: 2, context: 2"), LLAMA_8B))
    assert "CONTEXT_PARALLEL" not in findings(make_units(split("tensor: 2"), LLAMA_8B))


def test_a_profile_of_16_gpus_is_refused_on_a_node_of_8(make_units: MakeUnits) -> None:
    finding = findings(make_units(split("tensor: 8, pipeline: 2", target=", gpus: 8"), LLAMA_8B))["NOT_ENOUGH_GPUS"]
    assert finding.severity == "refuse"
    assert finding.values["world_size"] == 16
    assert "16" in finding.message
    assert "8 GPUs" in finding.message
    assert "NOT_ENOUGH_GPUS" not in findings(make_units(split("tensor: 8", target=", gpus: 8"), LLAMA_8B))


def test_the_usual_node_counts_where_the_target_says_nothing(make_units: MakeUnits) -> None:
    text = split("tensor: 8, pipeline: 2")
    assert findings(make_units(text, LLAMA_8B))["NOT_ENOUGH_GPUS"].values["gpus"] == 8
    text = split("tensor: 8, pipeline: 2", target=", gpus: 16")
    assert "NOT_ENOUGH_GPUS" not in findings(make_units(text, LLAMA_8B))


def test_mig_slices_are_no_ranks_of_one_model(make_units: MakeUnits) -> None:
    sku = "h100-sxm-80gb-mig-3g.40gb"
    found = findings(make_units(split("tensor: 2", sku), LLAMA_8B))
    assert found["MIG_RANKS"].severity == "refuse"
    assert "NOT_ENOUGH_GPUS" not in found
    assert "MIG_RANKS" not in findings(make_units(split("tensor: 1", sku), LLAMA_8B))


def test_ranks_without_nvlink_are_told_what_goes_over_pcie(make_units: MakeUnits) -> None:
    finding = findings(make_units(split("tensor: 2", "l40s-48gb"), LLAMA_8B))["NO_NVLINK"]
    assert finding.severity == "warn"
    # Two all-reduces of 4096 values of 2 bytes in 32 layers, of which a rank of two sends 2 * 1/2.
    assert finding.values["bytes_per_token"] == 2 * 4096 * 2 * 32
    assert "NO_NVLINK" not in findings(make_units(split("tensor: 2"), LLAMA_8B))
    assert "NO_NVLINK" not in findings(make_units(split("tensor: 1", "l40s-48gb"), LLAMA_8B))


def test_groups_that_ranks_cannot_hold_whole_are_refused(make_units: MakeUnits) -> None:
    config = quantized(QWEN2_5_72B, AWQ)
    finding = findings(make_units(split("tensor: 2", weights="as-published"), config))["TP_GROUP_SIZE"]
    assert finding.severity == "refuse"
    assert finding.values["groups"] == 231
    assert finding.values["valid_pow2_tp"] == [1]
    assert "29568" in finding.message
    assert "128" in finding.message
    assert "TP_GROUP_SIZE" not in findings(make_units(split("tensor: 1", weights="as-published"), config))


def test_whole_groups_are_accepted(make_units: MakeUnits) -> None:
    config = quantized(LLAMA_8B, AWQ)
    assert findings(make_units(split("tensor: 8", weights="as-published"), config)) == {}


def test_cut_fp8_blocks_can_be_waived(make_units: MakeUnits) -> None:
    config = quantized(QWEN3_30B_A3B, FP8_BLOCK)
    found = findings(make_units(split("tensor: 4", weights="as-published", flow="pytorch"), config))
    assert found["TP_GROUP_SIZE"].severity == "refuse-waivable"
    text = split("tensor: 4, expert: 4", weights="as-published", flow="pytorch")
    assert "TP_GROUP_SIZE" not in findings(make_units(text, config))


def test_int8_weights_are_padded_to_tiles_and_the_cost_is_told(make_units: MakeUnits) -> None:
    finding = findings(make_units(split("tensor: 4", weights="int8-wo"), QWEN1_5_14B))["TP_QUANT_ALIGN"]
    assert finding.severity == "warn"
    assert finding.values["cols_per_rank"] == 3424
    assert finding.values["remainder_64"] == 32
    assert (finding.values["tp2_cols"], finding.values["tp2_remainder_64"]) == (6848, 0)
    # 13696 becomes 54 * 256 = 13824: 128 more of three linears of 5120 in 40 layers, a byte each.
    assert finding.values["becomes"] == 13824
    assert finding.values["padding_bytes"] == 128 * 3 * 5120 * 40
    assert "13696" in finding.message
    assert "64" in finding.message
    assert "TP_QUANT_ALIGN" not in findings(make_units(split("tensor: 2", weights="int8-wo"), QWEN1_5_14B))


@pytest.mark.parametrize("weights", ["int4-awq", "w4a8-awq"])
def test_grouped_weights_are_not_padded_but_refused(make_units: MakeUnits, weights: str) -> None:
    found = findings(make_units(split("tensor: 4", weights=weights), QWEN1_5_14B))
    assert found["TP_QUANT_ALIGN"].severity == "refuse"
    assert "13696" in found["TP_QUANT_ALIGN"].message


def test_w4a8_needs_tiles_of_128_even_on_one_gpu(make_units: MakeUnits) -> None:
    config = LLAMA_8B | {"intermediate_size": 13632}
    assert findings(make_units(split("tensor: 1", weights="w4a8-awq"), config))["TP_QUANT_ALIGN"].severity == "refuse"
    assert "TP_QUANT_ALIGN" not in findings(make_units(split("tensor: 1", weights="w4a8-awq"), LLAMA_8B))


def test_expert_sizes_that_do_not_multiply_to_tensor_are_refused_with_the_legal_pairs(make_units: MakeUnits) -> None:
    text = split("tensor: 8, expert: 4, expert_tensor: 4")
    finding = findings(make_units(text, MIXTRAL_8X7B))["MOE_PARALLEL_PRODUCT"]
    assert finding.severity == "refuse"
    assert finding.values["legal_pairs"] == [[8, 1], [4, 2], [2, 4], [1, 8]]
    assert "moe_tp_size" in finding.message
    assert "moe_ep_size" in finding.message


@pytest.mark.parametrize("sizes", ["tensor: 8", "tensor: 8, expert: 4", "tensor: 8, expert_tensor: 2"])
def test_an_expert_size_that_is_left_out_is_computed(make_units: MakeUnits, sizes: str) -> None:
    assert findings(make_units(split(sizes), MIXTRAL_8X7B)) == {}


def test_a_single_expert_size_that_does_not_divide_is_refused(make_units: MakeUnits) -> None:
    assert (
        "3 doesn't divide it"
        in findings(make_units(split("tensor: 8, expert: 3"), MIXTRAL_8X7B))["MOE_PARALLEL_PRODUCT"].message
    )


def test_experts_that_ranks_cannot_share_out_are_refused(make_units: MakeUnits) -> None:
    config = MIXTRAL_8X7B | {"num_local_experts": 6}
    found = findings(make_units(split("tensor: 4, expert: 4"), config))
    assert found["MOE_EXPERTS"].values == {"experts": 6, "legal_pairs": [[4, 1], [2, 2]]}
    assert "MOE_EXPERTS" not in findings(make_units(split("tensor: 4, expert: 2"), config))


def test_experts_too_narrow_for_the_ranks_are_refused(make_units: MakeUnits) -> None:
    config = MIXTRAL_8X7B | {"intermediate_size": 14340}
    assert findings(make_units(split("tensor: 8"), config))["MOE_WIDTH"].values["width"] == 14340
    assert "MOE_WIDTH" not in findings(make_units(split("tensor: 8, expert: 2"), config))


def test_expert_sizes_of_a_dense_model_have_no_effect(make_units: MakeUnits) -> None:
    found = findings(make_units(split("tensor: 2, expert: 2"), LLAMA_8B))
    assert {code: finding.severity for code, finding in found.items()} == {"EXPERTS_IN_DENSE_MODEL": "warn"}


def test_expert_and_context_parallelism_exclude_each_other(make_units: MakeUnits) -> None:
    text = split("tensor: 2, context: 2, expert: 2", flow="pytorch")
    assert "EXPERT_WITH_CONTEXT" in findings(make_units(text, MIXTRAL_8X7B))
    assert "EXPERT_WITH_CONTEXT" not in findings(make_units(split("tensor: 2, expert: 2"), MIXTRAL_8X7B))
