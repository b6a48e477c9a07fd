import math
from typing import Any

import pytest

from builder.errors import PlanRefused, SourceError
from builder.model.layout import RankTensor, Slice, Split, checkpoint_bytes, rank_tensors, source_tensors
from builder.model.safetensors import DTYPE_BITS
from builder.model.spec import ModelSpec
from builder.model.weights import parameter_count
from tests.unit.model.published import published_config, published_spec


def spec(**changes: Any) -> ModelSpec:
    """SmolLM2-135M, unless changed."""
    return ModelSpec.from_config({**published_config("HuggingFaceTB--SmolLM2-135M"), **changes}, "config.json")


LLAMA_3_1_70B = spec(
    num_hidden_layers=80,
    hidden_size=8192,
    num_attention_heads=64,
    num_key_value_heads=8,
    head_dim=128,
    intermediate_size=28672,
    vocab_size=128256,
    tie_word_embeddings=False,
)


def tensors(model: ModelSpec, tp: int = 1, pp: int = 1, rank: int = 0) -> dict[str, RankTensor]:
    return {tensor.name: tensor for tensor in rank_tensors(model, Split(tp, pp), rank)}


def test_a_layer_has_tensorrt_llms_names_and_crosses_gate_and_up() -> None:
    model = spec(num_hidden_layers=1)
    names = {name: [part.source for part in tensor.slices] for name, tensor in tensors(model).items()}
    assert names == {
        "lm_head.weight": ["model.embed_tokens.weight"],
        "transformer.layers.0.attention.dense.weight": ["model.layers.0.self_attn.o_proj.weight"],
        "transformer.layers.0.attention.qkv.weight": [
            "model.layers.0.self_attn.q_proj.weight",
            "model.layers.0.self_attn.k_proj.weight",
            "model.layers.0.self_attn.v_proj.weight",
        ],
        "transformer.layers.0.input_layernorm.weight": ["model.layers.0.input_layernorm.weight"],
        "transformer.layers.0.mlp.fc.weight": ["model.layers.0.mlp.gate_proj.weight"],
        "transformer.layers.0.mlp.gate.weight": ["model.layers.0.mlp.up_proj.weight"],
        "transformer.layers.0.mlp.proj.weight": ["model.layers.0.mlp.down_proj.weight"],
        "transformer.layers.0.post_layernorm.weight": ["model.layers.0.post_attention_layernorm.weight"],
        "transformer.ln_f.weight": ["model.norm.weight"],
        "transformer.vocab_embedding.weight": ["model.embed_tokens.weight"],
    }
    assert list(names) == sorted(names)


