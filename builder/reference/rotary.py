"""Rotary embeddings: read from config.json, and applied to queries and keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from builder.reference.fields import Fields
from builder.reference.floats import Float32
from builder.reference.rope_scaling import (
    NO_SCALING,
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Scaling,
    YarnScaling,
)

_ORIGINAL = "original_max_position_embeddings"


@dataclass(frozen=True)
class Rope:
    """`dim` is how many elements of each head are turned."""

    base: float
    dim: int
    scaling: Scaling = NO_SCALING

    @cached_property
    def _fixed(self) -> Float32:
        return self.scaling.frequencies(self.base, self.dim, 0)

    def frequencies(self, length: int) -> Float32:
        """(dim / 2,) radians per position in a sequence of `length` tokens."""
        if self.scaling.depends_on_length:
            return self.scaling.frequencies(self.base, self.dim, length)
        return self._fixed


class RotaryAngles:
    """rope_gpt_neox: of what is turned of a head, element i of the first half turns with element i of the second."""

    def __init__(self, rope: Rope, spans: Sequence[tuple[npt.NDArray[np.int64], int]]) -> None:
        """For rows packed behind each other: of each sequence, their positions and how long it becomes."""
        self._dim = rope.dim
        positions = np.concatenate([rows for rows, _ in spans]).astype(np.float32)[:, None, None]
        if rope.scaling.depends_on_length:
            frequencies = np.concatenate([[rope.frequencies(length)] * len(rows) for rows, length in spans])
            angles = positions * frequencies[:, None]
        else:
            angles = positions * rope.frequencies(0)
        self._cos, self._sin = np.cos(angles), np.sin(angles)
        if rope.scaling.amplitude != 1:
            self._cos *= np.float32(rope.scaling.amplitude)
            self._sin *= np.float32(rope.scaling.amplitude)

    def rotate(self, heads: Float32) -> None:
        """Turn (rows, heads, head_size) in place; row i stands at positions[i]."""
        first, second = np.split(heads[..., : self._dim], 2, axis=2)
        turned = first * self._cos - second * self._sin
        second *= self._cos
        second += first * self._sin
        first[:] = turned


def read_rope(fields: Fields, base: float, dim: int) -> Rope:
    """The rope of `rotary_scaling`. ReferenceModelError for a type or number that isn't known.

    Phi-3 says longrope in keys of TensorRT-LLM's own as well, or instead.
    """
    embedding = fields.choice("position_embedding_type", ("rope_gpt_neox", "long_rope"), default="learned_absolute")
    if fields.table.get("rotary_scaling") is not None:
        scaling = _read_scaling(fields)
    elif fields.table.get("longrope_scaling_short_factors") is not None:
        scaling = _own_longrope(fields)
    else:
        scaling = NO_SCALING
    if isinstance(scaling, LongRopeScaling):
        for name, factors in (("short_factor", scaling.short_factors), ("long_factor", scaling.long_factors)):
            if len(factors) != dim // 2:
                raise fields.error(f"rotary_scaling: {name} must have {dim // 2} numbers")
        _check_own_longrope(fields, scaling)
    elif embedding == "long_rope":
        raise fields.error("position_embedding_type long_rope needs the factors of longrope")
    return Rope(base, dim, scaling)


def _read_scaling(fields: Fields) -> Scaling:
    inner = fields.inner("rotary_scaling")
    kinds = [inner.table[key] for key in ("type", "rope_type") if key in inner.table] or [None]
    kind = kinds[0]
    if not isinstance(kind, str) or kind not in _SCALINGS or kinds[-1] != kind:
        raise inner.error(
            f"type {' and '.join(map(repr, kinds))} is not implemented; implemented: {', '.join(_SCALINGS)}"
        )
    read, names = _SCALINGS[kind]
    if unknown := inner.table.keys() - {*names, "type", "rope_type"}:
        raise inner.error(f"the keys {', '.join(sorted(unknown))} are not known")
    return read(inner, fields)


def _linear(inner: Fields, _: Fields) -> Scaling:
    return LinearScaling(inner.number("factor"))


def _dynamic(inner: Fields, model: Fields) -> Scaling:
    return DynamicScaling(inner.number("factor"), model.integer("max_position_embeddings"))


def _llama3(inner: Fields, _: Fields) -> Scaling:
    scaling = Llama3Scaling(
        factor=inner.number("factor"),
        low_freq_factor=inner.number("low_freq_factor"),
        high_freq_factor=inner.number("high_freq_factor"),
        original_positions=inner.integer(_ORIGINAL),
    )
    if scaling.low_freq_factor >= scaling.high_freq_factor:
        raise inner.error("low_freq_factor must be below high_freq_factor")
    return scaling


def _yarn(inner: Fields, model: Fields) -> Scaling:
    original, factor = inner.optional_integer(_ORIGINAL), inner.optional_number("factor")
    original = original or model.integer("max_position_embeddings")
    mscale, all_dim = inner.optional_number("mscale"), inner.optional_number("mscale_all_dim")
    return YarnScaling(
        factor=factor or model.integer("max_position_embeddings") / original,
        original_positions=original,
        beta_fast=inner.number("beta_fast", YarnScaling.beta_fast),
        beta_slow=inner.number("beta_slow", YarnScaling.beta_slow),
        truncate=inner.boolean("truncate", YarnScaling.truncate),
        attention_factor=inner.optional_number("attention_factor"),
        mscales=(mscale, all_dim) if mscale is not None and all_dim is not None else None,
    )


def _longrope(inner: Fields, model: Fields) -> Scaling:
    original = inner.integer(_ORIGINAL)
    return LongRopeScaling(
        short_factors=inner.numbers("short_factor"),
        long_factors=inner.numbers("long_factor"),
        original_positions=original,
        factor=inner.optional_number("factor") or model.integer("max_position_embeddings") / original,
        attention_factor=inner.optional_number("attention_factor"),
    )


_SCALINGS: Mapping[str, tuple[Callable[[Fields, Fields], Scaling], tuple[str, ...]]] = {
    "linear": (_linear, ("factor",)),
    # transformers reads the model's max_position_embeddings instead of the original one
    "dynamic": (_dynamic, ("factor", _ORIGINAL)),
    "llama3": (_llama3, ("factor", "low_freq_factor", "high_freq_factor", _ORIGINAL)),
    "yarn": (
        _yarn,
        (
            "factor",
            _ORIGINAL,
            "attention_factor",
            "beta_fast",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
            "truncate",
        ),
    ),
    "longrope": (_longrope, ("short_factor", "long_factor", _ORIGINAL, "factor", "attention_factor")),
}
"""Type → how it is read, and the numbers that it may have."""


def _own_longrope(fields: Fields) -> Scaling:
    original = fields.integer(_ORIGINAL)
    return LongRopeScaling(
        short_factors=fields.numbers("longrope_scaling_short_factors"),
        long_factors=fields.numbers("longrope_scaling_long_factors"),
        original_positions=original,
        factor=fields.integer("max_position_embeddings") / original,
    )


def _check_own_longrope(fields: Fields, scaling: LongRopeScaling) -> None:
    """What TensorRT-LLM reads must be what rotary_scaling says."""
    said = {
        "longrope_scaling_short_factors": list(scaling.short_factors),
        "longrope_scaling_long_factors": list(scaling.long_factors),
        _ORIGINAL: scaling.original_positions,
    }
    for key, value in said.items():
        if fields.table.get(key, value) != value:
            raise fields.error(f"{key} contradicts rotary_scaling")
