import time
from dataclasses import replace

import pytest

from builder.model.spec import ModelSpec, SourceQuantization, stage_layers
from builder.model.weights import weights
from tests.unit.model.published import published_config, published_spec

LLAMA = "meta-llama--Llama-3.1-8B"

# KV cache of one token over all attention layers, in bytes of 2-byte values. Rows marked * are confirmed by logs of
# TensorRT-LLM: gemma-7b (triton-inference-server/tensorrtllm_backend issue 456), Llama-2-7b (issue 168).
KV_BYTES = {
    "meta-llama--Llama-3.1-8B": 131_072,
    "meta-llama--Llama-3.1-70B": 327_680,
    "meta-llama--Llama-3.1-405B": 516_096,
    "meta-llama--Llama-3.2-1B": 32_768,
    "meta-llama--Llama-3.2-3B": 114_688,
    "meta-llama--Llama-2-7b-hf": 524_288,  # *
    "meta-llama--Llama-2-13b-hf": 819_200,
    "meta-llama--Llama-2-70b-hf": 327_680,
    "openlm-research--open_llama_7b_v2": 524_288,
    "mistralai--Mistral-7B-v0.3": 131_072,
    "mistralai--Mistral-Nemo-Base-2407": 163_840,
    "mistralai--Mixtral-8x7B-v0.1": 131_072,
    "mistralai--Mixtral-8x22B-v0.1": 229_376,
    "Qwen--Qwen2.5-0.5B": 12_288,
    "Qwen--Qwen2.5-1.5B": 28_672,
    "Qwen--Qwen2.5-3B": 36_864,
    "Qwen--Qwen2.5-7B": 57_344,
    "Qwen--Qwen2.5-72B": 327_680,
    "Qwen--Qwen3-0.6B": 114_688,
    "Qwen--Qwen3-1.7B": 114_688,
    "Qwen--Qwen3-4B": 147_456,
    "Qwen--Qwen3-8B": 147_456,
    "Qwen--Qwen3-14B": 163_840,
    "Qwen--Qwen3-32B": 262_144,
    "Qwen--Qwen3-30B-A3B": 98_304,
    "Qwen--Qwen3-235B-A22B": 192_512,
    "Qwen--Qwen3-VL-2B-Instruct": 114_688,
    "Qwen--Qwen3.5-35B-A3B": 20_480,
    "google--gemma-7b": 458_752,  # *
    "google--gemma-2-9b-it": 344_064,
    "google--gemma-3-1b-it": 26_624,
    "microsoft--Phi-3-mini-4k-instruct": 393_216,
    "microsoft--phi-4": 204_800,
    "microsoft--Phi-4-mini-instruct": 131_072,
    "TinyLlama--TinyLlama-1.1B-Chat-v1.0": 22_528,
    "HuggingFaceTB--SmolLM2-135M": 23_040,
    "HuggingFaceTB--SmolLM2-360M": 40_960,
    "HuggingFaceTB--SmolLM2-1.7B": 196_608,
    "deepseek-ai--DeepSeek-V2-Lite": 31_104,
    "deepseek-ai--DeepSeek-V3": 70_272,
    "deepseek-ai--DeepSeek-R1": 70_272,
    "deepseek-ai--DeepSeek-V3.2": 70_272,
    "moonshotai--Kimi-K2-Instruct": 70_272,
    "openai--gpt-oss-20b": 49_152,
    "openai--gpt-oss-120b": 73_728,
    "nvidia--Llama-3_3-Nemotron-Super-49B-v1": 200_704,
    "nvidia--Nemotron-H-56B-Base-8K": 40_960,
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": 6_144,
}


@pytest.mark.parametrize("model", KV_BYTES)
def test_the_kv_cache_of_a_token_has_its_published_size(model: str) -> None:
    assert published_spec(model).kv_bytes_per_token(2, tp=1) == KV_BYTES[model]


def test_gpt2_medium_caches_what_a_log_of_tensorrt_llm_says() -> None:
    described = published_spec("openai-community--gpt2-medium", stored_dtype="F32")
    assert described.kv_bytes_per_token(2, tp=1) == 98_304 == 21_705_523_200 // 220_800
    assert described.rope_theta == 0


