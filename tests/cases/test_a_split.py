"""Reports of class A on splitting a model over GPUs: sizes that don't divide, said with those that do."""

from pathlib import Path

import pytest

from builder.model.layout import Split, rank_tensors
from tests.cases.conversions import converted, sized, write_model
from tests.cases.support import AS_PUBLISHED, AWQ, TEXTS, config_of, plan, unit_of
from tests.unit.checkpoint.reassembly import Checkpoint, assert_same_tensors


class TestA05:
    """https://github.com/NVIDIA/TensorRT-LLM/issues/2198: Qwen2-7B on eight L20 with tp=8 crashed with an error about
    shapes deep in the converter: 28 query heads can't be shared by 8."""

    def test_a05_heads_that_tp_does_not_divide_are_refused_with_the_legal_sizes(self, tmp_path: Path) -> None:
        planned = plan(
            tmp_path, config_of("Qwen--Qwen2-7B"), parallelism={"tensor": 8}, target={"sku": "l20-48gb", "gpus": 8}
        )
        assert planned.refusing == {"TP_HEADS"}
        assert planned.refused
        finding = planned["TP_HEADS"]
        assert finding.values["valid_tp"] == [1, 2, 4]
        assert finding.values["valid_by_heads_and_kv_only"] == [1, 2, 4, 28]
        assert "28" in finding.message
        assert "num_attention_heads" in finding.message
        assert "tensor: 4 with pipeline: 2 (14 + 14 layers)" in finding.suggestion
        assert "replicas" in finding.suggestion

    @pytest.mark.parametrize(
        ("model", "tp", "legal", "by_heads"),
        [
            # 40 heads, 10 KV heads, width 17,920: of 1 2 4 5 8 10 20 40 these divide 10, or are a multiple of it.
            ("microsoft--phi-4", 4, [1, 2, 5, 10, 20, 40], [1, 2, 5, 10, 20, 40]),
            # 9 heads, 3 KV heads; 9 doesn't divide the width 1,536.
            ("HuggingFaceTB--SmolLM2-135M", 2, [1, 3], [1, 3, 9]),
            # 24 heads, 8 KV heads, width 8,192: 24 divides the heads and isn't a divisor of the width.
            ("meta-llama--Llama-3.2-3B", 16, [1, 2, 4, 8], [1, 2, 4, 8, 24]),
            # 14 heads, 2 KV heads, width 4,864 = 2^8 x 19: 7 divides neither the KV heads nor the width.
            ("Qwen--Qwen2.5-0.5B", 4, [1, 2], [1, 2, 14]),
        ],
    )
    def test_a05_other_models_have_their_own_legal_sizes(
        self, tmp_path: Path, model: str, tp: int, legal: list[int], by_heads: list[int]
    ) -> None:
        finding = plan(tmp_path, config_of(model), parallelism={"tensor": tp})["TP_HEADS"]
        assert finding.values["valid_tp"] == legal
        assert finding.values["valid_by_heads_and_kv_only"] == by_heads

    @pytest.mark.parametrize("split", [{"tensor": 4}, {"tensor": 2}, {"tensor": 4, "pipeline": 2}])
    def test_a05_what_is_suggested_is_accepted(self, tmp_path: Path, split: dict[str, int]) -> None:
        target = {"sku": "l20-48gb", "gpus": 8}
        assert not plan(tmp_path, config_of("Qwen--Qwen2-7B"), parallelism=split, target=target).refused


