"""The table of tensors: names, shapes and slices of ranks, in the terms of TensorRT-LLM's documentation."""

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
    needed, optional = source_tensors(model)
    assert sum(math.prod(part.shape) for part in needed.values()) == parameter_count(model)
    assert ("lm_head.weight" in needed) is not tied
    assert not optional


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (3, 1), (1, 4), (3, 2)])
def test_a_shape_is_the_sum_of_its_slices(tp: int, pp: int) -> None:
    for rank in range(tp * pp):
        for tensor in rank_tensors(spec(vocab_size=49151, attention_bias=True), Split(tp, pp), rank):
            elements = tensor.padding_rows * math.prod(tensor.shape[1:])
            for part in tensor.slices:
                assert 0 <= part.start <= part.stop <= part.shape[part.dim]
                elements += math.prod(part.shape) // part.shape[part.dim] * (part.stop - part.start)
            assert elements == math.prod(tensor.shape)
            assert tensor.nbytes * 8 == elements * DTYPE_BITS["BF16"]


def test_a_checkpoint_of_a_tied_model_has_the_embedding_twice() -> None:
    assert checkpoint_bytes(spec(), Split()) == 2 * (134_515_008 + 49152 * 576)
    # three ranks: embedding and norms on each, everything else once
    norms = (30 * 2 + 1) * 576
    assert checkpoint_bytes(spec(), Split(3)) == 2 * (134_515_008 + 49152 * 576 + 2 * (49152 * 576 + norms))


# a split embedding


