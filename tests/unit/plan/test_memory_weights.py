import pytest

from builder.model import layout
from builder.model.layout import rank_tensors
from builder.model.spec import ModelSpec
from builder.model.weights import Weight
from builder.plan.memory import Split
from builder.plan.memory.weights import rope_bytes, tensor_bytes, weight_bytes
from tests.unit.plan.memory_specs import (
    GPT2_MEDIUM,
    LLAMA2_7B,
    LLAMA2_13B,
    LLAMA2_70B,
    LLAMA3_8B,
    LLAMA3_8B_1048K,
    LLAMA32_1B,
    MIXTRAL_8X7B,
    TINYLLAMA,
    llama,
    storage,
)

MIB = 1 << 20
GIB = 1 << 30


def total(spec: ModelSpec, precision: str, tp: int = 1, **more: object) -> int:
    """Bytes of all tensor ranks of one pipeline stage."""
    (stage,) = weight_bytes(spec, storage(precision, **more), Split(tp, moe_tensor=tp))
    return stage * tp


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (8, 1), (1, 2), (4, 3), (2, 5)])
@pytest.mark.parametrize("spec", [LLAMA3_8B, LLAMA32_1B, TINYLLAMA, llama(49153, 2048, 7, 16, 16, 8192)])
def test_plain_llamas_are_the_tensors_of_their_checkpoint(spec: ModelSpec, tp: int, pp: int) -> None:
    stages = weight_bytes(spec, storage("bf16"), Split(tp, pp))
    split = layout.Split(tp, pp)
    for stage, size in enumerate(stages):
        ranks = [rank_tensors(spec, split, stage * tp + rank) for rank in range(tp)]
        assert {sum(tensor.nbytes for tensor in tensors) for tensors in ranks} == {size}


def test_a_llama_of_a_million_positions_on_four_gpus_is_what_the_builder_logged() -> None:
    """Total Weights Memory: 5,340,405,760 bytes per rank."""
    (weights,) = weight_bytes(LLAMA3_8B_1048K, storage("bf16"), Split(4))
    assert (weights, rope_bytes(LLAMA3_8B_1048K)) == (4_803_534_848, 536_870_912)


@pytest.mark.parametrize(
    ("spec", "precision", "rope", "logged_mib"),
    [
        (LLAMA2_7B, "fp8", True, 6678),
        (LLAMA3_8B, "bf16", False, 15316),
        (LLAMA2_13B, "fp16", False, 24825),
        (LLAMA2_7B, "int8-sq", False, 6683),
        (GPT2_MEDIUM, "fp16", False, 775),
    ],
)
def test_weights_are_those_of_runtime_logs_to_the_mebibyte(
    spec: ModelSpec, precision: str, rope: bool, logged_mib: int
) -> None:
    """Releases before 0.10 have no rope table in the engine. Logs round to whole MiB, either way."""
    size = total(spec, precision) + (rope_bytes(spec) if rope else 0)
    assert abs(size / MIB - logged_mib) <= 1


@pytest.mark.parametrize(
    ("spec", "precision", "tp", "parallel_embedding", "logged_gib"),
    [
        (LLAMA2_7B, "int4-awq", 1, False, 3.60),
        (LLAMA2_7B, "int8-wo", 1, False, 6.52),
        (LLAMA2_70B, "fp8", 2, True, 64.73),
        (LLAMA3_8B, "int4-awq", 1, False, 5.31),
    ],
)
def test_quantised_weights_are_those_of_published_engines(
    spec: ModelSpec, precision: str, tp: int, parallel_embedding: bool, logged_gib: float
) -> None:
    """TensorRT-LLM examples/sample_weight_stripping/README.md: 3.7, 6.54 and 64.78 GB with the rest of the engine."""
    size = total(spec, precision, tp, parallel_embedding=parallel_embedding)
    assert round(size / GIB, 2) == logged_gib


def test_a_whole_embedding_on_every_rank_is_what_it_costs_more() -> None:
    """Llama-2-70B on two GPUs: 64.48 GiB per rank, not 64.24."""
    (whole,) = weight_bytes(LLAMA2_70B, storage("fp16"), Split(2))
    (split,) = weight_bytes(LLAMA2_70B, storage("fp16", parallel_embedding=True), Split(2))
    assert round(whole / GIB, 2) == 64.48
    assert whole - split == 32000 * 8192


def test_four_bit_linears_leave_embedding_head_and_norms_in_sixteen() -> None:
    """5,591,539,712 bytes for Llama-3-8B, and two bytes per output channel."""
    channels = 32 * (4096 + 2 * 1024 + 4096 + 2 * 14336 + 4096)
    assert total(LLAMA3_8B, "int4-wo") == 5_591_539_712 + 2 * channels


