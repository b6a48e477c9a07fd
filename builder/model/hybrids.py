"""Layers that aren't attention and an MLP: Nemotron-H's letters, and states of constant size in place of a cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from builder.errors import SourceError
from builder.model.attention import MOST_LAYERS, head_count, key_value_heads, layer_count, read_attention, read_head_dim
from builder.model.experts import read_experts
from builder.model.families import Family
from builder.model.fields import Fields
from builder.model.spec import Layer, Recurrent, shared

_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""Nemotron-H's hybrid_override_pattern: one letter per layer."""


def one_mixer_per_layer(fields: Fields, family: Family) -> tuple[Layer, ...]:
    """Nemotron-H: each layer is Mamba-2, attention, an MLP, or experts."""
    if fields.get("layers_block_type") is not None:
        kinds, name = fields.texts("layers_block_type"), "layers_block_type"
    else:
        name = "hybrid_override_pattern"
        kinds = [_LETTERS.get(letter, letter) for letter in fields.text(name)]
    if not 0 < len(kinds) <= MOST_LAYERS:
        raise fields.wrong(name, f"1 to {MOST_LAYERS} layers")
    if fields.get("num_hidden_layers") is not None and len(kinds) != layer_count(fields):
        raise fields.contradiction(f"{name} has {len(kinds)} layers, num_hidden_layers is {layer_count(fields)}")
    kinds = ["attention" if kind == "full_attention" else kind for kind in kinds]
    makers: dict[str, Callable[[], Layer]] = {
        "mamba": lambda: Layer(recurrent=_mamba2(fields)),
        "attention": lambda: Layer(
            read_attention(fields, head_count(fields), key_value_heads(fields), read_head_dim(fields), None)
        ),
        "mlp": lambda: Layer(intermediate_size=fields.count("intermediate_size")),
        "moe": lambda: Layer(experts=read_experts(fields, family)),
    }
    if unknown := sorted(set(kinds) - makers.keys()):
        raise unknown_layer(fields, name, unknown)
    layers = {kind: shared(makers[kind]()) for kind in set(kinds)}
    return tuple(layers[kind] for kind in kinds)


def read_gated_delta(fields: Fields) -> Recurrent:
    return Recurrent(
        kind="gated-delta",
        heads=fields.count("linear_num_value_heads"),
        head_dim=fields.count("linear_value_head_dim"),
        state_size=fields.count("linear_key_head_dim"),
        groups=fields.count("linear_num_key_heads"),
        conv_kernel=fields.count("linear_conv_kernel_dim"),
    )


def _mamba2(fields: Fields) -> Recurrent:
    return Recurrent(
        kind="mamba2",
        heads=fields.count("mamba_num_heads"),
        head_dim=fields.count("mamba_head_dim"),
        state_size=fields.count("ssm_state_size"),
        groups=fields.count("n_groups"),
        conv_kernel=fields.count("conv_kernel"),
        conv_bias=fields.flag("use_conv_bias"),
    )


def unknown_layer(fields: Fields, name: str, kinds: Sequence[str]) -> SourceError:
    return SourceError(
        f"{name} names layers that are not known: {', '.join(kinds)}",
        where=fields.where,
        why="a layer of another kind has other weights and another cache",
        code="UNSUPPORTED_LAYER",
    )
