"""The layers that a config describes: which kind each is, and how wide."""

from __future__ import annotations

from collections.abc import Callable

from builder.model.attention import MOST_LAYERS, layer_count, read_attentions, read_window
from builder.model.blocks import read_blocks
from builder.model.experts import layers_with_experts, read_experts
from builder.model.families import Family
from builder.model.fields import Fields
from builder.model.hybrids import one_mixer_per_layer, read_gated_delta, unknown_layer
from builder.model.spec import Layer, shared

_SPELLINGS = {"attention": "full_attention", "full": "full_attention", "sliding": "sliding_attention"}


def read_layers(fields: Fields, family: Family) -> tuple[Layer, ...]:
    """One record per layer; equal layers are the same object."""
    if family.hybrid == "blocks":
        return read_blocks(fields, family)
    if family.hybrid == "pattern":
        return one_mixer_per_layer(fields, family)
    kinds = _kinds(fields, family)
    attentions = read_attentions(fields, family, dict.fromkeys(kinds))
    dense, experts = _dense_width(fields, family), read_experts(fields, family)
    has_experts = layers_with_experts(fields, family) if experts else lambda _: False
    beside = family.experts is not None and family.experts.dense == "beside"
    linear = read_gated_delta(fields) if "linear_attention" in kinds else None
    layers = []
    for number, kind in enumerate(kinds):
        mixture = experts if has_experts(number) else None
        if mixture is None and dense is None:
            raise fields.wrong("intermediate_size", "the width of the layers that have no experts")
        width = dense if mixture is None or beside else None
        layers.append(shared(Layer(attentions.get(kind), width, mixture, linear if kind not in attentions else None)))
    return tuple(layers)


def _kinds(fields: Fields, family: Family) -> list[str]:
    """full_attention, sliding_attention, chunked_attention or linear_attention for every layer."""
    count = layer_count(fields)
    allowed = {"full_attention", "linear_attention" if family.hybrid == "linear" else "full_attention"}
    window = read_window(fields, family)
    if family.windows != "none":
        allowed.add("chunked_attention" if family.windows == "chunked" else "sliding_attention")
    same = family.windows == "none" and family.hybrid is None
    if fields.get("layer_types") is not None and not same:
        kinds = [_SPELLINGS.get(kind, kind) for kind in fields.texts("layer_types")]
        if len(kinds) != count:
            raise fields.contradiction(f"layer_types has {len(kinds)} entries, num_hidden_layers is {count}")
        if unknown := sorted(set(kinds) - allowed):
            raise unknown_layer(fields, "layer_types", unknown)
    else:
        rule = _rule(fields, family)
        kinds = [rule(number) for number in range(count)]
    if window is None:
        return ["full_attention" if kind.startswith(("sliding", "chunked")) else kind for kind in kinds]
    return kinds


def _rule(fields: Fields, family: Family) -> Callable[[int], str]:
    """What transformers puts into `layer_types` where a config has none."""
    if family.hybrid == "linear":
        interval = fields.count("full_attention_interval", most=MOST_LAYERS)
        return lambda number: "linear_attention" if (number + 1) % interval else "full_attention"
    if family.windows == "chunked":
        return _chunks(fields)
    if family.windows == "last":
        first = fields.count("max_window_layers") if read_window(fields, family) else MOST_LAYERS
        return lambda number: "sliding_attention" if number >= first else "full_attention"
    if isinstance(family.windows, dict):
        every = family.windows.get("every") or fields.count(family.windows["key"], most=MOST_LAYERS)
        return lambda number: "sliding_attention" if (number + 1) % every else "full_attention"
    kind = "full_attention" if family.windows == "none" else "sliding_attention"
    return lambda _: kind


def _chunks(fields: Fields) -> Callable[[int], str]:
    """Llama-4: layers with rotary embeddings are chunked; `no_rope_layers` has a 1 for each of them."""
    turned = fields.get("no_rope_layers")
    if turned:
        if (
            not isinstance(turned, list)
            or len(turned) != layer_count(fields)
            or any(one not in (0, 1) for one in turned)
        ):
            raise fields.wrong("no_rope_layers", "a list of 0 and 1, one for each layer")
        return lambda number: "chunked_attention" if turned[number] else "full_attention"
    interval = fields.count("no_rope_layer_interval", most=MOST_LAYERS)
    return lambda number: "chunked_attention" if (number + 1) % interval else "full_attention"


def _dense_width(fields: Fields, family: Family) -> int | None:
    """The width of dense layers; families without any needn't have it."""
    if fields.get("intermediate_size") is None and family.default_mlp_ratio is not None:
        return family.default_mlp_ratio * fields.count("hidden_size")
    if family.experts is not None and family.experts.dense != "beside" and not fields.given("intermediate_size"):
        return None
    return fields.count("intermediate_size")
