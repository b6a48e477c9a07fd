"""The mixtures of experts of a config, and which of its layers have one."""

from __future__ import annotations

from collections.abc import Callable

from builder.model.attention import MOST_LAYERS
from builder.model.families import Family
from builder.model.fields import Fields
from builder.model.spec import Experts


def read_experts(fields: Fields, family: Family) -> Experts | None:
    keys = family.experts
    if keys is None or (keys.switch is not None and not fields.flag(keys.switch)):
        return None
    width = fields.count(keys.width)
    shared_count, shared_width = 0, 0
    if keys.shared is not None:
        shared_count = fields.optional_count(keys.shared) or 0
        shared_width = shared_count * width
    if keys.shared_width is not None and (keys.shared is None or shared_count):
        shared_count, shared_width = shared_count or 1, fields.count(keys.shared_width)
    latent = None if keys.latent is None else fields.optional_count(keys.latent)
    count, per_token = fields.count(keys.count, most=1 << 20), fields.count(keys.per_token)
    if per_token > count:
        raise fields.contradiction(f"{fields.key(keys.per_token)} {per_token} is more than the {count} experts")
    return Experts(count, per_token, width, shared_count, shared_width, latent)


def layers_with_experts(fields: Fields, family: Family) -> Callable[[int], bool]:
    rule = family.experts.dense if family.experts else "none"
    if rule == "first":
        first, every = fields.get("first_k_dense_replace"), fields.count("moe_layer_freq", most=MOST_LAYERS)
        if type(first) is not int or first < 0:
            raise fields.wrong("first_k_dense_replace", "a number of layers")
        return lambda number: number >= first and number % every == 0
    if rule == "step":
        step = fields.count("decoder_sparse_step", most=MOST_LAYERS)
        dense = set(_numbers(fields, "mlp_only_layers"))
        return lambda number: number not in dense and (number + 1) % step == 0
    if rule == "interleaved":
        if fields.get("moe_layers") is not None:
            sparse = set(_numbers(fields, "moe_layers"))
            return lambda number: number in sparse
        step = fields.count("interleave_moe_layer_step", most=MOST_LAYERS)
        return lambda number: (number + 1) % step == 0
    return lambda _: True


def _numbers(fields: Fields, name: str) -> list[int]:
    value = fields.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise fields.wrong(name, "a list of layer numbers")
    return value
