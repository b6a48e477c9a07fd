"""Reports of class B on what nobody said: lengths and dtypes that are inherited, and limits without measure."""

from pathlib import Path

import pytest

from builder.plan.memory import estimate
from tests.cases.support import config_of, plan, unit_of

LLAMA_2_7B, LLAMA_31_8B = "meta-llama--Llama-2-7b-hf", "meta-llama--Llama-3.1-8B"


class TestB05:
    """https://github.com/triton-inference-server/tensorrtllm_backend/issues/577: a Llama-3-8B of 1,048,576 positions
    was built without max_seq_len, and Triton planned for a sequence of a million tokens."""

    def test_b05_a_length_is_never_inherited_silently(self, tmp_path: Path) -> None:
        config = config_of("meta-llama--Meta-Llama-3-8B", max_position_embeddings=1_048_576)
        planned = plan(tmp_path, config, limits={"max_seq_len": None}, parallelism={"tensor": 2})
        assert planned.refusing == {"MAX_SEQ_LEN_REQUIRED"}
        assert planned.refused
        finding = planned["MAX_SEQ_LEN_REQUIRED"]
        assert finding.values["kv_per_seq_bytes"] == 137_438_953_472
        assert finding.values["kv_per_seq_rank_bytes"] == 68_719_476_736

    def test_b05_other_models_cost_what_their_layers_say(self, tmp_path: Path) -> None:
        """Qwen2.5-7B on four ranks: 131,072 tokens x 57,344 bytes, a quarter of the heads each. With two pipeline
        stages besides, Llama-3.1-70B has 40 of its 80 layers on a rank: 131,072 x 327,680 / 2 / 2."""
        finding = plan(
            tmp_path,
            config_of("Qwen--Qwen2.5-7B", max_position_embeddings=131_072),
            limits={"max_seq_len": None},
            parallelism={"tensor": 4},
        )["MAX_SEQ_LEN_REQUIRED"]
        assert finding.values["kv_per_seq_bytes"] == 131_072 * 57_344
        assert finding.values["kv_per_seq_rank_bytes"] == 131_072 * 14_336
        finding = plan(
            tmp_path,
            config_of("meta-llama--Llama-3.1-70B"),
            limits={"max_seq_len": None},
            parallelism={"tensor": 2, "pipeline": 2},
        )["MAX_SEQ_LEN_REQUIRED"]
        assert finding.values["kv_per_seq_bytes"] == 131_072 * 327_680
        assert finding.values["kv_per_seq_rank_bytes"] == 131_072 * 327_680 // 4

    def test_b05_a_length_that_is_given_is_accepted(self, tmp_path: Path) -> None:
        config = config_of("meta-llama--Meta-Llama-3-8B", max_position_embeddings=1_048_576)
        assert not plan(tmp_path, config, limits={"max_seq_len": 32_768}, parallelism={"tensor": 2}).refused


class TestB15:
    """https://github.com/NVIDIA/TensorRT-LLM/issues/1485: weights and plugins stayed float32 since the checkpoint says
    so; memory doubled, and the types of the plugins didn't match."""

    FLOAT32 = {"torch_dtype": "float32"}  # noqa: RUF012

    @pytest.mark.parametrize(
        ("weights", "dtype"), [("as-published", "float16"), ("fp16", "float16"), ("bf16", "bfloat16")]
    )
    def test_b15_a_float32_source_is_cast_with_a_warning(self, tmp_path: Path, weights: str, dtype: str) -> None:
        config = config_of(LLAMA_2_7B, **self.FLOAT32)
        planned = plan(tmp_path, config, precision={"weights": weights})
        assert not planned.refused
        finding = planned["FP32_SOURCE"]
        assert finding.severity == "warn"
        assert finding.values["download_bytes"] == 26_953_662_464
        assert finding.values["engine_bytes_fp16"] == 13_476_831_232
        assert finding.values["dtype"] == dtype
        # rope table: 4,096 positions x 128 x 4 bytes
        assert planned.unit["sizes"]["download_bytes"] == 26_953_662_464
        assert planned.unit["sizes"]["engine_bytes"] == [13_476_831_232 + 2_097_152]

    def test_b15_another_model(self, tmp_path: Path) -> None:
        """OpenLLaMA-7B-v2 has the sizes of Llama-2-7B; TinyLlama has 1,100,048,384 parameters."""
        config = config_of("TinyLlama--TinyLlama-1.1B-Chat-v1.0", **self.FLOAT32)
        finding = plan(tmp_path, config, precision={"weights": "bf16"})["FP32_SOURCE"]
        assert finding.values["download_bytes"] == 4 * 1_100_048_384
        assert finding.values["engine_bytes_fp16"] == 2 * 1_100_048_384

    def test_b15_float32_is_built_only_if_the_recipe_says_so(self, tmp_path: Path) -> None:
        planned = plan(tmp_path, config_of(LLAMA_2_7B, **self.FLOAT32), precision={"weights": "fp32"})
        assert planned["FP32_SOURCE"].values["dtype"] == "float32"
        assert planned.unit["sizes"]["engine_bytes"] == [26_953_662_464 + 2_097_152]

    def test_b15_a_16_bit_source_is_not_warned_of(self, tmp_path: Path) -> None:
        planned = plan(tmp_path, config_of(LLAMA_2_7B), precision={"weights": "as-published"})
        assert "FP32_SOURCE" not in planned.codes