@pytest.mark.parametrize(
    ("model", "tp", "kv_bytes"),
    [
        ("meta-llama--Llama-3.1-8B", 2, 65_536),
        ("meta-llama--Llama-3.1-70B", 4, 81_920),
        ("meta-llama--Llama-3.1-70B", 16, 40_960),
        ("meta-llama--Llama-3.1-405B", 8, 64_512),
        ("meta-llama--Llama-3.2-3B", 2, 57_344),
        ("Qwen--Qwen2.5-7B", 4, 14_336),
        ("Qwen--Qwen2.5-1.5B", 4, 14_336),
        ("Qwen--Qwen3-32B", 4, 65_536),
        ("Qwen--Qwen3-30B-A3B", 8, 24_576),
        ("mistralai--Mistral-Nemo-Base-2407", 2, 81_920),
        ("microsoft--phi-4", 2, 102_400),
        ("google--gemma-2-9b-it", 4, 86_016),
        ("HuggingFaceTB--SmolLM2-135M", 3, 7_680),
        ("TinyLlama--TinyLlama-1.1B-Chat-v1.0", 8, 5_632),
        ("deepseek-ai--DeepSeek-V3", 8, 70_272),
        ("deepseek-ai--DeepSeek-V2-Lite", 8, 31_104),
    ],
)
def test_ranks_share_heads_until_each_has_one_and_never_a_latent_vector(model: str, tp: int, kv_bytes: int) -> None:
    assert published_spec(model).kv_bytes_per_token(2, tp) == kv_bytes


def test_a_smaller_precision_makes_a_smaller_cache() -> None:
    assert published_spec("nvidia--Llama-3.1-70B-Instruct-FP8").kv_bytes_per_token(1, tp=1) == 163_840
    assert published_spec("deepseek-ai--DeepSeek-V3").kv_bytes_per_token(1, tp=8) == 35_136
    assert published_spec(LLAMA).kv_bytes_per_token(0.5625, tp=1) == 36_864


def test_the_fullest_stage_counts() -> None:
    assert published_spec("HuggingFaceTB--SmolLM2-135M").kv_bytes_per_token(2, tp=1, pp=4) == 8 * 768
    hybrid = published_spec("nvidia--Nemotron-H-56B-Base-8K")
    attention = [number for number, layer in enumerate(hybrid.layers) if layer.attention]
    first_half = sum(number < 59 for number in attention)
    assert (len(attention), first_half) == (10, 5)
    assert hybrid.kv_bytes_per_token(2, tp=1, pp=2) == 5 * 4096


# windows


def test_gemma_3_sees_a_window_on_five_of_six_layers() -> None:
    described = published_spec("google--gemma-3-1b-it")
    assert described.windows(32_768) == {512: 22, 32_768: 4}
    assert described.kv_bytes(32_768, 2, tp=1) == 145_752_064
    assert described.kv_bytes_per_token(2, tp=1) * 32_768 == 872_415_232


def test_a_window_is_never_longer_than_the_sequence() -> None:
    assert published_spec("google--gemma-3-1b-it").windows(511) == {511: 26}
    assert published_spec("mistralai--Ministral-8B-Instruct-2410").windows(512) == {512: 36}
    assert published_spec("google--gemma-3-1b-it").kv_bytes(511, 2, tp=1) == 511 * 26_624


@pytest.mark.parametrize(
    ("model", "layers", "constant"),
    [("openai--gpt-oss-20b", 12, 3_145_728), ("openai--gpt-oss-120b", 18, 4_718_592)],
)
def test_gpt_oss_alternates_between_a_window_and_all(model: str, layers: int, constant: int) -> None:
    described = published_spec(model)
    assert described.windows(131_072) == {128: layers, 131_072: layers}
    per_token = layers * 2048
    assert described.kv_bytes(100_000, 2, tp=1) == 100_000 * per_token + constant


