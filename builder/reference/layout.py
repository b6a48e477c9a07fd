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
    if config.experts is not None and config.has_experts(layer):
        experts, inner = config.experts.count // config.moe_ep_size, config.experts.intermediate_size
        yield "mlp.fc", (experts, 2 * inner // config.moe_tp_size, hidden)
        yield "mlp.proj", (experts, hidden, inner // config.moe_tp_size)
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
            algo = config.quantization.format_of(f"{prefix}{name}")
            expected |= {f"{prefix}{name}.{key}": value for key, value in _parameters(config, algo, shape).items()}
        if config.experts is not None and config.has_experts(layer):
            expected[f"{prefix}mlp.router.weight"] = Expected(((config.experts.count, hidden),), ("F32", dtype))
        for name, size in _biases(config):
            plain(f"{prefix}{name}.bias", size)
        if config.quantization.kv_algo:
            expected[f"{prefix}attention.kv_cache_scaling_factor"] = _NUMBER
            for kind in ("k", "v"):
                expected[f"{prefix}attention.{kind}_cache_scaling_factor"] = Expected(((1,), ()), ("F32",), True)
    if stage == config.pp_size - 1:
        plain(FINAL_NORM, hidden)
        plain(HEAD, config.rank_vocab, hidden)
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


def _parameters(config: Config, algo: str | None, shape: Shape) -> dict[str, Expected]:
    """The tensors of one linear, by what follows its name; `shape` is that of the weight, without quantisation."""
    *lead, rows, columns = shape
    dtype = STORED_DTYPES[config.dtype]
    floats = tuple(dict.fromkeys((dtype, "F32")))
    if algo is None or config.quantization.rounds_when_built:
        return {"weight": Expected((shape,), (dtype,))}
    if algo == "FP8_PER_CHANNEL_PER_TOKEN":
        return {
            "weight": Expected((shape,), ("F8_E4M3",)),
            "per_channel_scale": Expected(((rows,), (rows, 1)), ("F32",)),
        }
    if algo == "FP8":
        scales = Expected(((lead[0], 1),), ("F32",)) if lead else _NUMBER
        parameters = {"weight": Expected((shape,), ("F8_E4M3",)), "weights_scaling_factor": scales}
    elif algo == "NVFP4":
        parameters = {
            "weight": Expected(((rows, columns // 2),), ("U8",)),
            "weights_scaling_factor": Expected(((rows, columns // 16),), ("F8_E4M3",)),
            "weights_scaling_factor_2": _NUMBER,
        }
    elif algo == "W8A8_SQ_PER_CHANNEL":
        parameters = {
            "weight": Expected((shape,), ("I8",)),
            "weights_scaling_factor": Expected(((rows,), (rows, 1)), ("F32",)),
            "prequant_scaling_factor": Expected(((columns,),), floats),
        }
    else:
        groups = columns // config.quantization.group_size
        parameters = {
            "weight": Expected(((rows // 2, columns),), ("I8", "U8")),
            "weights_scaling_factor": Expected(((rows, groups),), floats),
            "prequant_scaling_factor": Expected(((columns,),), floats),
        }
        if algo == "W4A8_AWQ":
            parameters["weights_scaling_factor_2"] = _NUMBER
    return parameters if algo == "W4A16_AWQ" else parameters | {"activation_scaling_factor": _NUMBER}
