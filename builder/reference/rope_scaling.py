"""How rotary embeddings are stretched for sequences that are longer than those of the pretraining.

Each scaling does what transformers does (src/transformers/modeling_rope_utils.py, v5.24.0): a token is turned as the
length that the sequence has with it demands. TensorRT-LLM's engines do the same for linear and llama3
(RopeEmbeddingUtils in tensorrt_llm/functional.py). Of longrope they take the long factors if the longest prompt of the
batch exceeds the original context, and keep to that for the answers (useLongRoPECache in gptAttentionPlugin.cpp).
yarn they don't stretch like this: create_attention_const_params (layers/attention.py) has no formula for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from builder.reference.floats import Float32


def unscaled(base: float, dim: int) -> Float32:
    """(dim / 2,) radians per position."""
    return (1 / base ** (np.arange(0, dim, 2) / dim)).astype(np.float32)


@dataclass(frozen=True)
class Scaling:
    """None; the others change it. `amplitude` is what sines and cosines are multiplied with."""

    depends_on_length: ClassVar[bool] = False

    @property
    def amplitude(self) -> float:
        return 1.0

    def frequencies(self, base: float, dim: int, length: int) -> Float32:
        """(dim / 2,) radians per position in a sequence of `length` tokens."""
        return unscaled(base, dim)


NO_SCALING = Scaling()


@dataclass(frozen=True)
class LinearScaling(Scaling):
    """All positions divided by `factor`."""

    factor: float

    def frequencies(self, base: float, dim: int, length: int) -> Float32:
        return unscaled(base, dim) / np.float32(self.factor)


@dataclass(frozen=True)
class Llama3Scaling(Scaling):
    """Long wavelengths divided by `factor`, short ones left, those between interpolated (Llama 3.1)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_positions: int

    def frequencies(self, base: float, dim: int, length: int) -> Float32:
        frequencies = unscaled(base, dim)
        # turns that a frequency makes over the original context, placed between the two factors: 0 = long, 1 = short
        turns = self.original_positions * frequencies.astype(np.float64) / (2 * math.pi)
        smooth = np.clip((turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor), 0, 1)
        return (frequencies * ((1 - smooth) / self.factor + smooth)).astype(np.float32)


@dataclass(frozen=True)
class DynamicScaling(Scaling):
    """NTK: the base grows with what a sequence is longer than `positions`."""

    depends_on_length: ClassVar[bool] = True

    factor: float
    positions: int

    def frequencies(self, base: float, dim: int, length: int) -> Float32:
        growth = self.factor * max(length, self.positions) / self.positions - (self.factor - 1)
        return unscaled(base * growth ** (dim / (dim - 2)), dim)


@dataclass(frozen=True)
class YarnScaling(Scaling):
    """Slow pairs divided by `factor`, fast ones left, a ramp between them (arXiv:2309.00071).

    The ramp is between the pairs that make `beta_fast` and `beta_slow` turns over the original context, rounded
    outwards to whole pairs if it is to `truncate`.
    """

    factor: float
    original_positions: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    mscales: tuple[float, float] | None = None

    @property
    def amplitude(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscales is None:
            return self._magnitude(1.0)
        return self._magnitude(self.mscales[0]) / self._magnitude(self.mscales[1])

    def _magnitude(self, mscale: float) -> float:
        return 0.1 * mscale * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0

    def frequencies(self, base: float, dim: int, length: int) -> Float32:
        def pair(turns: float) -> float:
            return dim * math.log(self.original_positions / (turns * 2 * math.pi)) / (2 * math.log(base))

        low, high = pair(self.beta_fast), pair(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        if low == high:
            high += 0.001
        slow = np.clip((np.arange(dim // 2) - low) / (high - low), 0, 1)
        return (unscaled(base, dim) * (slow / self.factor + (1 - slow))).astype(np.float32)


@dataclass(frozen=True)
class LongRopeScaling(Scaling):
    """Every pair has its own factor: one of two lists, for sequences within the original context and beyond it.

    `factor`: how many times the original context is stretched.
    """

    depends_on_length: ClassVar[bool] = True

    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    original_positions: int
    factor: float
    attention_factor: float | None = None

    @property
    def amplitude(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        return math.sqrt(1 + math.log(self.factor) / math.log(self.original_positions)) if self.factor > 1 else 1.0

    def frequencies(self, base: float, dim: int, length: int) -> Float32:
        factors = self.long_factors if length > self.original_positions else self.short_factors
        return unscaled(base, dim) / np.asarray(factors, dtype=np.float32)
