"""Reports of class B on what doesn't fit: weights and KV caches too large for a card, with the numbers of the logs.

What TensorRT-LLM needs besides weights and KV cache is a range: a unit is refused where not even its low end fits.
"""

from pathlib import Path
from typing import Any

import pytest

from builder.plan.memory import estimate
from tests.cases.support import AS_PUBLISHED, AWQ, config_of, plan, unit_of

GIB = 1 << 30
LLAMA_2_7B, LLAMA_2_70B, LLAMA_31_8B = (
    "meta-llama--Llama-2-7b-hf",
    "meta-llama--Llama-2-70b-hf",
    "meta-llama--Llama-3.1-8B",
)


class TestB01:
    """https://github.com/vllm-project/vllm/issues/10517: Llama-3.1-8B on an RTX 3090, whose user wants 29,000 tokens:
    the log has 14.99 GiB of weights and 2.89 GiB of KV cache, 23,648 tokens.

    It is a log of vLLM, which takes a share of the whole card and runs the prompt in one pass while it measures what is
    left. A recipe says the same by a cap on the cache, or by a smaller share. At TensorRT-LLM's own share, 0.9 of what
    is left after the weights, one such sequence may fit: (24 - 14.96) x 0.9 = 8.1 GiB less activations and CUDA.
    """

    RECIPE: dict[str, Any] = {  # noqa: RUF012
        "limits": {"max_batch_size": 1, "max_seq_len": 29_000, "max_num_tokens": 29_000},
        "target": {"sku": "rtx-3090-24gb"},
    }

    def test_b01_a_sequence_longer_than_the_cache_is_refused_with_what_fits(self, tmp_path: Path) -> None:
        serving = {"max_tokens_in_paged_kv_cache": 23_648}
        planned = plan(tmp_path, config_of(LLAMA_31_8B), **self.RECIPE, serving=serving)
        assert planned.refused
        finding = planned["KV_DOES_NOT_FIT"]
        assert finding.severity == "refuse"
        assert finding.values["weight_bytes"] == 16_060_522_496
        assert finding.values["weight_gib"] == 14.958
        assert finding.values["kv_bytes_per_token"] == 131_072
        assert finding.values["kv_needed_bytes"] == 29_000 * 131_072 == 3_801_088_000
        assert finding.values["kv_available_gib"] == 2.89
        assert finding.values["max_tokens"] == 23_648
        assert "max_seq_len: 23648" in finding.suggestion
        assert finding.values["weight_bytes"] / GIB == pytest.approx(14.9888, rel=0.02)

    def test_b01_a_share_that_leaves_less_than_the_sequence_is_refused(self, tmp_path: Path) -> None:
        """0.38 of the 24 GiB less the weights is 3.44 GiB, 28,147 tokens, before anything else is counted."""
        serving = {"kv_cache_free_gpu_mem_fraction": 0.38}
        finding = plan(tmp_path, config_of(LLAMA_31_8B), **self.RECIPE, serving=serving)["KV_DOES_NOT_FIT"]
        assert finding.values["max_tokens"] < 28_147
        assert finding.values["kv_needed_bytes"] == 3_801_088_000

    def test_b01_the_log_lies_in_the_range_of_the_estimate_so_it_is_not_refused(self, tmp_path: Path) -> None:
        tokens = estimate(unit_of(tmp_path, config_of(LLAMA_31_8B), **self.RECIPE)).kv_tokens
        assert tokens is not None
        assert tokens.low < 23_648 < 29_000 < tokens.high
        assert not plan(tmp_path, config_of(LLAMA_31_8B), **self.RECIPE).refused

    def test_b01_what_the_log_had_room_for_is_accepted(self, tmp_path: Path) -> None:
        recipe = self.RECIPE | {"limits": {"max_batch_size": 1, "max_seq_len": 23_648, "max_num_tokens": 8192}}
        serving = {"max_tokens_in_paged_kv_cache": 23_648}
        assert not plan(tmp_path, config_of(LLAMA_31_8B), **recipe, serving=serving).refused

    def test_b01_another_model_on_another_card(self, tmp_path: Path) -> None:
        """Mistral-Nemo, 24,495,564,800 bytes, on 31.84 GiB: 131,072 tokens take 2 x 40 x 8 x 128 x 2 x 131,072 =
        21,474,836,480 bytes, and less than 32,607 MiB - 24,495,564,800 = 9,695,351,808 are left: 59,176 tokens."""
        limits = {"max_batch_size": 1, "max_seq_len": 131_072, "max_num_tokens": 8192}
        config = config_of("mistralai--Mistral-Nemo-Base-2407")
        finding = plan(tmp_path, config, limits=limits, target={"sku": "rtx-5090-32gb"})["KV_DOES_NOT_FIT"]
        assert finding.values["weight_bytes"] == 24_495_564_800
        assert finding.values["kv_bytes_per_token"] == 163_840
        assert finding.values["kv_needed_bytes"] == 21_474_836_480
        assert 0 < finding.values["max_tokens"] < 59_176


