"""The weights of a checkpoint as the reference model holds them: float32, shard by shard, laid out for its products.

Tensors are widened one by one, of experts expert by expert, so that there never are two copies of the whole model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from builder.reference.config import Config
from builder.reference.errors import ReferenceModelError
from builder.reference.floats import Float32
from builder.reference.layers import ACTIVATIONS
from builder.reference.layout import EMBEDDING, HEAD, layer_prefix
from builder.reference.linear import Linear
from builder.reference.mlp import GatedMlp, Router
from builder.reference.stored import cache_scale, effective
from builder.reference.weights import RankWeights


@dataclass(frozen=True)
class Shard:
    """What one rank holds of a layer: an MLP, or some experts or parts of them, each with its number.

    `cache_scale` is that of a quantised KV cache.
    """

    qkv: Linear
    dense: Linear
    mlp: GatedMlp | None
    experts: tuple[tuple[int, GatedMlp], ...]
    cache_scale: np.float32


@dataclass(frozen=True)
class Layer:
    """`norms` by TensorRT-LLM's names; biases are those of row-parallel linears, added once after the ranks' sum."""

    norms: dict[str, Float32]
    router: Router | None
    dense_bias: Float32 | None
    proj_bias: Float32 | None
    shards: tuple[Shard, ...]


def load_layer(config: Config, ranks: Sequence[RankWeights], number: int, layer: int) -> Layer:
    """The layer that is `number` in the files of its stage, and `layer` in the model."""
    prefix = layer_prefix(number)
    norms = [name for name in ranks[0].file.tensors if name.startswith(prefix) and name.endswith("layernorm.weight")]
    router = None
    if experts := config.experts_of(layer):
        linear = Linear(replicated(ranks, f"{prefix}mlp.router.weight"))
        router = Router(linear, experts.per_token, experts.normalized)
    return Layer(
        norms={name.removeprefix(prefix).removesuffix(".weight"): replicated(ranks, name) for name in norms},
        router=router,
        dense_bias=replicated(ranks, f"{prefix}attention.dense.bias") if config.dense_bias else None,
        proj_bias=replicated(ranks, f"{prefix}mlp.proj.bias") if config.mlp_bias else None,
        shards=tuple(_load_shard(config, rank, tensor_rank, prefix, layer) for tensor_rank, rank in enumerate(ranks)),
    )


def load_embedding(config: Config, ranks: Sequence[RankWeights]) -> Float32:
    """(vocab_size, hidden_size), put together where the ranks share it out, and scaled where the model does."""
    if config.use_parallel_embedding:
        parts = [rank.float32(EMBEDDING) for rank in ranks]
        embedding = np.concatenate(parts, axis=config.embedding_sharding_dim)[: config.vocab_size]
    else:
        embedding = replicated(ranks, EMBEDDING)
    if config.embedding_scale is not None:
        embedding *= np.float32(config.embedding_scale)
    return embedding


def load_head(config: Config, rank: RankWeights) -> Linear:
    if HEAD not in rank:
        return Linear(rank.float32(EMBEDDING))
    return Linear(effective(rank, HEAD.removesuffix(".weight"), config.quantization))


def replicated(ranks: Sequence[RankWeights], name: str) -> Float32:
    """A tensor that all tensor ranks hold alike."""
    first = ranks[0].stored(name)
    for rank in ranks[1:]:
        if not np.array_equal(first, rank.stored(name)):
            raise ReferenceModelError(f"{rank.file.path}: {name} differs from that of {ranks[0].file.path}")
    return ranks[0].float32(name)


def _load_shard(config: Config, rank: RankWeights, tensor_rank: int, prefix: str, layer: int) -> Shard:
    attention, quantization = f"{prefix}attention", config.quantization
    bias = rank.float32(f"{attention}.qkv.bias") if config.attn_bias else None
    has_experts = config.experts_of(layer) is not None
    return Shard(
        qkv=Linear(effective(rank, f"{attention}.qkv", quantization), bias),
        dense=Linear(effective(rank, f"{attention}.dense", quantization)),
        mlp=None if has_experts else _load_mlp(config, rank, f"{prefix}mlp."),
        experts=tuple(_load_experts(config, rank, tensor_rank, f"{prefix}mlp.")) if has_experts else (),
        cache_scale=cache_scale(rank, attention) if quantization.kv_algo else np.float32(1),
    )


def _load_mlp(config: Config, rank: RankWeights, prefix: str) -> GatedMlp:
    def gated(part: Callable[[str], Float32]) -> Float32:
        return _swapped(part("fc")) if config.fused_mlp else np.concatenate([part("fc"), part("gate")])

    return GatedMlp(
        Linear(
            gated(lambda name: effective(rank, f"{prefix}{name}", config.quantization)),
            gated(lambda name: rank.float32(f"{prefix}{name}.bias")) if config.mlp_bias else None,
        ),
        Linear(effective(rank, f"{prefix}proj", config.quantization)),
        ACTIVATIONS[config.activation],
    )


def _load_experts(config: Config, rank: RankWeights, tensor_rank: int, prefix: str) -> Iterator[tuple[int, GatedMlp]]:
    count = rank.stored(f"{prefix}fc.weight").shape[0]
    first = config.mapping.first_expert(tensor_rank, count)
    for expert in range(count):
        yield (
            first + expert,
            GatedMlp(
                Linear(_swapped(effective(rank, f"{prefix}fc", config.quantization, expert))),
                Linear(effective(rank, f"{prefix}proj", config.quantization, expert)),
                ACTIVATIONS[config.activation],
            ),
        )


def _swapped(up_and_gate: Float32) -> Float32:
    """The activated half first: tensors that hold both have it last."""
    up, gate = np.split(up_and_gate, 2)
    return np.concatenate([gate, up])
