"""The tensors of one layer, which follow from its `Layer` record and its family's row in families.yaml.

What is fused is listed in parts: of Phi-3's qkv_proj there are two entries of the same name, queries and keys with
values, since tensor parallelism splits them differently; of a tensor that holds all experts there is one entry for one
expert, with its count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from builder.model.families import Family
from builder.model.spec import Attention, Experts, Layer, Mla, ModelSpec, Recurrent

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Weight:
    """A tensor that `layers` have, or the model once where that is empty; each of them `count` times.

    name: that of the Hugging Face tensor, with * for the number of the layer and for that of an expert.
    shape: of one tensor; (out, in) for linears, whichever way round the file has them.
    role: how tensor parallelism treats it. "query", "column" and "expert_column" split along out, "attention_out",
        "row" and "expert_row" along in; "key_value" along heads, which are repeated where there are fewer than ranks;
        "embedding" and "head" as the toolchain likes; all others are whole on every rank.
    quantized: a linear that the source's quantisation, or a recipe's, applies to: never embeddings, norms, routers.
    dtype: where it isn't the model's.
    """

    name: str
    shape: Shape
    role: str
    count: int = 1
    layers: tuple[int, ...] = ()
    quantized: bool = False
    dtype: str | None = None

    @property
    def total(self) -> int:
        """How many tensors of this shape there are."""
        return self.count * max(1, len(self.layers))

    @property
    def parameters(self) -> int:
        return math.prod(self.shape) * self.total


def layer_weights(spec: ModelSpec, family: Family, layer: Layer, prefix: str) -> Iterator[Weight]:
    """The tensors of one layer; their `layers` are still empty."""
    for name in _norms_of(family, layer):
        yield from norm_weights(spec, family, prefix + name)
    if layer.attention is not None:
        module = f"{prefix}{family.name('attention')}."
        if layer.attention.mla is not None:
            yield from _latent(spec, layer.attention, layer.attention.mla, module)
        else:
            yield from _attention(spec, family, layer.attention, module)
    if layer.recurrent is not None:
        yield from _recurrent(spec, family, layer.recurrent, f"{prefix}{family.name('recurrent')}.")
    if layer.intermediate_size is not None:
        yield from _mlp(spec, family, f"{prefix}{family.name('mlp')}.", layer.intermediate_size, spec.mlp_bias)
    if layer.experts is not None:
        yield from _experts(spec, family, layer.experts, _module(prefix, family.name("experts")))
    for extra in family.extra:
        if extra.of != "experts" or layer.experts is not None:
            experts = layer.experts.count if layer.experts else 0
            heads = layer.attention.heads if layer.attention else 0
            size = {"one": 1, "hidden": spec.hidden_size, "heads": heads, "experts": experts}[extra.size]
            yield Weight(prefix + extra.name, (size,), "other")


def _module(prefix: str, name: str) -> str:
    return f"{prefix}{name}." if name else prefix


def _norms_of(family: Family, layer: Layer) -> tuple[str, ...]:
    """Layers that a search left without attention or MLP have no norm before it either."""
    if family.hybrid != "blocks":
        return family.layer_norms
    parts = (layer.attention, layer.intermediate_size)
    return tuple(name for name, part in zip(family.layer_norms, parts, strict=True) if part is not None)


def norm_weights(spec: ModelSpec, family: Family, name: str) -> list[Weight]:
    weight = [Weight(f"{name}.weight", (spec.hidden_size,), "norm")]
    return [*weight, Weight(f"{name}.bias", (spec.hidden_size,), "norm")] if family.norm_bias else weight


def _linear(name: str, out: int, into: int, role: str, bias: bool = False) -> Iterator[Weight]:
    """A linear that can be quantised; the bias of what is split along in is added once, so every rank has it."""
    yield Weight(f"{name}.weight", (out, into), role, quantized=True)
    if bias:
        yield Weight(f"{name}.bias", (out,), "bias" if role in ("row", "attention_out") else role)


def _attention(spec: ModelSpec, family: Family, attention: Attention, module: str) -> Iterator[Weight]:
    hidden, head_dim = spec.hidden_size, attention.head_dim
    query, key = attention.heads * head_dim, attention.kv_heads * head_dim
    bias = spec.attention_bias
    if family.fused_attention:
        yield from _linear(module + family.fused_attention, query, hidden, "query", bias)
        yield from _linear(module + family.fused_attention, 2 * key, hidden, "key_value", bias)
    else:
        gated = 2 if family.query_gate else 1
        yield from _linear(module + family.name("query"), gated * query, hidden, "query", bias)
        if not attention.shares_cache:
            yield from _linear(module + family.name("key"), key, hidden, "key_value", bias)
            if not attention.k_eq_v:
                yield from _linear(module + family.name("value"), key, hidden, "key_value", bias)
    yield from _linear(
        module + family.name("output"), hidden, query, "attention_out", bias and family.output_bias == "same"
    )
    if family.qk_norm == "per-head":
        yield Weight(f"{module}q_norm.weight", (head_dim,), "norm")
        yield Weight(f"{module}k_norm.weight", (head_dim,), "norm")


def _latent(spec: ModelSpec, attention: Attention, mla: Mla, module: str) -> Iterator[Weight]:
    hidden, heads = spec.hidden_size, attention.heads
    if mla.q_lora_rank is None:
        yield from _linear(f"{module}q_proj", heads * attention.head_dim, hidden, "query")
    else:
        yield from _linear(f"{module}q_a_proj", mla.q_lora_rank, hidden, "latent", spec.attention_bias)
        yield Weight(f"{module}q_a_layernorm.weight", (mla.q_lora_rank,), "norm")
        yield from _linear(f"{module}q_b_proj", heads * attention.head_dim, mla.q_lora_rank, "query")
    compressed = mla.kv_lora_rank + mla.qk_rope_head_dim
    yield from _linear(f"{module}kv_a_proj_with_mqa", compressed, hidden, "latent", spec.attention_bias)
    yield Weight(f"{module}kv_a_layernorm.weight", (mla.kv_lora_rank,), "norm")
    expanded = heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    yield from _linear(f"{module}kv_b_proj", expanded, mla.kv_lora_rank, "column")
    yield from _linear(f"{module}o_proj", hidden, heads * mla.v_head_dim, "attention_out", spec.attention_bias)
    if mla.index_heads and mla.index_head_dim and mla.q_lora_rank:
        yield from _linear(f"{module}indexer.wq_b", mla.index_heads * mla.index_head_dim, mla.q_lora_rank, "latent")
        yield from _linear(f"{module}indexer.wk", mla.index_head_dim, hidden, "latent")
        yield Weight(f"{module}indexer.k_norm.weight", (mla.index_head_dim,), "norm")
        yield Weight(f"{module}indexer.k_norm.bias", (mla.index_head_dim,), "norm")
        yield Weight(f"{module}indexer.weights_proj.weight", (mla.index_heads, hidden), "latent")


def _mlp(spec: ModelSpec, family: Family, module: str, width: int, bias: bool) -> Iterator[Weight]:
    hidden = spec.hidden_size
    if family.fused_mlp:
        yield from _linear(module + family.fused_mlp, 2 * width, hidden, "column", bias)
    else:
        for name in ("gate", "up") if family.gated else ("up",):
            yield from _linear(module + family.name(name), width, hidden, "column", bias)
    yield from _linear(module + family.name("down"), hidden, width, "row", bias)


def _experts(spec: ModelSpec, family: Family, experts: Experts, module: str) -> Iterator[Weight]:
    keys = family.experts
    if keys is None:
        raise ValueError(f"families.yaml: {family.model_type} has no experts")
    hidden, width, count = spec.hidden_size, experts.intermediate_size, experts.count
    router = module + family.name("router")
    yield Weight(f"{router}.weight", (count, hidden), "router")
    if family.router_bias:
        yield Weight(f"{router}.bias", (count,), "router")
    if family.router_correction:
        yield Weight(f"{router}.{family.router_correction}", (count,), "router", dtype="float32")
    into = hidden
    if experts.latent_size is not None:
        into = experts.latent_size
        yield from _linear(f"{module}fc1_latent_proj", into, hidden, "other")
        yield from _linear(f"{module}fc2_latent_proj", hidden, into, "other")
    if keys.fused:
        columns = [("experts.gate_up_proj", 2 * width)]
        down, bias_of, weight_of = "experts.down_proj", "_bias", ""
    else:
        names = ("expert_gate", "expert_up") if family.gated else ("expert_up",)
        columns = [(f"experts.*.{family.name(name)}", width) for name in names]
        down, bias_of, weight_of = f"experts.*.{family.name('expert_down')}", ".bias", ".weight"
    for name, out in columns:
        yield Weight(f"{module}{name}{weight_of}", (out, into), "expert_column", count, quantized=True)
        if keys.bias:
            yield Weight(f"{module}{name}{bias_of}", (out,), "expert_column", count)
    yield Weight(f"{module}{down}{weight_of}", (into, width), "expert_row", count, quantized=True)
    if keys.bias:
        yield Weight(f"{module}{down}{bias_of}", (into,), "bias", count)
    if experts.shared_intermediate_size:
        yield from _mlp(spec, family, f"{module}{family.name('shared')}.", experts.shared_intermediate_size, False)
        if family.name("shared_gate"):
            yield Weight(f"{module}{family.name('shared_gate')}.weight", (1, hidden), "router")


def _recurrent(spec: ModelSpec, family: Family, recurrent: Recurrent, module: str) -> Iterator[Weight]:
    hidden, inner, heads = spec.hidden_size, recurrent.inner_size, recurrent.heads
    channels = recurrent.conv_channels
    if recurrent.kind == "mamba2":
        projections = {"in_proj": inner + channels + heads}
        small = {"A_log": heads, "D": heads, "dt_bias": heads, "norm.weight": inner}
    else:
        sizes = {
            "in_proj_qkv": channels,
            "in_proj_z": inner,
            "in_proj_b": heads,
            "in_proj_a": heads,
            "in_proj_qkvz": channels + inner,
            "in_proj_ba": 2 * heads,
        }
        projections = {name: sizes[name] for name in family.linear_projections}
        small = {"A_log": heads, "dt_bias": heads, "norm.weight": recurrent.head_dim}
    for name, out in projections.items():
        yield from _linear(module + name, out, hidden, "column", recurrent.projection_bias)
    yield Weight(f"{module}conv1d.weight", (channels, 1, recurrent.conv_kernel), "other")
    if recurrent.conv_bias:
        yield Weight(f"{module}conv1d.bias", (channels,), "other")
    for name, size in small.items():
        yield Weight(module + name, (size,), "norm" if name.startswith("norm") else "other")
    yield from _linear(f"{module}out_proj", hidden, inner, "row", recurrent.projection_bias)
