import pytest

from builder.model.spec import ModelSpec
from builder.plan.memory import host_kv_blocks, kv_blocks
from builder.plan.memory.kv import block_tokens, stage_sequence_bytes, stage_token_bytes, whole_blocks
from tests.unit.plan.memory_specs import (
    DEEPSEEK_V3,
    GEMMA3_1B,
    GPT2_MEDIUM,
    LLAMA2_7B,
    LLAMA2_13B,
    LLAMA3_8B,
    LLAMA3_8B_1048K,
    TINYLLAMA,
    llama,
)

MIB = 1 << 20
GIB = 1 << 30


def token_bytes(spec: ModelSpec, value_bytes: float = 2, tp: int = 1) -> int:
    (stage,) = stage_token_bytes(spec, value_bytes, tp, 1)
    return stage


def sequence_bytes(spec: ModelSpec, tokens: int, tp: int = 1, pp: int = 1) -> int:
    return max(stage_sequence_bytes(spec, tokens, 2, 2, tp, pp))


@pytest.mark.parametrize(
    ("spec", "value_bytes", "pool_bytes", "tokens"),
    [
        (LLAMA3_8B, 2, 7_952_400_384, 60_672),
        (LLAMA3_8B, 2, 4_143_972_352, 31_616),
        (LLAMA2_13B, 2, 3200 * MIB, 4096),
        (LLAMA2_7B, 2, 69_524_783_104, 132_608),
        (GPT2_MEDIUM, 2, 21_705_523_200, 220_800),
        (LLAMA2_7B, 2, 872_415_232, 1664),
    ],
)
def test_pools_of_runtime_logs_come_out_to_the_byte(
    spec: ModelSpec, value_bytes: float, pool_bytes: int, tokens: int
) -> None:
    assert tokens * token_bytes(spec, value_bytes) == pool_bytes


@pytest.mark.parametrize(
    ("spec", "value_bytes", "block", "pool_gib", "tokens"),
    [
        (LLAMA2_7B, 1, 64, 63.44, 259_840),
        (LLAMA3_8B, 1, 32, 16.05, 263_008),
        (LLAMA3_8B, 2, 64, 26.91, 220_480),
        (llama(151936, 1024, 28, 16, 8, 3072, head_dim=128), 2, 64, 68.69, 643_136),
    ],
)
def test_pools_of_logs_in_gibibytes_come_out_at_their_resolution(
    spec: ModelSpec, value_bytes: float, block: int, pool_gib: float, tokens: int
) -> None:
    assert tokens % block == 0
    assert round(tokens * token_bytes(spec, value_bytes) / GIB, 2) == pool_gib


@pytest.mark.parametrize(
    ("free_gib", "fraction", "block", "per_token", "logged"),
    [(70.48, 0.9, 64, 262_144, 4060), (17.83, 0.9, 32, 65_536, 8219), (74.69, 0.9, 64, 65_536, 17_210)],
)
def test_blocks_of_the_gpu_are_rounded_up_as_tensorrt_llm_logs_them(
    free_gib: float, fraction: float, block: int, per_token: int, logged: int
) -> None:
    """Free memory is rounded to 0.01 GiB in the logs, which is up to three blocks here."""
    found = kv_blocks(round(free_gib * GIB), fraction, block, per_token)
    assert abs(found - logged) <= 3
    assert found == whole_blocks(int(free_gib * fraction * GIB), block, per_token) + 1


def test_blocks_in_host_memory_are_rounded_down() -> None:
    assert host_kv_blocks(45_000_000_000, 64, 65_536) == 10_728


def test_a_sequence_holds_whole_blocks() -> None:
    assert block_tokens(8000, 64) == 125 * 64
    assert block_tokens(8001, 64) == 126 * 64


def test_a_negative_pool_has_no_blocks() -> None:
    assert whole_blocks(-1, 64, 65_536) == 0


@pytest.mark.parametrize(("tp", "expected"), [(1, 22_528), (4, 5_632), (8, 5_632)])
def test_key_value_heads_are_divided_until_each_rank_has_one(tp: int, expected: int) -> None:
    assert token_bytes(TINYLLAMA, tp=tp) == expected


@pytest.mark.parametrize(("value_bytes", "expected"), [(2, 70_272), (1, 35_136)])
def test_a_latent_cache_is_whole_on_every_rank(value_bytes: float, expected: int) -> None:
    assert token_bytes(DEEPSEEK_V3, value_bytes, tp=8) == expected


def test_a_sequence_of_a_million_tokens_takes_64_gib_on_each_of_two_gpus() -> None:
    assert sequence_bytes(LLAMA3_8B_1048K, 1_048_576) == 137_438_953_472
    assert sequence_bytes(LLAMA3_8B_1048K, 1_048_576, tp=2) == 68_719_476_736


@pytest.mark.parametrize(("tokens", "expected"), [(511, 511 * 26_624), (32_768, 145_752_064)])
def test_windows_are_clamped_and_keep_no_more_than_themselves(tokens: int, expected: int) -> None:
    assert token_bytes(GEMMA3_1B) == 26_624
    assert sequence_bytes(GEMMA3_1B, tokens) == expected


def test_a_pipeline_stage_has_the_cache_of_its_layers() -> None:
    assert stage_token_bytes(LLAMA3_8B, 2, 1, 3) == (11 * 4096, 11 * 4096, 10 * 4096)
    assert sequence_bytes(LLAMA3_8B, 100, pp=3) == 100 * 11 * 4096


def test_scales_of_four_bit_values_count() -> None:
    """NVFP4: half a byte, and an FP8 scale for each 16 values."""
    assert token_bytes(LLAMA3_8B, 0.5625) == 65_536 * 9 // 16
