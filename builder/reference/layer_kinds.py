"""What differs from layer to layer: how far attention sees, which rotary embedding it has, dense or experts."""

from __future__ import annotations

from dataclasses import dataclass

from builder.reference.families import Family
from builder.reference.fields import Fields

_UNUSED_BY_MODE = {
    # of TensorRT-LLM's MoeConfig: they belong to other values of normalization_mode
    "sparse_mixer_epsilon",
    "device_limited_n_group",
    "device_limited_topk_group",
    "device_limited_routed_scaling_factor",
}


@dataclass(frozen=True)
class Experts:
    """A mixture of experts: how many there are, how many a token uses, and whether their weights sum up to 1.

    `dense_layers` have one MLP instead.
    """

    count: int
    per_token: int
    normalized: bool
    intermediate_size: int
    dense_layers: frozenset[int]


def read_windows(fields: Fields, layers: int) -> tuple[int | None, ...]:
    """How many tokens each layer sees, the newest included; None: all.

    They are in `runtime_defaults.max_attention_window`, which TensorRT-LLM's runtime repeats for all layers. Without
    it, Gemma-3 says so itself.
    """
    defaults = fields.inner("runtime_defaults")
    defaults.refuse_unknown({"max_attention_window"})
    listed = defaults.table.get("max_attention_window")
    if listed is not None:
        if not isinstance(listed, list) or not listed or not all(type(item) is int and item > 0 for item in listed):
            raise defaults.error("max_attention_window must be a list of numbers of tokens")
        positions = fields.integer("max_position_embeddings")
        windows = [listed[layer % len(listed)] for layer in range(layers)]
        return tuple(window if window < positions else None for window in windows)
    local = read_local_layers(fields, layers)
    return tuple(fields.integer("sliding_window") if layer in local else None for layer in range(layers))


def read_local_layers(fields: Fields, layers: int) -> frozenset[int]:
    """The layers whose rotary embedding is that of `rope_local_base_freq`: all but every nth (Gemma-3)."""
    if fields.table.get("_sliding_window_pattern") is None:
        return frozenset()
    pattern = fields.integer("_sliding_window_pattern")
    return frozenset(layer for layer in range(layers) if (layer + 1) % pattern)


def read_experts(fields: Fields, family: Family, layers: int) -> Experts | None:
    moe = fields.inner("moe")
    if moe.table.get("num_experts", 0) == 0 and not family.experts:
        return None
    if not family.experts:
        raise fields.error(f"a mixture of experts (moe) is not implemented for {fields.table['architecture']}")
    if shared := moe.table.get("shared_expert_intermediate_size"):
        raise moe.error(f"shared_expert_intermediate_size {shared!r} is not implemented")
    read = {"num_experts", "top_k", "normalization_mode", "shared_expert_intermediate_size"}
    moe.refuse_unknown(read | _UNUSED_BY_MODE)
    count, per_token = moe.integer("num_experts"), moe.integer("top_k")
    if per_token > count:
        raise moe.error(f"top_k {per_token} is more than num_experts {count}")
    mode = moe.table.get("normalization_mode", 1)
    if mode not in (0, 1):
        raise moe.error(f"normalization_mode {mode!r} is not implemented; implemented: 0 (none), 1 (renormalise)")
    width = fields.integer("moe_intermediate_size" if family.qwen_type else "intermediate_size")
    step, listed = fields.integer("decoder_sparse_step", 1), fields.table.get("mlp_only_layers") or []
    if not isinstance(listed, list) or not all(type(layer) is int and 0 <= layer < layers for layer in listed):
        raise fields.error(f"mlp_only_layers must be a list of layers, from 0 to {layers - 1}")
    dense = frozenset(layer for layer in range(layers) if layer in listed or (layer + 1) % step)
    return Experts(count, per_token, mode == 1, width, dense)