@pytest.mark.parametrize(
    ("model", "windows"),
    [
        ("mistralai--Mistral-7B-v0.1", {4096: 32}),
        ("mistralai--Mistral-7B-v0.3", {1_000_000: 32}),
        ("Qwen--Qwen2.5-7B", {1_000_000: 28}),
        ("XiaomiMiMo--MiMo-7B-Base", {1_000_000: 36}),
        ("microsoft--Phi-3-mini-4k-instruct", {2047: 32}),
        ("google--gemma-2-9b-it", {4096: 21, 1_000_000: 21}),
        ("google--gemma-4-26B-A4B", {1024: 25, 1_000_000: 5}),
        ("meta-llama--Llama-4-Scout-17B-16E-Instruct", {8192: 36, 1_000_000: 12}),
        ("Qwen--Qwen3.5-35B-A3B", {1_000_000: 10}),
    ],
)
def test_a_window_counts_only_where_it_is_switched_on(model: str, windows: dict[int, int]) -> None:
    assert published_spec(model).windows(1_000_000) == windows


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"use_sliding_window": False, "sliding_window": 131_072}, {1_000_000: 28}),
        ({"use_sliding_window": True, "sliding_window": None}, {1_000_000: 28}),
        ({"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 28}, {1_000_000: 28}),
        ({"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 20}, {1_000_000: 20, 4096: 8}),
        ({"use_sliding_window": True, "sliding_window": 4096, "layer_types": ["sliding_attention"] * 28}, {4096: 28}),
    ],
)
def test_qwen_has_a_window_from_max_window_layers_on(changes: dict[str, object], windows: dict[int, int]) -> None:
    described = ModelSpec.from_config({**published_config("Qwen--Qwen2.5-7B"), **changes}, "config.json")
    assert described.windows(1_000_000) == windows


# states


def test_recurrent_layers_keep_a_state_of_constant_size() -> None:
    mamba = published_spec("nvidia--Nemotron-H-56B-Base-8K")
    assert mamba.layers[0].recurrent is not None
    assert mamba.layers[0].recurrent.conv_channels == 16_384 + 2 * 8 * 256
    assert mamba.state_values(tp=1) == 54 * (16_384 * 256 + 20_480 * 3)
    assert published_spec(LLAMA).state_values(tp=1) == 0


def test_the_indexer_of_sparse_attention_has_a_cache_of_its_own() -> None:
    assert published_spec("deepseek-ai--DeepSeek-V3.2").indexer_bytes_per_token() == 61 * 132
    assert published_spec("deepseek-ai--DeepSeek-V3").indexer_bytes_per_token() == 0


# as keys of caches


def test_equal_configs_give_the_same_object_with_shared_layers() -> None:
    first = ModelSpec.from_config(published_config(LLAMA), "one/config.json")
    second = ModelSpec.from_config(published_config(LLAMA), "two/config.json")
    assert first is second
    assert len({id(layer) for layer in first.layers}) == 1
    assert weights(first) is weights(second)


def test_a_changed_spec_is_another_one() -> None:
    described = published_spec(LLAMA)
    other = replace(described, dtype="float16")
    assert other != described
    assert other.stored_dtype == "F16"
    assert replace(other, dtype="bfloat16") == described
    quantised = replace(described, quantization=SourceQuantization("awq", "int4-awq"))
    assert len({described, other, quantised}) == 3


def test_reading_a_config_takes_less_than_a_millisecond() -> None:
    config = published_config(LLAMA)
    ModelSpec.from_config(config, "config.json")
    times = []
    for _ in range(20):
        begin = time.perf_counter()
        ModelSpec.from_config(config, "config.json")
        times.append(time.perf_counter() - begin)
    assert min(times) < 0.001


def test_the_first_stages_take_the_remaining_layers() -> None:
    assert [list(stage_layers(7, 3, stage)) for stage in range(3)] == [[0, 1, 2], [3, 4], [5, 6]]
    assert [len(stage_layers(30, 4, stage)) for stage in range(4)] == [8, 8, 7, 7]
    assert [list(stage_layers(2, 2, stage)) for stage in range(2)] == [[0], [1]]