class TestB19:
    """https://github.com/NVIDIA/TensorRT-LLM/issues/2139: a 70B on eight GPUs, built for a batch of 8,192, ran out of
    memory. triton-inference-server/tensorrtllm_backend issues 303 and 195 are of the same kind."""

    def test_b19_a_batch_far_beyond_the_cache_is_warned_of_with_the_logits(self, tmp_path: Path) -> None:
        """Logits in float32: 8,192 x 128,256 x 4."""
        planned = plan(
            tmp_path,
            config_of("meta-llama--Llama-3.1-70B", max_position_embeddings=8192, rope_scaling=None),
            limits={"max_batch_size": 8192, "max_num_tokens": 16_384, "max_seq_len": 8192},
            parallelism={"tensor": 8},
        )
        assert not planned.refused
        finding = planned["RUNTIME_BUFFERS"]
        assert finding.severity == "warn"
        assert finding.values["fp32_logits_bytes_unsharded"] == 4_202_692_608
        # 8,192 sequences of 8,192 tokens of 2 x 80 layers x 1 head x 128 x 2 bytes on each rank
        assert finding.values["kv_full_batch_bytes"] == 8192 * 8192 * 40_960

    def test_b19_a_padded_vocabulary_counts(self, tmp_path: Path) -> None:
        """GPT-2's 50,257 rows on two ranks are 50,258: 2,048 requests x 50,258 x 4 bytes; 1,024 tokens x 98,304 / 2."""
        finding = plan(
            tmp_path,
            config_of("openai-community--gpt2-medium", torch_dtype="float16"),
            precision={"weights": "fp16"},
            limits={"max_batch_size": 2048, "max_seq_len": 1024},
            parallelism={"tensor": 2},
            target={"sku": "rtx-3080-10gb"},
        )["RUNTIME_BUFFERS"]
        assert finding.values["fp32_logits_bytes_unsharded"] == 2048 * 50_258 * 4
        assert finding.values["kv_full_batch_bytes"] == 2048 * 1024 * 49_152

    def test_b19_a_batch_in_proportion_is_not_warned_of(self, tmp_path: Path) -> None:
        """64 x 8,192 x 40,960 bytes are 20 GiB of some 50."""
        planned = plan(
            tmp_path,
            config_of("meta-llama--Llama-3.1-70B"),
            limits={"max_batch_size": 64, "max_num_tokens": 8192, "max_seq_len": 8192},
            parallelism={"tensor": 8},
        )
        assert not planned.refused
        assert "RUNTIME_BUFFERS" not in planned.codes

    def test_b19_larger_limits_need_more_memory_besides_the_cache(self, tmp_path: Path) -> None:
        def fixed(batch: int, tokens: int) -> int:
            limits = {"max_batch_size": batch, "max_num_tokens": tokens, "max_seq_len": 8192}
            return estimate(unit_of(tmp_path, config_of(LLAMA_31_8B), limits=limits)).fixed_bytes.low

        assert fixed(64, 8192) < fixed(2048, 8192) < fixed(2048, 16_384)
        assert fixed(2048, 8192) - fixed(64, 8192) >= (2048 - 64) * 128_256 * 4
