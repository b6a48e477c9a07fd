from dataclasses import replace

from builder import catalog
from builder.plan.memory import Demand, Split, memory, proposals
from builder.plan.memory.proposals import (
    MOST_NUM_TOKENS,
    fitting_precisions,
    holds_a_sequence,
    largest_batch,
    largest_num_tokens,
    smallest_tensor,
)
from tests.unit.plan import models
from tests.unit.plan.memory_specs import LLAMA2_70B, LLAMA3_8B, MIXTRAL_8X7B, storage
from tests.unit.plan.models import AWQ, LLAMA_8B, quantized
from tests.unit.plan.plans import MakeUnits, recipe

MIB = 1 << 20
GIB = 1 << 30
A100 = 81_920 * MIB

LLAMA = Demand(LLAMA3_8B, storage("bf16"), 2, 64, 8192, 8192, gpu_bytes=81_559 * MIB)
PAIR = Demand(LLAMA2_70B, storage("fp16", dtype="float16"), 2, 50, 8192, 8192, Split(2), gpu_bytes=A100)


def test_a_70b_in_16_bit_takes_two_gpus_of_80_gb() -> None:
    assert smallest_tensor(PAIR) == 2
    assert smallest_tensor(replace(PAIR, gpu_bytes=46_068 * MIB)) == 4


def test_only_sizes_that_the_model_can_be_split_into_are_proposed() -> None:
    """Llama-2-70B has 64 heads: on 12 GB cards 8 are too few, 9 to 15 don't divide them."""
    found = smallest_tensor(replace(PAIR, gpu_bytes=15 * GIB, max_batch_size=1, max_num_tokens=1024))
    assert found == 16


def test_a_model_that_fits_nowhere_has_no_number_of_gpus() -> None:
    assert smallest_tensor(replace(PAIR, gpu_bytes=1 * GIB)) is None


def test_spread_experts_stay_whole() -> None:
    demand = Demand(MIXTRAL_8X7B, storage("bf16"), 2, 8, 4096, 4096, Split(8, moe_expert=8), gpu_bytes=46_068 * MIB)
    assert smallest_tensor(demand) == 4


def test_the_largest_batch_holds_that_many_full_sequences_and_one_more_does_not() -> None:
    found = largest_batch(PAIR)
    assert found is not None
    assert 5 <= found <= 8
    fitting, beyond = (memory(replace(PAIR, max_batch_size=size)).sequences for size in (found, found + 1))
    assert fitting is not None
    assert fitting.low >= found
    assert beyond is not None
    assert beyond.low < found + 1


def test_the_largest_pass_leaves_a_full_sequence_and_a_larger_one_does_not() -> None:
    demand = replace(LLAMA, gpu_bytes=21 * GIB, max_batch_size=8)
    found = largest_num_tokens(demand)
    assert found is not None
    assert found < MOST_NUM_TOKENS
    assert holds_a_sequence(replace(demand, max_num_tokens=found))
    assert not holds_a_sequence(replace(demand, max_num_tokens=found + 256))


def test_passes_end_where_tensorrt_llm_warns_and_where_the_batch_ends() -> None:
    assert largest_num_tokens(LLAMA) == MOST_NUM_TOKENS
    assert largest_num_tokens(replace(LLAMA, max_batch_size=1, max_seq_len=1000)) == 1000


def test_no_limit_helps_where_the_weights_do_not_fit() -> None:
    small = replace(LLAMA, gpu_bytes=12 * GIB)
    assert (largest_batch(small), largest_num_tokens(small)) == (None, None)


def test_an_8b_on_12_gb_fits_in_four_bits() -> None:
    small = replace(LLAMA, gpu_bytes=12 * GIB, max_batch_size=1, max_seq_len=2048, max_num_tokens=2048)
    candidates = [catalog.precisions()[name] for name in ("bf16", "fp8", "int8-wo", "int4-wo", "int4-awq")]
    assert fitting_precisions(small, candidates) == ["int4-wo", "int4-awq"]


def test_wider_precisions_come_first() -> None:
    candidates = [catalog.precisions()[name] for name in ("int4-awq", "fp8", "bf16")]
    assert fitting_precisions(LLAMA, candidates) == ["bf16", "fp8", "int4-awq"]


def test_a_unit_gets_proposals_of_what_its_toolchain_and_gpu_can_do(make_units: MakeUnits) -> None:
    (unit,) = make_units(recipe(sku="a100-sxm-80gb"))
    found = proposals(unit)
    assert found.tensor == 1
    assert "bf16" in found.precisions
    assert "fp8" not in found.precisions
    assert found.max_num_tokens == 4096
    assert found.max_batch_size is not None
    assert found.max_batch_size > 64


def test_a_quantised_source_cannot_become_another_precision(make_units: MakeUnits) -> None:
    (unit,) = make_units(recipe(weights="as-published"), quantized(LLAMA_8B, AWQ))
    assert proposals(unit).precisions == ()


def test_precisions_that_the_model_is_denied_are_not_proposed(make_units: MakeUnits) -> None:
    """TensorRT-LLM's table of models and precisions has SmoothQuant for Llama in the engine flow, not for Mixtral."""
    (llama,) = make_units(recipe(sku="h200-sxm-141gb"), LLAMA_8B)
    (mixtral,) = make_units(recipe(sku="h200-sxm-141gb"), models.MIXTRAL_8X7B)
    assert "int8-sq" in proposals(llama).precisions
    assert "int8-sq" not in proposals(mixtral).precisions
    assert "fp8" in proposals(mixtral).precisions


def test_a_machine_of_unknown_memory_gets_none(make_units: MakeUnits) -> None:
    found = proposals(make_units()[0])
    assert (found.tensor, found.max_batch_size, found.max_num_tokens, found.precisions) == (None, None, None, ())
