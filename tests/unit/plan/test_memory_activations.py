import pytest

from builder.model.spec import ModelSpec
from builder.plan.memory import Split
from builder.plan.memory.activations import activations, all_reduce_bytes, logits_bytes, overhead, token_bytes
from tests.unit.plan.memory_specs import (
    DEEPSEEK_V3,
    LLAMA2_7B,
    LLAMA2_13B,
    LLAMA3_8B,
    LLAMA3_70B,
    QWEN15B,
)

MIB = 1 << 20
GIB = 1 << 30
EIGHT = Split(8, moe_tensor=8)


@pytest.mark.parametrize(
    ("spec", "split", "max_num_tokens", "max_batch_size", "logged_mib"),
    [
        (QWEN15B, Split(), 8192, 2048, 921.51),
        (DEEPSEEK_V3, EIGHT, 8192, 2048, 2265.58),
        (DEEPSEEK_V3, EIGHT, 8192, 1, 2265.58),
        (LLAMA2_7B, Split(), 8192, 4096, 928.77),
        (LLAMA2_7B, Split(), 8192, 256, 1112.00),
        (LLAMA2_7B, Split(), 8192, 256, 1134.01),
    ],
)
def test_context_memory_of_logs_lies_inside_the_range(
    spec: ModelSpec, split: Split, max_num_tokens: int, max_batch_size: int, logged_mib: float
) -> None:
    found = activations(spec, split, 2, max_num_tokens, max_batch_size)
    assert found.low <= (logged_mib + 0.01) * MIB
    assert logged_mib * MIB <= found.high


def test_the_low_end_is_a_small_model_to_a_hundredth_of_a_mebibyte() -> None:
    """DeepSeek-R1-Distill-Qwen-1.5B with the defaults of 0.17: 921.51 MiB."""
    assert abs(activations(QWEN15B, Split(), 2, 8192, 2048).low / MIB - 921.51) < 0.02


def test_all_that_a_server_took_beside_weights_and_cache_lies_inside_the_range() -> None:
    """Llama-2-7B FP16, max_batch_size 64, max_input_len 2,048 on an H100: 25,169 MiB, of them 12,853 and 1,280."""
    rest = (25_169 - 12_853 - 1_280) * MIB
    found = activations(LLAMA2_7B, Split(), 2, 64 * 2048, 64) + overhead(1, 0)
    assert found.low <= rest <= found.high


@pytest.mark.parametrize("spec", [LLAMA2_7B, LLAMA3_8B])
def test_the_rule_of_100_to_145_kilobytes_per_token_lies_inside_for_seven_to_eight_billion(spec: ModelSpec) -> None:
    found = token_bytes(spec, Split(), 2)
    assert found.low < 100_000 < 145_000 < found.high


def test_tensor_parallelism_shrinks_activations_and_pipeline_stages_do_not() -> None:
    one, two, stages = (token_bytes(LLAMA3_70B, split, 2) for split in (Split(), Split(2), Split(1, 2)))
    assert two.low < one.low
    assert two.high < one.high
    assert stages == one


def test_activations_grow_with_the_tokens_of_a_pass_and_with_the_batch() -> None:
    small, more, wider = (
        activations(LLAMA3_8B, Split(), 2, tokens, batch) for tokens, batch in ((1024, 8), (2048, 8), (2048, 16))
    )
    assert small.low < more.low < wider.low
    assert small.high < more.high < wider.high


def test_scores_are_a_matrix_without_context_fmha() -> None:
    fused, unfused = (activations(LLAMA3_8B, Split(), 2, 4096, 1, length) for length in (0, 4096))
    assert unfused.low == fused.low
    assert unfused.high - fused.high == 32 * 4096 * 4096 * 2


def test_logits_are_float32_over_the_padded_vocabulary() -> None:
    assert logits_bytes(LLAMA3_70B, 8, 8192) == 4_202_692_608
    assert logits_bytes(LLAMA3_70B, 7, 1) == 128_261 * 4
    assert logits_bytes(LLAMA3_70B, 8, 8192, 2) == 4_202_692_608 // 2


@pytest.mark.parametrize(("tp", "megabytes"), [(1, 0), (2, 160), (4, 160), (8, 320)])
def test_all_reduce_has_a_workspace_on_every_rank(tp: int, megabytes: int) -> None:
    assert all_reduce_bytes(tp) == megabytes * 1_000_000


def test_what_was_left_over_of_a_gpu_is_overhead() -> None:
    """NVIDIA/TensorRT-LLM issue 548: 28,791 MiB are weights, 208 of activations, 3,200 of cache, and 558 more."""
    assert 558 * MIB in overhead(1, 0)
    assert 28_791 - 24_825 - 208 - 3_200 == 558
    assert LLAMA2_13B.vocab_size == 32_000


def test_nccl_and_a_decoder_of_many_sequences_raise_the_high_end_only() -> None:
    """The decoder of 256 sequences takes 180.30 MB, 5.5 times their logits."""
    alone, joined, crowded = overhead(1, 0), overhead(8, 0), overhead(1, 4_202_692_608)
    assert alone.low == joined.low == crowded.low
    assert joined.high - alone.high == 392_000_000
    assert crowded.high > 5.5 * 4_202_692_608