class TestB04:
    """https://github.com/triton-inference-server/tensorrtllm_backend/issues/168: Llama-2-7B in INT4 on an RTX 3080 with
    0.2 of the free memory: a pool of 872,415,232 bytes, 1,664 tokens, where one sequence takes 20 blocks of 128."""

    LIMITS = {"max_batch_size": 1, "max_seq_len": 2560, "max_num_tokens": 2560}  # noqa: RUF012
    ENGINE = {"tokens_per_block": 128}  # noqa: RUF012

    def test_b04_a_pool_below_one_sequence_is_refused_in_tokens_and_bytes(self, tmp_path: Path) -> None:
        planned = plan(
            tmp_path,
            config_of(LLAMA_2_7B),
            precision={"weights": "int4-wo", "kv_cache": "fp16"},
            limits=self.LIMITS,
            engine=self.ENGINE,
            serving={"kv_cache_free_gpu_mem_fraction": 0.2, "max_tokens_in_paged_kv_cache": 872_415_232 // 524_288},
            target={"sku": "rtx-3080-10gb"},
        )
        assert planned.refused
        finding = planned["KV_POOL_BELOW_MINIMUM"]
        assert finding.severity == "refuse"
        assert finding.values["kv_bytes_per_token"] == 524_288
        assert finding.values["pool_tokens"] == 1664
        assert finding.values["needed_tokens"] == 20 * 128 == 2560
        assert finding.values["needed_bytes"] == 1_342_177_280
        assert "1664" in finding.message
        assert "2560" in finding.message
        assert "max_seq_len of at most 1664" in finding.suggestion

    def test_b04_the_share_of_the_report_alone_is_refused_too(self, tmp_path: Path) -> None:
        """The pool of the log lies between the two ends of the estimate; both are below a sequence."""
        recipe: dict[str, Any] = {
            "precision": {"weights": "int4-wo"},
            "limits": self.LIMITS,
            "engine": self.ENGINE,
            "serving": {"kv_cache_free_gpu_mem_fraction": 0.2},
            "target": {"sku": "rtx-3080-10gb"},
        }
        finding = plan(tmp_path, config_of(LLAMA_2_7B), **recipe)["KV_POOL_BELOW_MINIMUM"]
        assert finding.values["needed_bytes"] == 1_342_177_280
        assert "kv_cache_free_gpu_mem_fraction above" in finding.suggestion
        tokens = estimate(unit_of(tmp_path, config_of(LLAMA_2_7B), **recipe)).kv_tokens
        assert tokens is not None
        assert tokens.low < 1664 < tokens.high < 2560

    def test_b04_sequences_are_counted_in_whole_blocks_and_for_every_beam(self, tmp_path: Path) -> None:
        """Llama-3-8B, 1,000 tokens in blocks of 64 are 16 blocks, 1,024 tokens; three beams take 3,072 x 131,072."""
        planned = plan(
            tmp_path,
            config_of("meta-llama--Meta-Llama-3-8B"),
            limits={"max_batch_size": 4, "max_seq_len": 1000, "max_beam_width": 3},
            engine={"tokens_per_block": 64},
            serving={"max_tokens_in_paged_kv_cache": 2000, "streaming": False},
        )
        finding = planned["KV_POOL_BELOW_MINIMUM"]
        assert finding.values["needed_tokens"] == 3072
        assert finding.values["needed_bytes"] == 402_653_184
        assert finding.values["pool_tokens"] == 2000

    @pytest.mark.parametrize(
        "serving", [{"kv_cache_free_gpu_mem_fraction": 0.9}, {"max_tokens_in_paged_kv_cache": 2560}]
    )
    def test_b04_a_larger_share_or_cap_is_accepted(self, tmp_path: Path, serving: dict[str, Any]) -> None:
        planned = plan(
            tmp_path,
            config_of(LLAMA_2_7B),
            precision={"weights": "int4-wo"},
            limits=self.LIMITS,
            engine=self.ENGINE,
            serving=serving,
            target={"sku": "rtx-3080-10gb"},
        )
        assert not planned.refused


class TestB09:
    """https://github.com/NVIDIA/TensorRT-LLM/issues/203: Llama-2-70B on two A100 with a batch of 50 x 8,192 tokens; it
    was built for a long time, and then memory was short: 64.48 GiB of weights on each, and 62.5 more for the cache."""

    RECIPE: dict[str, Any] = {  # noqa: RUF012
        "precision": {"weights": "fp16"},
        "parallelism": {"tensor": 2},
        "limits": {"max_batch_size": 50, "max_input_len": 4096, "max_seq_len": 8192},
        "target": {"sku": "a100-sxm-80gb"},
    }

    def test_b09_a_batch_of_which_little_fits_is_refused_before_the_build(self, tmp_path: Path) -> None:
        planned = plan(tmp_path, config_of(LLAMA_2_70B), **self.RECIPE)
        assert planned.refused
        finding = planned["KV_DOES_NOT_FIT"]
        assert finding.refuses
        assert finding.values["weight_bytes_total"] == 137_953_296_384
        assert finding.values["weight_gib_rank"] == 64.48
        assert finding.values["kv_bytes_per_token_rank"] == 163_840
        assert finding.values["kv_gib_rank_full_batch"] == 62.5
        # 80 GiB less the weights hold 12.4 such sequences of 1.25 GiB, the report 8 beside everything else
        assert 8 <= finding.values["max_batch_size"] <= 12
        assert "parallelism.tensor: 4" in finding.suggestion
        assert "max_batch_size" in finding.suggestion

    def test_b09_the_offers_are_accepted(self, tmp_path: Path) -> None:
        """Llama-2 was made for 4,096 positions: sequences of that length here, which the offers are about as well."""
        config = config_of(LLAMA_2_70B, max_position_embeddings=8192)
        assert not plan(tmp_path, config, **self.RECIPE | {"parallelism": {"tensor": 4}}).refused
        limits = {"max_batch_size": 8, "max_input_len": 4096, "max_seq_len": 8192}
        assert not plan(tmp_path, config, **self.RECIPE | {"limits": limits}).refused
        assert not plan(tmp_path, config, **self.RECIPE | {"precision": {"weights": "int8-wo"}}).refused

    def test_b09_another_model_that_fills_its_gpus(self, tmp_path: Path) -> None:
        """Qwen2.5-72B on two H100: 64 sequences of 4,096 tokens take 64 x 4,096 x 163,840 bytes = 40 GiB per rank. A
        whole embedding (152,064 x 8,192 x 2 = 2,491,416,576) and half of the rest leave 81,559 MiB - 73.95 GB =
        11.57 GB, of which 0.9 hold 15 of these sequences at most: less than a quarter."""
        limits = {"max_batch_size": 64, "max_seq_len": 4096}
        config = config_of("Qwen--Qwen2.5-72B")
        planned = plan(tmp_path, config, limits=limits, parallelism={"tensor": 2})
        assert planned.refusing == {"KV_DOES_NOT_FIT"}
        finding = planned["KV_DOES_NOT_FIT"]
        assert finding.values["weight_bytes_total"] == 145_412_407_296
        assert finding.values["kv_bytes_per_token_rank"] == 163_840
        assert finding.values["kv_gib_rank_full_batch"] == 40
        assert finding.values["max_batch_size"] <= 15
        assert not plan(tmp_path, config, limits=limits, parallelism={"tensor": 4}).refused

    def test_b09_a_reason_lets_it_pass(self, tmp_path: Path) -> None:
        waivers = [
            {"code": "KV_DOES_NOT_FIT", "reason": "requests have 500 tokens on average"},
            {"code": "SEQ_LEN_GT_MODEL", "reason": "the case as it was reported"},
        ]
        planned = plan(tmp_path, config_of(LLAMA_2_70B), **self.RECIPE, waivers=waivers)
        assert not planned.refused
        assert planned["KV_DOES_NOT_FIT"].waived == "requests have 500 tokens on average"


class TestB10:
    """https://github.com/NVIDIA/TensorRT-LLM/issues/1609: Llama-3-8B in FP16 on an RTX 4070 SUPER: its user looked for
    days at messages of the allocator, where 14.96 GiB can't be in 12. Issue 2451 there has chatglm3-6b."""

    def test_b10_weights_larger_than_the_card_are_refused_with_a_precision_that_fits(self, tmp_path: Path) -> None:
        """INT4 linears of half a byte: (8,030,261,248 - 2 x 128,256 x 4,096 - 65 x 4,096) / 2, and two for the rest."""
        config, target = config_of("meta-llama--Meta-Llama-3-8B"), {"sku": "rtx-4070-super-12gb"}
        planned = plan(tmp_path, config, precision={"weights": "fp16"}, target=target)
        assert planned.refusing == {"WEIGHTS_DO_NOT_FIT"}
        assert planned.refused
        finding = planned["WEIGHTS_DO_NOT_FIT"]
        assert finding.values["weight_gib"] == 14.96
        assert finding.values["gpu_gib"] == 12
        assert finding.values["int4_linear_only_bytes"] == 5_591_539_712
        assert "int4-wo" in finding.suggestion
        planned = plan(tmp_path, config, precision={"weights": "int4-wo", "activations": "fp16"}, target=target)
        assert not planned.refused

    def test_b10_another_model_on_another_card(self, tmp_path: Path) -> None:
        """Mistral-7B-v0.3, 14,496,047,104 bytes, doesn't fit into 10 GiB. With INT4 linears it is (7,248,023,552 -
        2 x 134,217,728 - 266,240) / 2 + 2 x (268,435,456 + 266,240) = 4,027,064,320; in INT8 it may fit."""
        config, target = config_of("mistralai--Mistral-7B-v0.3"), {"sku": "rtx-3080-10gb"}
        finding = plan(tmp_path, config, target=target)["WEIGHTS_DO_NOT_FIT"]
        assert finding.values["weight_gib"] == 13.5
        assert finding.values["gpu_gib"] == 10
        assert finding.values["int4_linear_only_bytes"] == 4_027_064_320
        assert "int4-wo" in finding.values["fitting_precisions"]
        assert not plan(tmp_path, config, precision={"weights": "int8-wo"}, target=target).refused

    def test_b10_a_quantised_source_is_offered_more_gpus_only(self, tmp_path: Path) -> None:
        """Qwen2.5-72B in INT4 has about 41 GB: nothing smaller can be made of it."""
        config = config_of("Qwen--Qwen2.5-72B", quantization_config=AWQ)
        planned = plan(tmp_path, config, precision=AS_PUBLISHED, target={"sku": "l4-24gb"})
        assert planned["WEIGHTS_DO_NOT_FIT"].values["fitting_precisions"] == []
        assert "precision.weights" not in planned["WEIGHTS_DO_NOT_FIT"].suggestion

    def test_b10_a_model_that_fits_is_accepted(self, tmp_path: Path) -> None:
        config = config_of("meta-llama--Llama-3.2-3B")
        assert not plan(tmp_path, config, target={"sku": "rtx-4070-super-12gb"}).refused
