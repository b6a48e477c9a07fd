import pytest

from builder.errors import PlanRefused
from builder.lock import TensorSummary
from builder.plan import Unit, estimate, legal_estimate
from builder.plan.memory import demand_of, kv_sequence_bytes
from tests.unit.plan.plans import MakeUnits, recipe

LLAMA_70B = {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "num_hidden_layers": 80,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "max_position_embeddings": 131072,
}


def test_the_estimate_reproduces_published_sizes(make_units: MakeUnits) -> None:
    """Llama-3.1-70B: 141,107,412,992 bytes in the Hub's index, 327,680 bytes of KV cache per token in 16 bit."""
    found = estimate(make_units(recipe(), config=LLAMA_70B)[0])
    assert found.weights_bytes - found.rope_bytes == 141_107_412_992
    assert found.kv_bytes_per_token == 327_680
    assert found.gpu_bytes == 81_559 << 20


def test_a_split_that_is_not_legal_has_no_estimate(make_units: MakeUnits) -> None:
    (unit,) = make_units(recipe(extra="parallelism: {tensor: 2}"))
    assert legal_estimate(unit) is None
    with pytest.raises(PlanRefused) as error:
        estimate(unit)
    assert error.value.code == "TP_HEADS"


def test_more_stages_than_layers_have_no_estimate(make_units: MakeUnits) -> None:
    assert legal_estimate(make_units(recipe(extra="parallelism: {pipeline: 31}"))[0]) is None
    assert legal_estimate(make_units(recipe(extra="parallelism: {pipeline: 30}"))[0]) is not None


def test_an_estimate_is_made_once_for_a_unit(make_units: MakeUnits) -> None:
    (unit,) = make_units(recipe())
    assert legal_estimate(unit) is legal_estimate(unit)


def test_a_cpu_has_no_pool(make_units: MakeUnits) -> None:
    assert estimate(make_units()[0]).kv_pool is None


def test_an_fp8_cache_takes_half_of_a_16_bit_one(make_units: MakeUnits) -> None:
    plain, small = (make_units(recipe(kv_cache=name))[0] for name in ("auto", "fp8"))
    assert estimate(small).kv_bytes_per_token * 2 == estimate(plain).kv_bytes_per_token == 23_040
    assert kv_sequence_bytes(plain, 1000) == 23_040_000


def test_limits_options_and_serving_make_the_demand(make_units: MakeUnits) -> None:
    text = recipe(
        extra="""\
        engine: {tokens_per_block: 64, context_fmha: false, gather_context_logits: true}
        serving: {kv_cache_free_gpu_mem_fraction: 0.5, max_tokens_in_paged_kv_cache: 4096}
        """
    )
    demand = demand_of(make_units(text)[0])
    assert (demand.tokens_per_block, demand.fraction, demand.max_kv_tokens) == (64, 0.5, 4096)
    assert (demand.unfused_length, demand.context_logits) == (1023, True)


def test_a_pass_has_no_more_tokens_than_the_batch(make_units: MakeUnits) -> None:
    """max_batch_size 4 and max_seq_len 1,024 make 4,096 at most; without packed inputs, always."""
    few = recipe().replace("max_num_tokens: 4096", "max_num_tokens: 512")
    assert demand_of(make_units(recipe().replace("4096", "9000"))[0]).max_num_tokens == 4096
    assert demand_of(make_units(few)[0]).max_num_tokens == 512
    assert demand_of(make_units(few + "engine: {remove_input_padding: false}\n")[0]).max_num_tokens == 4096


def test_engines_keep_embeddings_whole_and_heads_apart_unless_modelopt_or_pytorch_split_them(
    make_units: MakeUnits,
) -> None:
    converted = demand_of(make_units(recipe())[0]).storage
    calibrated = demand_of(make_units(recipe(weights="fp8"))[0]).storage
    pytorch = demand_of(make_units(recipe(flow="pytorch"))[0]).storage
    assert (converted.parallel_embedding, converted.tied_head_stored) == (False, True)
    assert (calibrated.parallel_embedding, calibrated.tied_head_stored) == (True, True)
    assert (pytorch.parallel_embedding, pytorch.tied_head_stored) == (True, False)


def test_a_float32_source_takes_half_in_an_engine(make_units: MakeUnits) -> None:
    (unit,) = make_units(recipe(weights="fp16"), config={"torch_dtype": "float32"})
    (same,) = make_units(recipe(weights="fp16"), config={"torch_dtype": "float16"})
    assert estimate(unit) == estimate(same)


@pytest.mark.parametrize(("bits", "counted"), [(None, 4), (6, 6), (2, 4), (16, 8)])
def test_mixed_linears_count_with_the_mean_that_the_headers_leave(
    make_units: MakeUnits, bits: int | None, counted: int
) -> None:
    """SmolLM2 has 106,168,320 weights in linears; what lies beside them in 16 bit takes 56,693,376 bytes."""
    size = 56_693_376 + 106_168_320 * bits // 8 if bits else 0
    tensors = TensorSummary("sha256:0", 272, size, {}, 49_152, False) if bits else None
    (unit,) = make_units(
        recipe(weights="as-published"),
        hf_quant_config={"quantization": {"quant_algo": "MIXED_PRECISION", "exclude_modules": ["lm_head"]}},
        tensors=tensors,
    )
    head = 49_152 * 576 * 2
    assert unit.precision.name == "mixed"
    assert tensor_bytes(unit) == 56_693_376 + head + 106_168_320 * counted // 8


def tensor_bytes(unit: Unit) -> int:
    found = estimate(unit)
    return found.weights_bytes - found.rope_bytes
