"""Rotary embeddings: all spellings of `rope_theta`, `rope_scaling` and transformers 5's `rope_parameters`.

What isn't known is refused: a rope that is ignored gives a model that is wrong beyond its first few thousand tokens.
Types and their numbers: huggingface/transformers, src/transformers/modeling_rope_utils.py (v5.24.0); "su" is what
Phi-3's first configs call longrope, and "mrope" what Qwen2-VL's call a default rope over three axes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from builder.errors import SourceError
from builder.model.families import Family
from builder.model.fields import Fields, is_positive
from builder.model.spec import Rope

_NUMBERS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "default": ((), ()),
    "linear": (("factor",), ()),
    "dynamic": (("factor",), ("original_max_position_embeddings",)),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"), ()),
    "yarn": (
        ("factor",),
        (
            "original_max_position_embeddings",
            "attention_factor",
            "beta_fast",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
            "truncate",
            "llama_4_scaling_beta",
        ),
    ),
    "longrope": (
        ("short_factor", "long_factor", "original_max_position_embeddings"),
        ("factor", "attention_factor", "short_mscale", "long_mscale"),
    ),
    "mrope": (("mrope_section",), ("mrope_interleaved",)),
    "proportional": ((), ("factor",)),
}
"""What each type must say, and what it may say."""

_SYNONYMS = {"su": "longrope"}
_LISTS = {"short_factor", "long_factor", "mrope_section"}
_FLAGS = {"truncate", "mrope_interleaved"}
_LENGTHS = {"original_max_position_embeddings"}
_ELSEWHERE = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}

LAYER_TYPES = ("full_attention", "sliding_attention", "chunked_attention")


def read_ropes(fields: Fields, family: Family, rotary_dims: Mapping[str, int]) -> dict[str, Rope | None]:
    """The rope of every type of layer in `rotary_dims`, which tells how wide heads are there.

    Raises SourceError: UNSUPPORTED_ROPE for what isn't known, CONFIG_FIELD, CONFIG_CONTRADICTION.
    """
    if not family.rotary:
        return dict.fromkeys(rotary_dims)
    parts = [part for name in ("rope_parameters", "rope_scaling") if (part := fields.inner(name)) is not None]
    nested = next((part for part in parts if part.config and set(part.config) <= set(LAYER_TYPES)), None)
    ropes: dict[str, Rope | None] = {}
    for kind, dim in rotary_dims.items():
        if nested is not None:
            inner = nested.inner(kind)
            if inner is None:
                raise nested.wrong(kind, "an object")
            ropes[kind] = _checked(fields, _rope(fields, [inner], alone=True), dim)
        elif family.local_rope_theta is not None and kind == "sliding_attention":
            ropes[kind] = Rope(fields.positive(family.local_rope_theta), "default")
        else:
            ropes[kind] = _checked(fields, _rope(fields, parts), dim)
    return ropes


def tensorrt_llm_scaling(rope: Rope | None) -> dict[str, Any] | None:
    """The rope as a TensorRT-LLM checkpoint's `rotary_scaling`, where there is no "default"."""
    return None if rope is None or rope.type == "default" else {"type": rope.type, **rope.scaling}


def _rope(fields: Fields, parts: list[Fields], *, alone: bool = False) -> Rope:
    """`parts` are objects that describe the same rope: they, and the keys beside them, mustn't differ."""
    around = [] if alone else [fields]
    thetas = {part.positive("rope_theta") for part in (*around, *parts) if part.config.get("rope_theta") is not None}
    shares = {_share(part) for part in (*around, *parts) if part.get("partial_rotary_factor") is not None} or {1.0}
    scalings = [_scaling(part, fields) for part in parts]
    if len(thetas) > 1 or len(shares) > 1 or any(scaling != scalings[0] for scaling in scalings):
        raise fields.contradiction("rope_theta, rope_parameters and rope_scaling differ")
    theta = thetas.pop() if thetas else fields.positive("rope_theta")
    kind, numbers = scalings[0] if scalings else ("default", {})
    return Rope(theta, kind, numbers, shares.pop())


def _share(fields: Fields) -> float:
    value = fields.positive("partial_rotary_factor")
    if value > 1:
        raise fields.wrong("partial_rotary_factor", "a number from 0 to 1")
    return value


def _scaling(part: Fields, around: Fields) -> tuple[str, dict[str, Any]]:
    kind = _kind(part)
    if kind not in _NUMBERS:
        raise _unknown(part, f"the rope type {kind!r}")
    required, optional = _NUMBERS[kind]
    known = {*required, *optional} | _ELSEWHERE
    if strangers := sorted(name for name in part.config if name not in known and part.get(name) is not None):
        raise _unknown(part, f"{', '.join(strangers)} for the rope type {kind}")
    numbers = {}
    for name in (*required, *optional):
        source = around if name in _LENGTHS and part.get(name) is None and kind == "longrope" else part
        if name in required or source.get(name) is not None:
            numbers[name] = _number(source, name)
    if kind == "llama3" and numbers["low_freq_factor"] > numbers["high_freq_factor"]:
        raise part.contradiction("low_freq_factor must be below high_freq_factor")
    return kind, numbers


def _kind(part: Fields) -> str:
    kinds = {part.text(name) for name in ("rope_type", "type") if part.get(name) is not None} or {"default"}
    kinds = {_SYNONYMS.get(kind, kind) for kind in kinds}
    if part.get("mrope_section") is not None:
        kinds = kinds - {"default"} | {"mrope"}
    if len(kinds) > 1:
        raise part.contradiction(f"type and rope_type differ: {', '.join(sorted(kinds))}")
    return kinds.pop()


def _number(part: Fields, name: str) -> Any:
    if name in _LENGTHS:
        return part.count(name)
    if name in _FLAGS:
        return part.flag(name)
    if name not in _LISTS:
        return part.positive(name)
    values = part.get(name)
    if not isinstance(values, list) or not values or not all(map(is_positive, values)):
        raise part.wrong(name, "a list of numbers above 0")
    return tuple(values)


def _checked(fields: Fields, rope: Rope, rotary_dim: int) -> Rope:
    """A rope whose lists fit the pairs that are turned: one factor for each, or sections that sum up to them."""
    pairs = int(rotary_dim * rope.partial_factor) // 2
    for name in ("short_factor", "long_factor"):
        if name in rope.scaling and len(rope.scaling[name]) != pairs:
            raise fields.contradiction(f"{name} has {len(rope.scaling[name])} numbers, but {pairs} pairs are turned")
    if "mrope_section" in rope.scaling and sum(rope.scaling["mrope_section"]) != pairs:
        raise fields.contradiction(f"mrope_section is {rope.scaling['mrope_section']}, but {pairs} pairs are turned")
    return rope


def _unknown(fields: Fields, what: str) -> SourceError:
    return SourceError(
        f"a rotary embedding with {what} is not supported",
        where=fields.where,
        why=f"supported rope types: {', '.join(_NUMBERS)}",
        code="UNSUPPORTED_ROPE",
    )