@pytest.mark.parametrize(
    ("model", "tp", "qkv", "dense"),
    [
        pytest.param(spec(), 3, (320, 576), (576, 192), id="SmolLM2-135M"),
        pytest.param(LLAMA_3_1_70B, 4, (2560, 8192), (8192, 2048), id="Llama-3.1-70B"),
        pytest.param(LLAMA_3_1_70B, 16, (768, 8192), (8192, 512), id="Llama-3.1-70B-each-head-on-two-ranks"),
        pytest.param(
            spec(
                hidden_size=5120, num_attention_heads=64, num_key_value_heads=8, head_dim=128, intermediate_size=25600
            ),
            2,
            (5120, 5120),
            (5120, 4096),
            id="head_dim-larger-than-hidden-by-heads",
        ),
    ],
)
def test_shapes_of_one_rank(model: ModelSpec, tp: int, qkv: tuple[int, int], dense: tuple[int, int]) -> None:
    for rank in range(tp):
        table = tensors(model, tp, rank=rank)
        assert table["transformer.layers.0.attention.qkv.weight"].shape == qkv
        assert table["transformer.layers.0.attention.dense.weight"].shape == dense
        assert table["transformer.layers.0.mlp.fc.weight"].shape == (model.intermediate_size // tp, model.hidden_size)
        assert table["transformer.layers.0.mlp.proj.weight"].shape == (model.hidden_size, model.intermediate_size // tp)


def test_key_value_heads_are_repeated_on_neighbouring_ranks() -> None:
    model = spec(num_attention_heads=12, num_key_value_heads=2, head_dim=128, hidden_size=1536, attention_bias=True)
    for rank, head in enumerate([0, 0, 1, 1]):
        table = tensors(model, tp=4, rank=rank)
        for kind, tail in (("weight", (1536,)), ("bias", ())):
            fused = table[f"transformer.layers.0.attention.qkv.{kind}"]
            assert fused.shape == (640, *tail)
            assert fused.slices == (
                Slice(f"model.layers.0.self_attn.q_proj.{kind}", (1536, *tail), 0, rank * 384, rank * 384 + 384),
                Slice(f"model.layers.0.self_attn.k_proj.{kind}", (256, *tail), 0, head * 128, head * 128 + 128),
                Slice(f"model.layers.0.self_attn.v_proj.{kind}", (256, *tail), 0, head * 128, head * 128 + 128),
            )


def test_row_parallel_biases_are_whole_on_every_rank_and_column_parallel_ones_split() -> None:
    model = spec(attention_bias=True, mlp_bias=True)
    for rank in range(3):
        table = tensors(model, tp=3, rank=rank)
        assert table["transformer.layers.0.attention.dense.bias"].shape == (576,)
        assert table["transformer.layers.0.mlp.proj.bias"].shape == (576,)
        assert table["transformer.layers.0.mlp.fc.bias"].slices == (
            Slice("model.layers.0.mlp.gate_proj.bias", (1536,), 0, rank * 512, rank * 512 + 512),
        )
        assert table["transformer.layers.0.mlp.gate.bias"].shape == (512,)


@pytest.mark.parametrize(
    ("vocab", "tp", "rows", "padding"),
    [
        (32001, 2, 16001, [0, 1]),
        (151851, 2, 75926, [0, 1]),
        (151552, 6, 25259, [0, 0, 0, 0, 0, 2]),
        (5, 4, 2, [0, 0, 1, 2]),
    ],
)
def test_the_head_is_padded_to_a_multiple_of_the_ranks(vocab: int, tp: int, rows: int, padding: list[int]) -> None:
    model = spec(vocab_size=vocab, num_attention_heads=12, num_key_value_heads=12, tie_word_embeddings=False)
    heads = [tensors(model, tp, rank=rank)["lm_head.weight"] for rank in range(tp)]
    assert [head.shape for head in heads] == [(rows, 576)] * tp
    assert [head.padding_rows for head in heads] == padding
    assert heads[0].slices[0].source == "lm_head.weight"
    assert sum(head.slices[0].stop - head.slices[0].start for head in heads) == vocab
    assert tensors(model, tp)["transformer.vocab_embedding.weight"].shape == (vocab, 576)


def test_stages_number_their_layers_from_zero_and_share_out_embedding_and_head() -> None:
    model = spec(num_hidden_layers=3)
    first, last = tensors(model, tp=3, pp=2, rank=2), tensors(model, tp=3, pp=2, rank=5)
    outside = {name for name in first.keys() | last.keys() if ".layers." not in name}
    assert outside & first.keys() == {"transformer.vocab_embedding.weight"}
    assert outside & last.keys() == {"transformer.ln_f.weight", "lm_head.weight"}
    assert {name.split(".")[2] for name in first if ".layers." in name} == {"0", "1"}
    assert {name.split(".")[2] for name in last if ".layers." in name} == {"0"}
    (part,) = last["transformer.layers.0.mlp.fc.weight"].slices
    assert part == Slice("model.layers.2.mlp.gate_proj.weight", (1536, 576), 0, 1024, 1536)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("biased", [True, False])
def test_the_source_tensors_are_all_the_parameters_of_the_model(tied: bool, biased: bool) -> None:
    model = spec(tie_word_embeddings=tied, attention_bias=biased, mlp_bias=biased)
    shapes = source_shapes(model)
    assert sum(math.prod(shape) for shape in shapes.values()) == parameter_count(model)
    assert ("lm_head.weight" in shapes) is not tied


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (3, 1), (1, 4), (3, 2)])
def test_a_shape_is_the_sum_of_its_slices(tp: int, pp: int) -> None:
    for rank in range(tp * pp):
        for tensor in rank_tensors(spec(vocab_size=49151, attention_bias=True), tp, pp, rank):
            elements = tensor.padding_rows * math.prod(tensor.shape[1:])
            for part in tensor.slices:
                assert 0 <= part.start <= part.stop <= part.shape[part.dim]
                elements += math.prod(part.shape) // part.shape[part.dim] * (part.stop - part.start)
            assert elements == math.prod(tensor.shape)
            assert tensor.nbytes * 8 == elements * DTYPE_BITS["BF16"]


def test_a_checkpoint_of_a_tied_model_has_the_embedding_twice() -> None:
    assert checkpoint_bytes(spec(), 1, 1) == 2 * (134_515_008 + 49152 * 576)
    # three ranks: embedding and norms on each, everything else once
    norms = (30 * 2 + 1) * 576
    assert checkpoint_bytes(spec(), 3, 1) == 2 * (134_515_008 + 49152 * 576 + 2 * (49152 * 576 + norms))


def test_a_split_that_is_not_even_is_refused() -> None:
    with pytest.raises(PlanRefused):
        rank_tensors(spec(), 2, 1, 0)


@pytest.mark.parametrize("model", ["Qwen--Qwen3-0.6B", "mistralai--Mixtral-8x7B-v0.1"])
def test_only_plain_llamas_have_this_table(model: str) -> None:
    with pytest.raises(SourceError) as caught:
        rank_tensors(published_spec(model), 1, 1, 0)
    assert caught.value.code == "UNSUPPORTED_ARCHITECTURE"
    assert published_spec(model).architecture in caught.value.message
