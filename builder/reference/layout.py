"""The tensors of each rank of a TensorRT-LLM checkpoint: names, shapes and types.

Written from TensorRT-LLM's side (tensorrt_llm/models/{llama,qwen,gemma,phi3}/model.py and layers/), on purpose without
the converter's table, so that each checks the other. Weights are (out_features, in_features); layers are numbered from
0 on every pipeline stage. `mlp.fc` is the activated half of a gated MLP (Hugging Face's gate_proj), `mlp.gate` the
other (up_proj); where both are one tensor, that is `mlp.fc`, the half that isn't activated first. Biases of
row-parallel layers (dense, proj) are whole on every rank. Parameters of quantised linears: quantization/layers.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from builder.reference.config import STORED_DTYPES, Config
from builder.reference.dequantize import NVFP4_BLOCK
from builder.reference.errors import ReferenceModelError

EMBEDDING = "transformer.vocab_embedding.weight"
FINAL_NORM = "transformer.ln_f.weight"
HEAD = "lm_head.weight"

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Expected:
    """A tensor: any of these shapes ([] for [1], which stand for the same number) in any of these types."""

    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...]
    optional: bool = False


def layer_prefix(layer: int) -> str:
    return f"transformer.layers.{layer}."


def linears(config: Config, layer: int) -> Iterator[tuple[str, Shape]]:
    """The linears of a layer that may be quantised, without their prefix, and the shape of a rank's weight."""
    hidden, attention = config.hidden_size, config.rank_heads * config.head_size
    qkv = attention + 2 * config.rank_key_value_heads * config.head_size
    yield "attention.qkv", (qkv, hidden)
    yield "attention.dense", (hidden, attention)
    if experts := config.experts_of(layer):
        count, inner = experts.count // config.mapping.moe_ep, experts.intermediate_size // config.mapping.moe_tp
        yield "mlp.fc", (count, 2 * inner, hidden)
        yield "mlp.proj", (count, hidden, inner)
        return
    inner = config.intermediate_size // config.tp_size
    if config.fused_mlp:
        yield "mlp.fc", (2 * inner, hidden)
    else:
        yield "mlp.fc", (inner, hidden)
        yield "mlp.gate", (inner, hidden)
    yield "mlp.proj", (hidden, inner)


def rank_tensors(config: Config, rank: int) -> dict[str, Expected]:
    """Name → what is expected, for every tensor of `rank` (= pipeline stage · tp_size + tensor rank)."""
    stage, hidden = rank // config.tp_size, config.hidden_size
    dtype = STORED_DTYPES[config.dtype]
    expected: dict[str, Expected] = {}

    def plain(name: str, *shape: int) -> None:
        expected[name] = Expected((shape,), (dtype,))

    if stage == 0:
        plain(EMBEDDING, *_embedding_shape(config))
    for number, layer in enumerate(config.stage_layers(stage)):
        prefix = layer_prefix(number)
        for norm in _norms(config):
            plain(f"{prefix}{norm}.weight", hidden)
        if config.qk_layernorm:
            plain(f"{prefix}attention.q_layernorm.weight", config.head_size)
            plain(f"{prefix}attention.k_layernorm.weight", config.head_size)
        for name, shape in linears(config, layer):
            expected |= _linear(config, f"{prefix}{name}", shape)
        if experts := config.experts_of(layer):
            expected[f"{prefix}mlp.router.weight"] = Expected(((experts.count, hidden),), ("F32",))
        for name, size in _biases(config):
            plain(f"{prefix}{name}.bias", size)
        if config.quantization.kv_algo:
            expected[f"{prefix}attention.kv_cache_scaling_factor"] = _NUMBER
            for kind in ("k", "v"):
                expected[f"{prefix}attention.{kind}_cache_scaling_factor"] = Expected(((1,), ()), ("F32",), True)
    if stage == config.pp_size - 1:
        plain(FINAL_NORM, hidden)
        expected |= _linear(config, HEAD.removesuffix(".weight"), (config.rank_vocab, hidden))
    return expected