def test_a_quantised_head_is_smaller() -> None:
    plain, quantised = total(LLAMA3_8B, "fp8"), total(LLAMA3_8B, "fp8", quantized_head=True)
    assert plain - quantised == 128256 * 4096 - 8


def test_float32_doubles_everything_that_is_not_quantised() -> None:
    assert total(LLAMA2_7B, "fp32", dtype="float32") == 26_953_662_464
    assert total(LLAMA2_7B, "fp16", dtype="float16") == 13_476_831_232


def test_a_tied_head_is_stored_again_unless_it_is_shared() -> None:
    shared = total(LLAMA32_1B, "bf16", tied_head_stored=False)
    assert shared == 2_471_628_800
    assert total(LLAMA32_1B, "bf16") - shared == 128256 * 2048 * 2


def test_the_vocabulary_is_padded_to_a_multiple_of_the_ranks() -> None:
    odd, even = llama(32001, 2048, 2, 16, 16, 4096), llama(32002, 2048, 2, 16, 16, 4096)
    embedding = 2048 * 2
    assert total(odd, "bf16", 2, parallel_embedding=True) == total(even, "bf16", 2, parallel_embedding=True)
    assert total(even, "bf16", 2) - total(odd, "bf16", 2) == 2 * embedding


def test_key_value_heads_are_repeated_where_there_are_fewer_than_ranks() -> None:
    """TinyLlama has 4: on 8 ranks each holds one, 64 rows of keys and as many of values."""
    (four,) = weight_bytes(TINYLLAMA, storage("bf16"), Split(4))
    (eight,) = weight_bytes(TINYLLAMA, storage("bf16"), Split(8))
    others = 22 * (2 * 2048 * 2048 + 3 * 2048 * 5632) + 32000 * 2048
    assert four - eight == others // 8 * 2


@pytest.mark.parametrize(("precision", "rows"), [("int8-wo", 1408), ("int8-gptq", 1408), ("fp8", 1376)])
def test_weight_only_formats_are_padded_to_64_channels_a_rank(precision: str, rows: int) -> None:
    """11,008 / 8 = 1,376 isn't a multiple of 64, nor of GPTQ's groups of 128; 1,408 is both."""
    weight = Weight("up_proj.weight", (11008, 4096), "column", quantized=True)
    held = storage(precision)
    size = tensor_bytes(weight, (), held, Split(8))
    assert size == held.precision.linear_bytes(rows, 4096)


def test_row_parallel_weights_are_padded_along_their_inputs() -> None:
    weight = Weight("down_proj.weight", (4096, 11008), "row", quantized=True)
    assert tensor_bytes(weight, (), storage("int8-wo"), Split(8)) == 4096 * 1408 + 2 * 4096


def test_a_group_size_of_minus_one_is_one_group_per_row() -> None:
    weight = Weight("up_proj.weight", (256, 1024), "column", quantized=True)
    whole, grouped = (tensor_bytes(weight, (), storage("int4-gptq", group_size=size), Split()) for size in (-1, 128))
    assert grouped - whole == 4 * 256 * 7


def test_experts_are_spread_or_cut() -> None:
    """Mixtral's experts are 32 · 8 · 3 · 4096 · 14336 weights; its routers are float32 and on every rank."""
    experts = 32 * 8 * 3 * 4096 * 14336 * 2
    assert total(MIXTRAL_8X7B, "bf16") == 93_405_585_408 + 32 * 8 * 4096 * 2
    (cut,) = weight_bytes(MIXTRAL_8X7B, storage("bf16"), Split(4, moe_tensor=4))
    (spread,) = weight_bytes(MIXTRAL_8X7B, storage("bf16"), Split(4, moe_expert=4))
    (both,) = weight_bytes(MIXTRAL_8X7B, storage("bf16"), Split(4, moe_tensor=2, moe_expert=2))
    assert cut == spread == both
    (whole,) = weight_bytes(MIXTRAL_8X7B, storage("bf16"), Split(4))
    assert whole - cut == experts * 3 // 4


def test_the_first_stage_has_the_embedding_and_the_last_the_head() -> None:
    first, middle, last = weight_bytes(LLAMA3_8B, storage("bf16"), Split(1, 3))
    table = 128256 * 4096 * 2
    layer = (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096) * 2
    assert (first, middle, last) == (11 * layer + table, 11 * layer, 10 * layer + table + 4096 * 2)


def test_the_rope_table_is_as_wide_as_what_is_turned() -> None:
    assert rope_bytes(LLAMA2_7B) == MIB
    assert rope_bytes(GPT2_MEDIUM) == 0
