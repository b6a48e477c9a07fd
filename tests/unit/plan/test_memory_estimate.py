import timeit
from dataclasses import replace

import pytest

from builder.plan.memory import Demand, Range, Split, memory
from tests.unit.plan.memory_specs import (
    DEEPSEEK_V3,
    GEMMA3_1B,
    LLAMA2_7B,
    LLAMA2_70B,
    LLAMA3_8B,
    LLAMA3_8B_1048K,
    LLAMA3_70B,
    storage,
)

MIB = 1 << 20
GIB = 1 << 30

LLAMA = Demand(
    spec=LLAMA3_8B,
    storage=storage("bf16"),
    kv_bytes=2,
    max_batch_size=64,
    max_seq_len=8192,
    max_num_tokens=8192,
    gpu_bytes=81_559 * MIB,
)


def sequences(demand: Demand) -> Range:
    found = memory(demand).sequences
    assert found is not None
    return found


def pool(demand: Demand) -> Range:
    found = memory(demand).kv_pool
    assert found is not None
    return found


def test_an_estimate_names_its_parts() -> None:
    found = memory(LLAMA)
    assert found.weights_bytes - found.rope_bytes == 16_060_522_496
    assert found.rope_bytes == 8192 * 128 * 4
    assert found.kv_bytes_per_token == 131_072
    assert found.sequence_bytes == 8192 * 131_072
    assert found.logits_bytes == 64 * 128_256 * 4
    assert found.all_reduce_bytes == 0
    assert found.needed_tokens == 8192


def test_the_pool_is_the_fraction_of_what_is_left() -> None:
    found = memory(LLAMA)
    fixed = found.fixed_bytes
    assert found.kv_pool == Range(int((81_559 * MIB - fixed.high) * 0.9), int((81_559 * MIB - fixed.low) * 0.9))
    assert found.kv_tokens is not None
    assert found.kv_tokens.high == found.kv_pool.high // (32 * 131_072) * 32


@pytest.mark.parametrize(
    ("demand", "total_mib", "free_gib"),
    [
        (
            replace(LLAMA, spec=LLAMA2_7B, storage=storage("fp8"), kv_bytes=1, max_seq_len=2048, max_batch_size=256),
            81_559,
            70.48,
        ),
        (
            replace(LLAMA, spec=LLAMA3_8B, storage=storage("fp8"), kv_bytes=1, max_batch_size=2048),
            32_607,
            17.83,
        ),
    ],
)
def test_free_memory_of_logs_lies_inside_the_range(demand: Demand, total_mib: int, free_gib: float) -> None:
    """A Llama-2-7B in FP8 on 80 GB (TensorRT-LLM's memory.md), and a Llama-3.1-8B with an FP8 cache on an RTX 5090."""
    found = pool(replace(demand, gpu_bytes=total_mib * MIB, fraction=0.9))
    assert found.low <= free_gib * 0.9 * GIB <= found.high


def test_a_gpu_of_unknown_memory_has_no_pool() -> None:
    found = memory(replace(LLAMA, gpu_bytes=None))
    assert (found.kv_pool, found.kv_tokens, found.sequences) == (None, None, None)
    assert found.weights_bytes == memory(LLAMA).weights_bytes


def test_weights_larger_than_the_gpu_leave_nothing() -> None:
    """Llama-3-8B in 16 bit on 12 GB: 14.96 GiB of weights."""
    small = replace(LLAMA, gpu_bytes=12 * GIB)
    assert pool(small) == Range(0, 0)
    assert sequences(small) == Range(0, 0)
    quantised = replace(small, storage=storage("int4-wo"), max_batch_size=1)
    assert sequences(quantised).high > 0


def test_a_pool_smaller_than_one_sequence_holds_none() -> None:
    """Llama-2-7B in 4 bit on 10 GB with a fraction of 0.2: 1,664 tokens of the 2,560 of one sequence."""
    demand = Demand(
        spec=LLAMA2_7B,
        storage=storage("int4-wo"),
        kv_bytes=2,
        max_batch_size=1,
        max_seq_len=2560,
        max_num_tokens=2560,
        tokens_per_block=128,
        fraction=0.2,
        gpu_bytes=10_240 * MIB,
    )
    found = memory(demand)
    assert found.needed_tokens == 2560
    assert found.sequences == Range(0, 0)
    assert found.kv_tokens is not None
    assert 1664 in found.kv_tokens
    assert sequences(replace(demand, fraction=0.9)).low > 0


def test_a_cap_in_tokens_bounds_the_pool() -> None:
    """The cap counts in whole blocks; vLLM's pool of 23,648 tokens doesn't hold a sequence of 29,000."""
    capped = replace(LLAMA, max_kv_tokens=23_648, max_seq_len=29_000)
    assert memory(capped).kv_tokens == Range(23_648, 23_648)
    assert sequences(capped) == Range(0, 0)
    assert sequences(replace(capped, max_seq_len=23_648)) == Range(1, 1)


def test_a_log_of_a_24_gb_card_lies_inside_the_range() -> None:
    """Llama-3.1-8B on an RTX 3090 of 23.58 GiB in vLLM, which takes 0.9 of the whole card: 2.89 GiB, 23,648 tokens."""
    found = memory(replace(LLAMA, gpu_bytes=int(0.9 * 23.58 * GIB), max_batch_size=1, fraction=1.0))
    assert found.kv_tokens is not None
    assert 23_648 in found.kv_tokens