class TestA07:
    """https://github.com/NVIDIA/TensorRT-LLM/issues/2310: Qwen2-1.5B with tp=4 is legal, each of its two KV heads is
    held by two ranks; the converter forgot the biases. Also pytorch/torchtitan issue 2577."""

    MODEL = "Qwen--Qwen2-1.5B-Instruct"

    def test_a07_fewer_kv_heads_than_ranks_are_replicated_not_refused(self, tmp_path: Path) -> None:
        planned = plan(tmp_path, config_of(self.MODEL), parallelism={"tensor": 4}, target={"sku": "l40s-48gb"})
        assert not planned.refused
        finding = planned["KV_HEADS_REPLICATED"]
        assert finding.severity == "warn"
        assert finding.values["kv_dup"] == 2
        assert finding.values["kv_bytes_per_token_rank"] == 14_336
        assert finding.values["kv_bytes_per_token_tp1"] == 28_672
        assert "replicated" in finding.message

    def test_a07_weights_and_biases_of_a_rank_hold_its_query_heads_and_one_kv_head(self, tmp_path: Path) -> None:
        """(12 / 4 + 2 x 1) x 128 = 640 rows. Two ranks share each KV head."""
        spec = unit_of(tmp_path, config_of(self.MODEL)).spec
        ranks = [{tensor.name: tensor for tensor in rank_tensors(spec, Split(4), rank)} for rank in range(4)]
        for rank, tensors in enumerate(ranks):
            for kind, shape in (("weight", (640, 1536)), ("bias", (640,))):
                qkv = tensors[f"transformer.layers.27.attention.qkv.{kind}"]
                assert qkv.shape == shape
                query, key, value = qkv.slices
                assert (query.start, query.stop) == (384 * rank, 384 * (rank + 1))
                assert (key.start, key.stop) == (value.start, value.stop) == (128 * (rank // 2), 128 * (rank // 2 + 1))

    @pytest.mark.parametrize("split", [Split(4), Split(12), Split(4, 2), Split(1)], ids=["4", "12", "4-pp2", "1"])
    def test_a07_converted_ranks_hold_every_weight_and_bias(self, tmp_path: Path, split: Split) -> None:
        """Two layers with an MLP that twelve ranks can share, which hold each KV head six times."""
        config = sized(self.MODEL, num_hidden_layers=2, intermediate_size=768, vocab_size=1000)
        biases = {"q": 1536, "k": 256, "v": 256}
        tensors = write_model(
            tmp_path / "model",
            config,
            {f"model.layers.{n}.self_attn.{part}_proj.bias": (rows,) for n in (0, 1) for part, rows in biases.items()},
        )
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
        checkpoint = Checkpoint.load(converted(tmp_path / "model", config, split))
        rows = (12 // split.tp + 2 * max(1, 2 // split.tp)) * 128
        for rank in checkpoint.ranks:
            qkv = [rank[f"transformer.layers.0.attention.qkv.{kind}"].shape for kind in ("weight", "bias")]
            assert qkv == [(rows, 1536), (rows,)]
        assert_same_tensors(checkpoint.reassembled(), tensors)

    def test_a07_a_model_with_one_kv_head_per_rank_replicates_nothing(self, tmp_path: Path) -> None:
        """Qwen2-7B has four: 2 x 28 layers x 1 head x 128 x 2 bytes = 14,336 of 57,344."""
        planned = plan(tmp_path, config_of("Qwen--Qwen2-7B"), parallelism={"tensor": 4})
        assert "KV_HEADS_REPLICATED" not in planned.codes
        assert not planned.refused

    def test_a07_sixteen_ranks_hold_eight_kv_heads_twice(self, tmp_path: Path) -> None:
        """Llama-3.1-70B: 2 x 80 x 1 x 128 x 2 = 40,960 bytes per rank; 2 x 80 x 8 x 128 x 2 = 327,680 on one."""
        config = config_of("meta-llama--Llama-3.1-70B")
        finding = plan(tmp_path, config, parallelism={"tensor": 16}, target={"gpus": 16})["KV_HEADS_REPLICATED"]
        assert finding.values["kv_dup"] == 2
        assert finding.values["kv_bytes_per_token_rank"] == 40_960
        assert finding.values["kv_bytes_per_token_tp1"] == 327_680


class TestA09:
    """https://github.com/vllm-project/vllm/issues/21695: InternVL3-78B-AWQ can't be loaded on two GPUs, since a width
    of 29,568 holds 231 groups of 128, an odd number. Its text tower is Qwen2.5-72B."""

    @pytest.mark.parametrize("tp", [2, 4, 8])
    def test_a09_groups_that_tp_would_cut_are_refused(self, tmp_path: Path, tp: int) -> None:
        config = config_of("Qwen--Qwen2.5-72B", quantization_config=AWQ)
        planned = plan(tmp_path, config, precision=AS_PUBLISHED, parallelism={"tensor": tp})
        assert planned.refused
        finding = planned["TP_GROUP_SIZE"]
        assert finding.severity == "refuse"
        assert finding.values["groups"] == 231
        assert finding.values["valid_pow2_tp"] == [1]
        assert "29568" in finding.message
        assert "128" in finding.message

    def test_a09_quantising_it_here_would_cut_them_as_well(self, tmp_path: Path) -> None:
        config, precision = config_of("Qwen--Qwen2.5-72B"), {"weights": "int4-awq", "group_size": 128}
        planned = plan(tmp_path, config, precision=precision, calibration=TEXTS, parallelism={"tensor": 2})
        assert planned["TP_GROUP_SIZE"].values["groups"] == 231

    def test_a09_smaller_groups_may_divide_evenly(self, tmp_path: Path) -> None:
        """29,568 / 64 = 462 groups: two ranks hold 231 each, four don't. 7 x 66 = 462, but 7 isn't among the heads."""
        config = config_of("Qwen--Qwen2.5-72B", quantization_config=AWQ | {"group_size": 64})
        assert "TP_GROUP_SIZE" not in plan(tmp_path, config, precision=AS_PUBLISHED, parallelism={"tensor": 2}).codes
        finding = plan(tmp_path, config, precision=AS_PUBLISHED, parallelism={"tensor": 4})["TP_GROUP_SIZE"]
        assert (finding.values["groups"], finding.values["valid_pow2_tp"]) == (462, [1, 2])

    def test_a09_other_widths_have_their_own_legal_sizes(self, tmp_path: Path) -> None:
        """Qwen2-7B: 18,944 = 148 x 128, 148 = 4 x 37: one, two and four ranks; Qwen2.5-3B: 11,008 = 86 x 128."""
        config = config_of("Qwen--Qwen2-7B", quantization_config=AWQ)
        assert not plan(tmp_path, config, precision=AS_PUBLISHED, parallelism={"tensor": 4}).refused
        config = config_of("Qwen--Qwen2.5-3B", quantization_config=AWQ)
        finding = plan(tmp_path, config, precision=AS_PUBLISHED, parallelism={"tensor": 4})["TP_GROUP_SIZE"]
        assert (finding.values["groups"], finding.values["valid_pow2_tp"]) == (86, [1, 2])

    def test_a09_one_rank_holds_every_group(self, tmp_path: Path) -> None:
        config = config_of("Qwen--Qwen2.5-72B", quantization_config=AWQ)
        assert not plan(tmp_path, config, precision=AS_PUBLISHED, target={"sku": "h200-sxm-141gb"}).refused

    def test_a09_the_plain_model_has_no_groups_to_cut(self, tmp_path: Path) -> None:
        split = {"tensor": 4}
        assert not plan(tmp_path, config_of("Qwen--Qwen2.5-72B"), parallelism=split).refused


class TestA11:
    """https://github.com/Tlntin/Qwen-TensorRT-LLM/issues/118: Qwen1.5-14B in INT8 on four ranks has 3,424 columns on
    each, no multiple of 64, and the scripts of the time failed. https://github.com/NVIDIA/TensorRT-LLM/issues/1770: so
    did a W4A8 variant of Llama-13B."""

    MODEL = "Qwen--Qwen1.5-14B-Chat"

    def test_a11_columns_that_are_padded_are_told_with_their_cost(self, tmp_path: Path) -> None:
        """Layers of INT8 weights pad by themselves in the releases that are in use, so it isn't refused: 13,696 becomes
        54 x 64 x 4 = 13,824, 128 more for 3 linears of 5,120 in 40 layers, a byte each."""
        planned = plan(tmp_path, config_of(self.MODEL), precision={"weights": "int8-wo"}, parallelism={"tensor": 4})
        assert not planned.refused
        finding = planned["TP_QUANT_ALIGN"]
        assert finding.severity == "warn"
        assert (finding.values["cols_per_rank"], finding.values["remainder_64"]) == (3424, 32)
        assert (finding.values["tp2_cols"], finding.values["tp2_remainder_64"]) == (6848, 0)
        assert "13696" in finding.message
        assert "64" in finding.message
        assert finding.values["becomes"] == 13_824
        assert finding.values["padding_bytes"] == 128 * 3 * 5120 * 40

    def test_a11_two_ranks_need_no_padding(self, tmp_path: Path) -> None:
        """6,848 = 107 x 64."""
        planned = plan(tmp_path, config_of(self.MODEL), precision={"weights": "int8-wo"}, parallelism={"tensor": 2})
        assert "TP_QUANT_ALIGN" not in planned.codes
        assert not planned.refused

    def test_a11_what_cannot_be_padded_is_refused(self, tmp_path: Path) -> None:
        """W4A8 takes multiples of 128: 13,632 = 106 x 128 + 64, even on one rank."""
        config = config_of("meta-llama--Llama-2-13b-hf", intermediate_size=13632)
        planned = plan(tmp_path, config, precision={"weights": "w4a8-awq"}, calibration=TEXTS)
        assert planned.refused
        finding = planned["TP_QUANT_ALIGN"]
        assert finding.severity == "refuse"
        assert (finding.values["cols_per_rank"], finding.values["remainder_128"]) == (13_632, 64)
        assert "13632" in finding.message

    def test_a11_the_real_width_of_that_model_is_accepted(self, tmp_path: Path) -> None:
        """Llama-2-13B: 13,824 = 108 x 128."""
        config = config_of("meta-llama--Llama-2-13b-hf")
        assert not plan(tmp_path, config, precision={"weights": "w4a8-awq"}, calibration=TEXTS).refused

    def test_a11_int4_weights_have_the_same_tiles(self, tmp_path: Path) -> None:
        """Llama-2-7B on eight ranks: 11,008 / 8 = 1,376 = 21 x 64 + 32; on four 2,752 = 43 x 64. It becomes
        22 x 64 x 8 = 11,264, half a byte for each of 256 x 3 x 4,096 x 32 zeros."""
        config = config_of("meta-llama--Llama-2-7b-hf")
        finding = plan(tmp_path, config, precision={"weights": "int4-wo"}, parallelism={"tensor": 8})["TP_QUANT_ALIGN"]
        assert (finding.values["cols_per_rank"], finding.values["remainder_64"]) == (1376, 32)
        assert (finding.values["tp4_cols"], finding.values["tp4_remainder_64"]) == (2752, 0)
        assert finding.values["padding_bytes"] == 256 * 3 * 4096 * 32 // 2


class TestA16:
    """https://github.com/NVIDIA/TensorRT-LLM/issues/1939: nobody had written down what moe_tp_size and moe_ep_size
    mean; with both set, assertions failed."""

    MIXTRAL = "mistralai--Mixtral-8x7B-v0.1"

    def test_a16_sizes_that_do_not_multiply_to_tp_are_refused(self, tmp_path: Path) -> None:
        split = {"tensor": 8, "expert": 4, "expert_tensor": 4}
        planned = plan(tmp_path, config_of(self.MIXTRAL), parallelism=split)
        assert planned.refusing == {"MOE_PARALLEL_PRODUCT"}
        assert planned.refused
        finding = planned["MOE_PARALLEL_PRODUCT"]
        assert finding.values["legal_pairs"] == [[8, 1], [4, 2], [2, 4], [1, 8]]
        assert "moe_tp_size" in finding.message
        assert "moe_ep_size" in finding.message

    def test_a16_only_pairs_that_divide_experts_and_their_width_are_offered(self, tmp_path: Path) -> None:
        """Qwen2-57B-A14B: 64 experts of width 2,560 and 4 ranks: (4, 1), (2, 2), (1, 4) all divide; Mixtral on 32 ranks
        has 8 experts, so at most 8 of them hold whole ones: 32 x 1, 16 x 2, 8 x 4, 4 x 8."""
        split = {"tensor": 4, "expert": 4, "expert_tensor": 4}
        finding = plan(tmp_path, config_of("Qwen--Qwen2-57B-A14B"), parallelism=split)["MOE_PARALLEL_PRODUCT"]
        assert finding.values["legal_pairs"] == [[4, 1], [2, 2], [1, 4]]
        split = {"tensor": 32, "expert": 2, "expert_tensor": 2}
        finding = plan(tmp_path, config_of(self.MIXTRAL), parallelism=split, target={"gpus": 32})[
            "MOE_PARALLEL_PRODUCT"
        ]
        assert finding.values["legal_pairs"] == [[32, 1], [16, 2], [8, 4], [4, 8]]

    def test_a16_more_ranks_than_experts_hold_no_whole_expert_each(self, tmp_path: Path) -> None:
        split = {"tensor": 16, "expert": 16}
        finding = plan(tmp_path, config_of(self.MIXTRAL), parallelism=split, target={"gpus": 16})["MOE_EXPERTS"]
        assert finding.values["experts"] == 8

    @pytest.mark.parametrize(
        "split",
        [
            {"expert": 4, "expert_tensor": 2},
            {"expert": 8, "expert_tensor": 1},
            {"expert": 4},  # the other one is computed: 2
            {"expert_tensor": 2},
            {},  # every expert is split over all ranks
        ],
    )
    def test_a16_legal_sizes_are_accepted_and_the_missing_one_is_computed(
        self, tmp_path: Path, split: dict[str, int]
    ) -> None:
        split = {"tensor": 8} | split
        assert not plan(tmp_path, config_of(self.MIXTRAL), parallelism=split).refused
        unit = unit_of(tmp_path, config_of(self.MIXTRAL), parallelism=split)
        assert unit.moe_expert * unit.moe_tensor == 8


class TestA20:
    """https://docs.nvidia.com/nim/large-language-models/latest/deployment/model-profiles-and-selection.html: the
    profile bf16-tp8-pp2 needs 16 GPUs, and is started on 8. Also NVIDIA/TensorRT-LLM issues 2021 and 440."""

    def test_a20_more_ranks_than_the_node_has_gpus_are_refused(self, tmp_path: Path) -> None:
        split = {"tensor": 8, "pipeline": 2}
        planned = plan(tmp_path, config_of("meta-llama--Llama-3.1-70B"), parallelism=split, target={"gpus": 8})
        assert planned.refusing == {"NOT_ENOUGH_GPUS"}
        assert planned.refused
        finding = planned["NOT_ENOUGH_GPUS"]
        assert finding.values["world_size"] == 16
        assert "16" in finding.message
        assert "8" in finding.message

    def test_a20_without_a_number_the_usual_server_of_the_card_counts(self, tmp_path: Path) -> None:
        """Servers with H100 SXM have at most eight."""
        split = {"tensor": 8, "pipeline": 2}
        finding = plan(tmp_path, config_of("meta-llama--Llama-3.1-70B"), parallelism=split)["NOT_ENOUGH_GPUS"]
        assert (finding.values["world_size"], finding.values["gpus"]) == (16, 8)

    @pytest.mark.parametrize(("split", "world"), [({"tensor": 4}, 4), ({"tensor": 2, "pipeline": 3}, 6)])
    def test_a20_every_kind_of_split_counts(self, tmp_path: Path, split: dict[str, int], world: int) -> None:
        """Gemma-7B: 16 heads and KV heads, 28 layers."""
        planned = plan(tmp_path, config_of("google--gemma-7b"), parallelism=split, target={"gpus": 2})
        assert planned["NOT_ENOUGH_GPUS"].values == {"world_size": world, "gpus": 2}

    @pytest.mark.parametrize("gpus", [16, 32])
    def test_a20_a_node_that_has_them_is_accepted(self, tmp_path: Path, gpus: int) -> None:
        split = {"tensor": 8, "pipeline": 2}
        assert not plan(
            tmp_path, config_of("meta-llama--Llama-3.1-70B"), parallelism=split, target={"gpus": gpus}
        ).refused