def may_omit_head(config: Config) -> bool:
    """Whether lm_head may be absent, the embedding then standing for it.

    TensorRT-LLM's loader looks for the embedding in the same rank file and takes it as it lies there, which fits one
    rank, and tensor ranks whose embedding is split like the head.
    """
    split_alike = config.tp_size == 1 or (config.use_parallel_embedding and config.embedding_sharding_dim == 0)
    return config.pp_size == 1 and split_alike and config.tie_word_embeddings is not False


_NUMBER = Expected(((1,), ()), ("F32",))


def _embedding_shape(config: Config) -> Shape:
    if not config.use_parallel_embedding:
        return config.vocab_size, config.hidden_size
    if config.embedding_sharding_dim == 0:
        return config.rank_vocab, config.hidden_size
    return config.vocab_size, config.hidden_size // config.tp_size


def _norms(config: Config) -> tuple[str, ...]:
    names = ("input_layernorm", "post_layernorm")
    return (*names, "pre_feedforward_layernorm", "post_feedforward_layernorm") if config.sandwich_norms else names


def _biases(config: Config) -> Iterator[tuple[str, int]]:
    hidden, inner = config.hidden_size, config.intermediate_size // config.tp_size
    if config.attn_bias:
        yield "attention.qkv", (config.rank_heads + 2 * config.rank_key_value_heads) * config.head_size
    if config.dense_bias:
        yield "attention.dense", hidden
    if config.mlp_bias:
        yield "mlp.fc", inner
        yield "mlp.gate", inner
        yield "mlp.proj", hidden


def _linear(config: Config, name: str, shape: Shape) -> dict[str, Expected]:
    """The tensors of a linear whose weight, if it weren't quantised, would have `shape`; experts come first in it."""
    *lead, rows, columns = shape
    dtype, quantization = STORED_DTYPES[config.dtype], config.quantization
    algo = quantization.format_of(name, experts=bool(lead))
    parameters: dict[str, Expected] = {}
    if algo is None or quantization.rounds_when_built:
        parameters["weight"] = Expected((shape,), (dtype,))
    elif algo == "FP8_PER_CHANNEL_PER_TOKEN":
        parameters["weight"] = Expected((shape,), ("F8_E4M3",))
        parameters["per_channel_scale"] = Expected(((rows,),), ("F32",))
    elif algo == "FP8":
        parameters["weight"] = Expected((shape,), ("F8_E4M3",))
        parameters["weights_scaling_factor"] = Expected(((*lead, 1),), ("F32",)) if lead else _NUMBER
    elif algo == "NVFP4":
        parameters["weight"] = Expected(((rows, _share(name, columns, 2)),), ("U8",))
        parameters["weights_scaling_factor"] = Expected(((rows, _share(name, columns, NVFP4_BLOCK)),), ("F8_E4M3",))
        parameters["weights_scaling_factor_2"] = _NUMBER
    elif algo == "W8A8_SQ_PER_CHANNEL":
        parameters["weight"] = Expected((shape,), ("I8",))
        parameters["weights_scaling_factor"] = Expected(((rows,),), ("F32",))
    else:
        groups = _share(name, columns, quantization.group_size)
        parameters["weight"] = Expected(((_share(name, rows, 2), columns),), ("I8",))
        parameters["weights_scaling_factor"] = Expected(((rows, groups),), (dtype, "F32"))
    if algo in ("W4A16_AWQ", "W4A8_AWQ", "W8A8_SQ_PER_CHANNEL"):
        parameters["prequant_scaling_factor"] = Expected(((columns,),), (dtype,))
    if algo in ("FP8", "NVFP4", "W4A8_AWQ", "W8A8_SQ_PER_CHANNEL"):
        parameters["activation_scaling_factor"] = _NUMBER
    if algo == "W4A8_AWQ":
        parameters["weights_scaling_factor_2"] = _NUMBER
    return {f"{name}.{parameter}": expected for parameter, expected in parameters.items()}


def _share(name: str, size: int, divisor: int) -> int:
    if size % divisor:
        raise ReferenceModelError(f"{name}: {size} is not a multiple of {divisor}, as its format needs")
    return size // divisor
