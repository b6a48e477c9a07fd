"""The weights of a checkpoint as the reference model holds them: float32, shard by shard, laid out for its products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from builder.reference.config import Config
from builder.reference.errors import ReferenceModelError
from builder.reference.layout import EMBEDDING, HEAD, layer_prefix
from builder.reference.linear import Linear
from builder.reference.stored import effective
from builder.reference.weights import Float32, RankWeights


@dataclass(frozen=True)
class Mlp:
    """A gated MLP, or a rank's part of one: `fc_gate` is both halves in one product, the activated one first."""

    fc_gate: Linear
    proj: Linear


@dataclass(frozen=True)
class Shard:
    """What one rank holds of a layer. `experts` has the number of each expert that is (partly) here.

    `cache_scale` is that of a quantised KV cache.
    """

    qkv: Linear
    dense: Linear
    mlp: Mlp | None
    experts: tuple[tuple[int, Mlp], ...]
    cache_scale: float


@dataclass(frozen=True)
class Layer:
    """`norms` by TensorRT-LLM's names; biases are those of row-parallel linears, added once after the ranks' sum."""

    norms: dict[str, Float32]
    router: Linear | None
    dense_bias: Float32 | None
    proj_bias: Float32 | None
    shards: tuple[Shard, ...]


def load_layer(config: Config, ranks: Sequence[RankWeights], number: int, layer: int) -> Layer:
    """The layer that is `number` in the files of its stage, and `layer` in the model."""
    prefix = layer_prefix(number)
    norms = [name for name in ranks[0].file.tensors if name.startswith(prefix) and name.endswith("layernorm.weight")]
    has_experts = config.has_experts(layer)
    return Layer(
        norms={name.removeprefix(prefix).removesuffix(".weight"): replicated(ranks, name) for name in norms},
        router=Linear(replicated(ranks, f"{prefix}mlp.router.weight")) if has_experts else None,
        dense_bias=replicated(ranks, f"{prefix}attention.dense.bias") if config.dense_bias else None,
        proj_bias=replicated(ranks, f"{prefix}mlp.proj.bias") if config.mlp_bias else None,
        shards=tuple(
            _load_shard(config, rank, tensor_rank, prefix, has_experts) for tensor_rank, rank in enumerate(ranks)
        ),
    )


def load_embedding(config: Config, ranks: Sequence[RankWeights]) -> Float32:
    """(vocab_size, hidden_size), put together where the ranks share it out."""
    if not config.use_parallel_embedding:
        return replicated(ranks, EMBEDDING)
    parts = [rank.float32(EMBEDDING) for rank in ranks]
    return np.concatenate(parts, axis=config.embedding_sharding_dim)[: config.vocab_size]


def load_head(rank: RankWeights) -> Linear:
    return Linear(rank.float32(HEAD if HEAD in rank else EMBEDDING))


def replicated(ranks: Sequence[RankWeights], name: str) -> Float32:
    """A tensor that all tensor ranks hold alike."""
    first = ranks[0].stored(name)
    for rank in ranks[1:]:
        if not np.array_equal(first, rank.stored(name)):
            raise ReferenceModelError(f"{rank.file.path}: {name} differs from that of {ranks[0].file.path}")
    return ranks[0].float32(name)


def _load_shard(config: Config, rank: RankWeights, tensor_rank: int, prefix: str, has_experts: bool) -> Shard:
    quantization = config.quantization
    bias = rank.float32(f"{prefix}attention.qkv.bias") if config.attn_bias else None
    scale = f"{prefix}attention.kv_cache_scaling_factor"
    return Shard(
        qkv=Linear(effective(rank, f"{prefix}attention.qkv", quantization), bias),
        dense=Linear(effective(rank, f"{prefix}attention.dense", quantization)),
        mlp=None if has_experts else _load_mlp(config, rank, f"{prefix}mlp."),
        experts=tuple(_load_experts(config, rank, tensor_rank, f"{prefix}mlp.")) if has_experts else (),
        cache_scale=float(rank.float32(scale).reshape(())) if scale in rank else 1.0,
    )


def _load_mlp(config: Config, rank: RankWeights, prefix: str) -> Mlp:
    fc = effective(rank, f"{prefix}fc", config.quantization)
    if config.fused_mlp:
        return Mlp(Linear(_activated_first(fc)), Linear(effective(rank, f"{prefix}proj", config.quantization)))
    bias = None
    if config.mlp_bias:
        bias = np.concatenate([rank.float32(f"{prefix}fc.bias"), rank.float32(f"{prefix}gate.bias")])
    fc_gate = np.concatenate([fc, effective(rank, f"{prefix}gate", config.quantization)])
    return Mlp(Linear(fc_gate, bias), Linear(effective(rank, f"{prefix}proj", config.quantization)))


def _load_experts(config: Config, rank: RankWeights, tensor_rank: int, prefix: str) -> list[tuple[int, Mlp]]:
    fc = effective(rank, f"{prefix}fc", config.quantization)
    proj = effective(rank, f"{prefix}proj", config.quantization)
    first = tensor_rank % config.moe_ep_size * len(fc)
    return [(first + i, Mlp(Linear(_activated_first(fc[i])), Linear(proj[i]))) for i in range(len(fc))]


def _activated_first(up_and_gate: Float32) -> Float32:
    up, gate = np.split(up_and_gate, 2)
    return np.concatenate([gate, up])