def test_full_sequences_are_counted_for_a_70b_on_two_gpus() -> None:
    """64.48 GiB of weights a rank leave room for about 8 sequences of 8,192 tokens, not for 50."""
    demand = Demand(
        spec=LLAMA2_70B,
        storage=storage("fp16", dtype="float16"),
        split=Split(2),
        kv_bytes=2,
        max_batch_size=50,
        max_seq_len=8192,
        max_num_tokens=8192,
        gpu_bytes=81_920 * MIB,
    )
    found = memory(demand)
    assert found.kv_bytes_per_token == 163_840
    assert 50 * found.sequence_bytes == int(62.5 * GIB)
    assert found.sequences is not None
    assert 8 in found.sequences
    assert found.sequences.high < 50


def test_unpacked_prompts_of_that_batch_leave_no_room_at_all() -> None:
    """50 · 4,096 tokens in one pass, as the releases of the report had it."""
    demand = Demand(LLAMA2_70B, storage("fp16"), 2, 50, 8192, 50 * 4096, Split(2), gpu_bytes=81_920 * MIB)
    assert sequences(demand) == Range(0, 0)


def test_beams_multiply_what_a_sequence_takes() -> None:
    one, four = memory(LLAMA), memory(replace(LLAMA, max_beam_width=4))
    assert four.sequence_bytes == 4 * one.sequence_bytes
    assert four.needed_tokens == 4 * one.needed_tokens
    assert four.logits_bytes == 4 * one.logits_bytes


def test_windows_let_more_sequences_in() -> None:
    demand = replace(LLAMA, spec=GEMMA3_1B, max_seq_len=32_768)
    found = memory(demand)
    assert found.sequence_bytes == 145_752_064
    assert found.kv_pool is not None
    assert found.sequences is not None
    assert found.sequences.high == found.kv_pool.high // 145_752_064


def test_a_sequence_is_rounded_up_to_whole_blocks() -> None:
    assert memory(replace(LLAMA, max_seq_len=8000, tokens_per_block=64)).needed_tokens == 125 * 64
    assert memory(replace(LLAMA, max_seq_len=8001, tokens_per_block=64)).sequence_bytes == 126 * 64 * 131_072


def test_gathered_context_logits_have_a_row_for_every_token() -> None:
    plain, gathered = memory(LLAMA), memory(replace(LLAMA, context_logits=True))
    assert gathered.logits_bytes - plain.logits_bytes == 8192 * 128_256 * 4


def test_only_the_last_stage_has_logits() -> None:
    """Of 32 layers on three stages the first has the embedding and a layer more than the last."""
    first = memory(replace(LLAMA, split=Split(1, 3), max_batch_size=1))
    assert first.logits_bytes == 0
    last = memory(replace(LLAMA, split=Split(1, 2), max_batch_size=2048))
    assert last.logits_bytes == 2048 * 128_256 * 4


def test_a_context_rank_has_its_share_of_a_sequence() -> None:
    one, two = memory(LLAMA), memory(replace(LLAMA, split=Split(1, 1, 2)))
    assert two.sequence_bytes == one.sequence_bytes // 2
    assert two.weights_bytes == one.weights_bytes


def test_large_batches_of_a_70b_pay_for_logits() -> None:
    """max_batch_size 8,192, max_num_tokens 16,384, tp 8: 4,202,692,608 bytes of float32 logits."""
    demand = Demand(LLAMA3_70B, storage("bf16"), 2, 8192, 8192, 16_384, Split(8, moe_tensor=8), gpu_bytes=81_559 * MIB)
    assert memory(demand).logits_bytes == 4_202_692_608


def test_an_inherited_length_of_a_million_tokens_does_not_fit_two_gpus() -> None:
    demand = replace(LLAMA, spec=LLAMA3_8B_1048K, split=Split(2), max_seq_len=1_048_576)
    assert memory(demand).sequence_bytes == 68_719_476_736
    assert sequences(demand).high == 0


def test_an_optimistic_estimate_covers_a_quantised_pair_of_gpus() -> None:
    """Llama-3-8B on two GPUs: 79.14 GiB each, 74.69 free when the pool was sized, so 4.45 are in use: less than the
    8.04 GiB of a rank in 16 bit, and what one in 4 bit takes."""
    demand = replace(LLAMA, split=Split(2), gpu_bytes=int(79.14 * GIB), fraction=0.9, max_seq_len=8000)
    used = int(74.69 * 0.9 * GIB)
    four_bit = pool(replace(demand, storage=storage("int4-awq", parallel_embedding=True)))
    assert four_bit.low <= used <= four_bit.high
    assert pool(demand).high < used


def test_repeated_estimates_take_no_time() -> None:
    demand = replace(LLAMA, spec=DEEPSEEK_V3, storage=storage("fp8-block"), split=Split(8, moe_expert=8))
    memory(demand)
    assert min(timeit.repeat(lambda: memory(demand), number=100, repeat=5)) / 100 < 200e-6
