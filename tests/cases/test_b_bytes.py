"""Reports of class B that are arithmetic: KV bytes of a token, blocks of a pool, windows, and sizes to the byte."""

from pathlib import Path
from typing import Any

import pytest

from builder.model.inventory import parameter_count
from builder.plan.memory import estimate, host_kv_blocks, kv_blocks, kv_sequence_bytes
from tests.cases.support import AS_PUBLISHED, PYTORCH, config_of, explain, failure, plan, unit_of

GIB = 1 << 30


class TestB02:
    """https://github.com/triton-inference-server/tensorrtllm_backend/issues/456: Gemma-7B in FP16 on 80 GB: the pool of
    54,022,635,520 bytes, 117,760 tokens, left nothing for the next allocation. Its heads are 256 wide, not 192."""

    def test_b02_a_token_costs_what_the_head_dim_of_the_config_says(self, tmp_path: Path) -> None:
        memory = explain(tmp_path, config_of("google--gemma-7b"), precision={"weights": "fp16", "kv_cache": "fp16"})[
            "memory"
        ]
        assert memory["kv_bytes_per_token"] == 458_752
        assert memory["kv_bytes_per_token"] * 117_760 == 54_022_635_520
        assert memory["kv_bytes_per_token"] != 2 * 28 * 16 * (3072 // 16) * 2 == 344_064

    @pytest.mark.parametrize(
        ("model", "kv_cache", "expected"),
        [
            ("mistralai--Mistral-Nemo-Base-2407", "auto", 2 * 40 * 8 * 128 * 2),  # 5120 / 32 is 160
            ("Qwen--Qwen3-0.6B", "auto", 2 * 28 * 8 * 128 * 2),  # 1024 / 16 is 64
            ("Qwen--Qwen3-32B", "auto", 2 * 64 * 8 * 128 * 2),  # 5120 / 64 is 80
            ("TinyLlama--TinyLlama-1.1B-Chat-v1.0", "auto", 2 * 22 * 4 * 64 * 2),
            ("meta-llama--Llama-3.1-8B", "fp8", 2 * 32 * 8 * 128),
        ],
    )
    def test_b02_other_models(self, tmp_path: Path, model: str, kv_cache: str, expected: int) -> None:
        explained = explain(tmp_path, config_of(model), precision={"kv_cache": kv_cache})
        assert explained["memory"]["kv_bytes_per_token"] == expected


class TestB07:
    """https://github.com/NVIDIA/TensorRT-LLM/issues/16707: an estimate for DeepSeek-V3.2 counted heads where the model
    keeps one compressed vector per token, whole on every rank, and allowed 64 requests where 242 fit. Also
    jundot/omlx issue 2626."""

    @pytest.mark.parametrize(
        ("model", "precision", "expected"),
        [
            ("deepseek-ai--DeepSeek-V3", AS_PUBLISHED, 70_272),  # 61 x (512 + 64) x 2; 128 heads of 128: 3,997,696
            ("deepseek-ai--DeepSeek-V2-Lite", {"weights": "bf16"}, 31_104),  # 27 x (512 + 64) x 2
            ("deepseek-ai--DeepSeek-R1", AS_PUBLISHED, 70_272),
            ("moonshotai--Kimi-K2-Instruct", AS_PUBLISHED, 70_272),  # 64 heads, the same 61 vectors
            ("deepseek-ai--DeepSeek-V3", AS_PUBLISHED | {"kv_cache": "fp8"}, 35_136),
        ],
    )
    def test_b07_a_latent_cache_is_whole_on_every_rank(
        self, tmp_path: Path, model: str, precision: dict[str, str], expected: int
    ) -> None:
        for tensor in (1, 8):
            explained = explain(
                tmp_path, config_of(model), precision=precision, parallelism={"tensor": tensor}, **PYTORCH
            )
            assert explained["memory"]["kv_bytes_per_token"] == expected

    def test_b07_one_latent_head_does_not_forbid_a_split(self, tmp_path: Path) -> None:
        config = config_of("deepseek-ai--DeepSeek-V3", num_key_value_heads=1)
        target = {"sku": "h200-sxm-141gb"}
        planned = plan(tmp_path, config, precision=AS_PUBLISHED, parallelism={"tensor": 8}, target=target, **PYTORCH)
        assert not planned.refused
        assert "KV_HEADS_REPLICATED" not in planned.codes

    def test_b07_a_latent_cache_that_the_config_does_not_describe_is_not_guessed(self, tmp_path: Path) -> None:
        """DeepSeek-V4 has no kv_lora_rank, one KV head and a head_dim of 512; nothing says how it is kept."""
        error = failure(tmp_path, config_of("deepseek-ai--DeepSeek-V4-Flash"), precision=AS_PUBLISHED, **PYTORCH)
        assert error.exit_code == 4
        assert "deepseek_v4" in error.words


class TestB12:
    """https://github.com/triton-inference-server/tensorrtllm_backend/issues/576: Llama-3-8B on two ranks: the log has
    17,210 blocks of 64 tokens on the GPU and 10,728 in 45 GB of host memory."""

    def test_b12_blocks_come_out_as_the_log_has_them(self, tmp_path: Path) -> None:
        """74.69 GiB in the log is rounded: 74.69 x 0.9 / 4 MiB = 17,208.6 blocks, at most 1.2 off for 0.005 GiB. The
        pool on the GPU is rounded up (17,209), that in host memory down."""
        unit = unit_of(tmp_path, config_of("meta-llama--Meta-Llama-3-8B"), parallelism={"tensor": 2})
        token = estimate(unit).kv_bytes_per_token
        assert 64 * token == 4_194_304
        blocks = kv_blocks(int(74.69 * GIB), 0.9, 64, token)
        assert blocks == 17_209
        assert abs(blocks - 17_210) <= 5
        assert abs(blocks - 17_208) <= 1
        assert host_kv_blocks(45_000_000_000, 64, token) == 10_728

    def test_b12_a_sequence_takes_whole_blocks(self, tmp_path: Path) -> None:
        """8,000 / 64 = 125; 8,001 tokens would take one more."""
        for length, blocks in ((8000, 125), (8001, 126)):
            unit = unit_of(
                tmp_path,
                config_of("meta-llama--Meta-Llama-3-8B", max_position_embeddings=8192),
                parallelism={"tensor": 2},
                limits={"max_seq_len": length},
                engine={"tokens_per_block": 64},
            )
            assert estimate(unit).needed_tokens == blocks * 64
            assert estimate(unit).sequence_bytes == blocks * 4_194_304

    @pytest.mark.parametrize(
        ("free", "tokens_per_block", "token", "blocks"),
        [
            (70.48, 64, 262_144, 4060),  # Llama-2-7B, FP8 KV: TensorRT-LLM docs/source/reference/memory.md
            (17.83, 32, 65_536, 8219),  # Llama-3.1-8B, FP8 KV, on an RTX 5090: a public log
        ],
    )
    def test_b12_other_logs(self, free: float, tokens_per_block: int, token: int, blocks: int) -> None:
        """The free memory is rounded to 0.01 GiB in them, which is up to 3 blocks."""
        assert abs(kv_blocks(int(free * GIB), 0.9, tokens_per_block, token) - blocks) <= 3


class TestB13:
    """https://github.com/NVIDIA/TensorRT-LLM/issues/14906 and 14907: a window as long as max_seq_len, or longer, broke
    the KV cache manager: gemma-3-1b (512, five layers of six) with 511 tokens, Ministral-8B (32,768) with 512."""

    GEMMA = "google--gemma-3-1b-it"

    def test_b13_layers_with_a_window_keep_no_more_than_it_and_no_more_than_there_is(self, tmp_path: Path) -> None:
        """22 of 26 layers have the window; a token of one layer takes 2 x 1 x 256 x 2 = 1,024 bytes. Up to 512 tokens
        all layers grow, from there on only the 4 others."""
        unit = unit_of(tmp_path, config_of(self.GEMMA), limits={"max_seq_len": 32_768})
        windows = [layer.attention.window for layer in unit.spec.layers if layer.attention]
        assert (windows.count(None), windows.count(512)) == (4, 22)
        assert estimate(unit).kv_bytes_per_token == 26_624
        assert kv_sequence_bytes(unit, 511) == 511 * 26_624
        assert kv_sequence_bytes(unit, 512) == 512 * 26_624
        assert kv_sequence_bytes(unit, 513) == 512 * 26_624 + 4 * 1024
        assert kv_sequence_bytes(unit, 32_768) == 145_752_064
        assert 32_768 * 26_624 == 872_415_232

    @pytest.mark.parametrize(
        ("model", "length", "sequence"),
        [
            (GEMMA, 511, 512 * 26_624),  # in whole blocks of 32
            (GEMMA, 32_768, 145_752_064),
            # 36 layers with a window of 32,768: 2 x 8 x 128 x 2 bytes each
            ("mistralai--Ministral-8B-Instruct-2410", 512, 512 * 147_456),
            # 42 layers, half with a window of 4,096: 21 x 8,192 x 8,192 + 21 x 4,096 x 8,192
            ("google--gemma-2-9b-it", 8192, 21 * 8192 * (8192 + 4096)),
        ],
    )
    def test_b13_a_plan_is_accepted_and_counts_the_windows(
        self, tmp_path: Path, model: str, length: int, sequence: int
    ) -> None:
        limits = {"max_seq_len": length, "max_batch_size": 16}
        assert not plan(tmp_path, config_of(model), limits=limits).refused
        assert explain(tmp_path, config_of(model), limits=limits)["memory"]["sequence_bytes"] == sequence

    def test_b13_more_sequences_fit_with_windows_than_without(self, tmp_path: Path) -> None:
        recipe: dict[str, Any] = {"limits": {"max_seq_len": 32_768}, "target": {"sku": "l4-24gb"}}
        memory = explain(tmp_path, config_of(self.GEMMA), **recipe)["memory"]
        assert memory["sequences"]["high"] == memory["kv_pool"]["high"] // 145_752_064
        assert memory["sequences"]["high"] > 5 * memory["kv_pool"]["high"] // 872_415_232


class TestB17:
    """https://huggingface.co/openai/gpt-oss-20b: 20.9 billion parameters in 13,761,264,768 bytes by its index, as the
    experts have four bits and a scale for 32, and the rest sixteen. At two bytes each it would be 41.8 GB, at half of
    one 10.5."""

    @pytest.mark.parametrize(
        ("model", "parameters", "stored", "layers", "window"),
        [
            # 24 x 2,048 = 49,152 bytes a token, 24,576 beyond the window
            ("openai--gpt-oss-20b", 20_914_757_184, 13_761_264_768, 24, 3_145_728),
            ("openai--gpt-oss-120b", 116_829_156_672, 65_248_815_744, 36, 4_718_592),
        ],
    )
    def test_b17_sizes_come_out_to_the_byte(
        self, tmp_path: Path, model: str, parameters: int, stored: int, layers: int, window: int
    ) -> None:
        """Half of the layers have a window of 128 tokens: 2 x 8 x 64 x 2 bytes a token and layer."""
        planned = plan(tmp_path, config_of(model), precision=AS_PUBLISHED, **PYTORCH, target={"sku": "b200-180gb"})
        assert planned.unit["sizes"]["download_bytes"] == stored
        assert planned.unit["sizes"]["checkpoint_bytes"] == stored
        unit = unit_of(tmp_path, config_of(model), precision=AS_PUBLISHED, **PYTORCH)
        assert parameter_count(unit.spec) == parameters
        assert estimate(unit).kv_bytes_per_token == layers * 2048
        assert kv_sequence_bytes(unit, 4097) - kv_sequence_bytes(unit, 4096) == layers // 2 * 2048
        assert kv_sequence_bytes(unit, 4096) - 4096 * (layers // 2 * 2048) == window

    def test_b17_a_card_without_fp4_is_refused(self, tmp_path: Path) -> None:
        planned = plan(
            tmp_path, config_of("openai--gpt-oss-20b"), precision=AS_PUBLISHED, **PYTORCH, target={"sku": "l40s-48gb"}
        )
        assert planned["SM_TOO_OLD_FOR_MXFP4"].refuses

    def test_b17_blackwell_runs_it(self, tmp_path: Path) -> None:
        config, target = config_of("openai--gpt-oss-20b"), {"sku": "b200-180gb"}
        assert not plan(tmp_path, config, precision=AS_PUBLISHED, **PYTORCH, target=target).refused

    def test_b17_other_checkpoints_of_several_formats(self, tmp_path: Path) -> None:
        """Qwen3-30B-A3B-FP8: linears of one byte with a float32 scale per 128x128, the rest in bf16. Of 30,532,122,624
        parameters all are linears but the embedding and the head (2 x 151,936 x 2,048), the routers (48 x 128 x 2,048)
        and the norms (48 x (2 x 2,048 + 2 x 128) + 2,048)."""
        plain = 2 * 151_936 * 2048 + 48 * 128 * 2048 + 48 * (2 * 2048 + 2 * 128) + 2048
        linears = 30_532_122_624 - plain
        config = config_of("Qwen--Qwen3-30B-A3B-FP8")
        sizes = plan(tmp_path, config, precision=AS_PUBLISHED, **PYTORCH).unit["sizes"]
        assert sizes["download_bytes"] == 2 * plain + linears + linears // (128 * 128) * 4
