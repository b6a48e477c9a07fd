"""Rotary embeddings: how fast each pair of a head turns, and by how much what is turned grows.

The types and their numbers are those of transformers (src/transformers/modeling_rope_utils.py, v5.24.0), which
TensorRT-LLM's RopeEmbeddingUtils (tensorrt_llm/functional.py) follows: linear, dynamic, llama3, yarn, longrope.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from builder.reference.fields import Fields
from builder.reference.weights import Float32


@dataclass(frozen=True)
class Rope:
    """`dim` is how much of each head is turned. `numbers` are those of the type."""

    base: float
    dim: int
    max_positions: int
    kind: str = "default"
    numbers: Mapping[str, Any] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash((self.base, self.dim, self.kind))

    @property
    def depends_on_length(self) -> bool:
        """Whether a longer sequence turns differently."""
        return self.kind in ("dynamic", "longrope")

    def frequencies(self, length: int) -> tuple[Float32, float]:
        """(dim / 2,) radians per position, and the factor of sines and cosines, for a sequence of `length` tokens."""
        return _KINDS[self.kind](self, length)


def read_rope(fields: Fields, base: float, dim: int, max_positions: int) -> Rope:
    """The rope of `rotary_scaling`. ReferenceModelError for a type or number that isn't known."""
    if fields.table.get("rotary_scaling") is None:
        return Rope(base, dim, max_positions)
    inner = fields.inner("rotary_scaling")
    kinds = {inner.table[key] for key in ("type", "rope_type") if key in inner.table}
    kind = str(kinds.pop()) if len(kinds) == 1 else ""
    if kind not in _NUMBERS:
        listed = ", ".join(_NUMBERS)
        raise inner.error(f"type {kind!r} is not implemented; implemented: {listed}")
    required, optional = _NUMBERS[kind]
    if unknown := inner.table.keys() - {*required, *optional, "type", "rope_type"}:
        raise inner.error(f"the keys {', '.join(sorted(unknown))} are not known")
    numbers: dict[str, Any] = {}
    for name in (*required, *optional):
        if name in required or inner.table.get(name) is not None:
            numbers[name] = _number(inner, name)
    if kind == "llama3" and numbers["low_freq_factor"] >= numbers["high_freq_factor"]:
        raise inner.error("low_freq_factor must be below high_freq_factor")
    for name in ("short_factor", "long_factor"):
        if len(numbers.get(name, ())) not in (0, dim // 2):
            raise inner.error(f"{name} must have {dim // 2} numbers")
    return Rope(base, dim, max_positions, kind, numbers)


_ORIGINAL = "original_max_position_embeddings"

_NUMBERS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "linear": (("factor",), ()),
    "dynamic": (("factor",), (_ORIGINAL,)),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor", _ORIGINAL), ()),
    "yarn": (
        ("factor",),
        (_ORIGINAL, "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    ),
    "longrope": (("short_factor", "long_factor", _ORIGINAL), ("factor", "attention_factor")),
}
"""What each type must say, and what it may say."""


def _number(fields: Fields, name: str) -> Any:
    if name == _ORIGINAL:
        return fields.integer(name)
    if name == "truncate":
        return fields.boolean(name)
    return fields.numbers(name) if name.endswith(("short_factor", "long_factor")) else fields.number(name)


def _plain(base: float, dim: int) -> npt.NDArray[np.float64]:
    return np.asarray(1 / base ** (np.arange(0, dim, 2) / dim))


def _default(rope: Rope, _: int) -> tuple[Float32, float]:
    return _plain(rope.base, rope.dim).astype(np.float32), 1.0


def _linear(rope: Rope, _: int) -> tuple[Float32, float]:
    return _plain(rope.base, rope.dim).astype(np.float32) / np.float32(rope.numbers["factor"]), 1.0


def _dynamic(rope: Rope, length: int) -> tuple[Float32, float]:
    """NTK: the base grows with what is longer than the model was trained for."""
    factor, original = rope.numbers["factor"], rope.numbers.get(_ORIGINAL, rope.max_positions)
    growth = factor * max(length, original) / original - (factor - 1)
    return _plain(rope.base * growth ** (rope.dim / (rope.dim - 2)), rope.dim).astype(np.float32), 1.0


def _llama3(rope: Rope, _: int) -> tuple[Float32, float]:
    """Long wavelengths divided by the factor, short ones left, those between interpolated (Llama 3.1)."""
    numbers = rope.numbers
    frequencies = _plain(rope.base, rope.dim).astype(np.float32)
    # turns that a frequency makes over the original context, placed between the two factors: 0 = long, 1 = short wave
    turns = numbers[_ORIGINAL] * frequencies.astype(np.float64) / (2 * math.pi)
    share = (turns - numbers["low_freq_factor"]) / (numbers["high_freq_factor"] - numbers["low_freq_factor"])
    smooth = np.clip(share, 0, 1)
    return (frequencies * ((1 - smooth) / numbers["factor"] + smooth)).astype(np.float32), 1.0


def _yarn(rope: Rope, _: int) -> tuple[Float32, float]:
    """Slow pairs divided by the factor, fast ones left, a ramp between them (arXiv:2309.00071)."""
    numbers, factor = rope.numbers, rope.numbers["factor"]
    original = numbers.get(_ORIGINAL, rope.max_positions)

    def dimension(turns: float) -> float:
        return rope.dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(rope.base))

    low, high = dimension(numbers.get("beta_fast", 32.0)), dimension(numbers.get("beta_slow", 1.0))
    if numbers.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    ramp = np.clip((np.arange(rope.dim // 2) - low) / max(high - low, 0.001), 0, 1)
    plain = _plain(rope.base, rope.dim)
    return (plain / factor * ramp + plain * (1 - ramp)).astype(np.float32), _yarn_magnitude(numbers, factor)


def _yarn_magnitude(numbers: Mapping[str, Any], factor: float) -> float:
    def grown(mscale: float) -> float:
        return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0

    if "attention_factor" in numbers:
        return float(numbers["attention_factor"])
    if "mscale" in numbers and "mscale_all_dim" in numbers:
        return grown(numbers["mscale"]) / grown(numbers["mscale_all_dim"])
    return grown(1.0)


def _longrope(rope: Rope, length: int) -> tuple[Float32, float]:
    """Every pair has its own factor: one list for sequences within the original context, one beyond it."""
    numbers = rope.numbers
    original = numbers[_ORIGINAL]
    factors = np.asarray(numbers["long_factor" if length > original else "short_factor"], dtype=np.float32)
    factor = numbers.get("factor", rope.max_positions / original)
    magnitude = numbers.get("attention_factor")
    if magnitude is None:
        magnitude = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return (_plain(rope.base, rope.dim).astype(np.float32) / factors).astype(np.float32), float(magnitude)


_KINDS: Mapping[str, Callable[[Rope, int], tuple[Float32, float]]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