@pytest.mark.parametrize("vocab", [49152, 49153, 49154])
def test_rows_of_the_embedding_are_shared_out_as_those_of_the_head(vocab: int) -> None:
    model = spec(vocab_size=vocab)
    for rank in range(3):
        table = {t.name: t for t in rank_tensors(model, Split(3, use_parallel_embedding=True), rank)}
        embedding, head = table["transformer.vocab_embedding.weight"], table["lm_head.weight"]
        assert (embedding.shape, embedding.slices) == (head.shape, head.slices)
        assert embedding.padding_rows == head.padding_rows == (3 * -(-vocab // 3) - vocab if rank == 2 else 0)


def test_columns_of_the_embedding_are_shared_out_evenly() -> None:
    split = Split(3, use_parallel_embedding=True, embedding_sharding_dim=1)
    for rank in range(3):
        table = {tensor.name: tensor for tensor in rank_tensors(spec(), split, rank)}
        embedding = table["transformer.vocab_embedding.weight"]
        assert embedding.shape == (49152, 192)
        assert embedding.slices == (Slice("model.embed_tokens.weight", (49152, 576), 1, rank * 192, rank * 192 + 192),)
        assert table["lm_head.weight"].shape == (16384, 576)


def test_columns_of_the_embedding_that_can_not_be_shared_out_are_refused() -> None:
    """SmolLM2-135M with six heads of 64 over a width of 100."""
    model = spec(hidden_size=100, num_attention_heads=6, num_key_value_heads=6, head_dim=64)
    for dim, refused in ((0, False), (1, True)):
        split = Split(3, use_parallel_embedding=True, embedding_sharding_dim=dim)
        if not refused:
            assert rank_tensors(model, split, 0)
            continue
        with pytest.raises(PlanRefused) as caught:
            rank_tensors(model, split, 0)
        assert caught.value.code == "EMBEDDING_SPLIT"
        assert "embedding_sharding_dim 0" in str(caught.value.hint)


@pytest.mark.parametrize("name", ["google--gemma-7b", "google--gemma-2-9b-it", "google--gemma-3-1b-it"])
def test_gemmas_embedding_is_split_wherever_there_are_several_ranks(name: str) -> None:
    """https://github.com/NVIDIA/TensorRT-LLM: GemmaConfig sets use_parallel_embedding itself."""
    model = published_spec(name)
    whole = tensors(model)["transformer.vocab_embedding.weight"]
    assert whole.shape == (model.vocab_size, model.hidden_size)
    for asked in (Split(2), Split(2, use_parallel_embedding=True, embedding_sharding_dim=1)):
        table = {tensor.name: tensor for tensor in rank_tensors(model, asked, 1)}
        embedding = table["transformer.vocab_embedding.weight"]
        assert embedding.shape == (model.vocab_size // 2, model.hidden_size)
        assert (embedding.slices[0].start, embedding.slices[0].stop) == (model.vocab_size // 2, model.vocab_size)


# splits


def test_context_parallel_ranks_have_the_same_files() -> None:
    split = Split(3, 2, cp=4)
    assert (split.files, split.world_size) == (6, 24)
    for rank in range(split.files):
        assert rank_tensors(spec(), split, rank) == rank_tensors(spec(), Split(3, 2), rank)
    assert checkpoint_bytes(spec(), split) == checkpoint_bytes(spec(), Split(3, 2))


@pytest.mark.parametrize(
    ("split", "parts"), [(Split(8), 8), (Split(8, moe_ep=2), 4), (Split(8, moe_ep=8), 1), (Split(8, moe_tp=2), 2)]
)
def test_experts_are_cut_into_as_many_parts_as_are_left(split: Split, parts: int) -> None:
    assert split.moe_tp == parts


@pytest.mark.parametrize(
    ("split", "code", "words"),
    [
        (Split(2), "TP_HEADS", "9 is not a multiple of 2"),
        (Split(0), "TP_HEADS", "below 1"),
        (Split(1, 31), "PP_LAYERS", "30 layers"),
        (Split(1, 0), "PP_LAYERS", "30 layers"),
        (Split(3, moe_tp=1), "MOE_SPLIT", "one part of one group"),
        (Split(3, moe_tp=3, moe_ep=3), "MOE_SPLIT", "one part of one group"),
    ],
)
def test_a_split_that_is_not_even_is_refused(split: Split, code: str, words: str) -> None:
    with pytest.raises(PlanRefused) as caught:
        rank_tensors(spec(), split, 0)
    assert caught.value.code == code
    assert words in str(caught.value.why)


def test_experts_that_can_not_be_shared_out_are_refused_by_their_number() -> None:
    """Mixtral with six experts on eight ranks, four groups of them."""
    config = published_config("mistralai--Mixtral-8x7B-v0.1") | {"num_local_experts": 6}
    with pytest.raises(PlanRefused) as caught:
        rank_tensors(ModelSpec.from_config(config, "config.json"), Split(8, moe_ep=4), 0)
    assert caught.value.code == "MOE_SPLIT"
    assert "6 experts can't be shared by 4" in caught.value.message


@pytest.mark.parametrize("name", ["microsoft--phi-4", "microsoft--Phi-3-mini-4k-instruct"])
def test_phi_has_no_stages(name: str) -> None:
    with pytest.raises(PlanRefused) as caught:
        rank_tensors(published_spec(name), Split(2, 2), 0)
    assert caught.value.code == "PP_UNSUPPORTED"
    assert "tensor parallelism" in str(caught.value.hint)


# families


def names(model: ModelSpec, layer: int = 0) -> set[str]:
    start = f"transformer.layers.{layer}."
    return {name.removeprefix(start) for name in tensors(model) if name.startswith(start)}


LLAMA = {
    "input_layernorm.weight",
    "attention.qkv.weight",
    "attention.dense.weight",
    "post_layernorm.weight",
    "mlp.fc.weight",
    "mlp.gate.weight",
    "mlp.proj.weight",
}
EXPERTS = LLAMA - {"mlp.gate.weight"} | {"mlp.router.weight"}
HEAD_NORMS = {"attention.q_layernorm.weight", "attention.k_layernorm.weight"}
FOUR_NORMS = {"pre_feedforward_layernorm.weight", "post_feedforward_layernorm.weight"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("meta-llama--Llama-3.1-8B", LLAMA),
        ("mistralai--Mistral-Nemo-Base-2407", LLAMA),
        ("mistralai--Mixtral-8x7B-v0.1", EXPERTS),
        ("Qwen--Qwen2-1.5B-Instruct", LLAMA | {"attention.qkv.bias"}),
        ("Qwen--Qwen3-8B", LLAMA | HEAD_NORMS),
        ("Qwen--Qwen3-30B-A3B", EXPERTS | HEAD_NORMS),
        ("google--gemma-7b", LLAMA),
        ("google--gemma-2-9b-it", LLAMA | FOUR_NORMS),
        ("google--gemma-3-1b-it", LLAMA | FOUR_NORMS | HEAD_NORMS),
        ("microsoft--phi-4", LLAMA - {"mlp.gate.weight"}),
    ],
)
def test_a_layer_of_every_family_has_these_tensors(name: str, expected: set[str]) -> None:
    assert names(published_spec(name)) == expected


def test_experts_hold_up_then_gate_and_routers_are_whole_float32() -> None:
    """Mixtral on eight ranks, four groups of experts cut in two: rank 5 has group 1, and the second half of each."""
    table = {
        tensor.name: tensor
        for tensor in rank_tensors(published_spec("mistralai--Mixtral-8x7B-v0.1"), Split(8, moe_ep=4), 5)
    }
    layer = "transformer.layers.31.mlp."
    router = table[f"{layer}router.weight"]
    assert (router.dtype, router.shape) == ("F32", (8, 4096))
    fused, down = table[f"{layer}fc.weight"], table[f"{layer}proj.weight"]
    assert (fused.dtype, fused.shape, down.shape) == ("BF16", (2, 14336, 4096), (2, 4096, 7168))
    source = "model.layers.31.block_sparse_moe.experts."
    assert [(part.source, part.start, part.stop) for part in fused.slices] == [
        (f"{source}{expert}.{name}.weight", 7168, 14336) for expert in (2, 3) for name in ("w3", "w1")
    ]
    assert [(part.source, part.dim, part.start, part.stop) for part in down.slices] == [
        (f"{source}{expert}.w2.weight", 1, 7168, 14336) for expert in (2, 3)
    ]


def test_dense_layers_among_experts_have_a_plain_mlp() -> None:
    config = published_config("Qwen--Qwen3-30B-A3B") | {"mlp_only_layers": [1]}
    model = ModelSpec.from_config(config, "config.json")
    assert names(model, 0) == EXPERTS | HEAD_NORMS
    assert names(model, 1) == LLAMA | HEAD_NORMS
    assert tensors(model)["transformer.layers.1.mlp.fc.weight"].shape == (6144, 2048)
    assert tensors(model)["transformer.layers.0.mlp.fc.weight"].shape == (128, 2 * 768, 2048)


def test_phi_fuses_its_projections_itself() -> None:
    """Phi-4: 40 heads and 10 KV heads of 128, a width of 17,920; the second of five ranks."""
    table = tensors(published_spec("microsoft--phi-4"), tp=5, rank=1)
    qkv, fused = (table[f"transformer.layers.0.{name}.weight"] for name in ("attention.qkv", "mlp.fc"))
    whole = ("model.layers.0.self_attn.qkv_proj.weight", (60 * 128, 5120), 0)
    assert qkv.slices == (
        Slice(*whole, 8 * 128, 16 * 128),
        Slice(*whole, 42 * 128, 44 * 128),
        Slice(*whole, 52 * 128, 54 * 128),
    )
    whole = ("model.layers.0.mlp.gate_up_proj.weight", (2 * 17920, 5120), 0)
    assert fused.slices == (Slice(*whole, 17920 + 3584, 17920 + 7168), Slice(*whole, 3584, 7168))  # up_proj first


@pytest.mark.parametrize("model", ["google--gemma-3-4b-it", "deepseek-ai--DeepSeek-V3", "openai--gpt-oss-20b"])
def test_models_with_other_tensors_are_refused_by_their_architecture(model: str) -> None:
    with pytest.raises(SourceError) as caught:
        rank_tensors(published_spec(model), Split(), 0)
    assert caught.value.code == "UNSUPPORTED_ARCHITECTURE"
    assert published_spec(model).architecture in caught.value.message
