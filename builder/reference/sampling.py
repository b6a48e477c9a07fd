"""The choice of the next token, with the meanings of TensorRT-LLM.

Sources: accepted values, cpp/tensorrt_llm/executor/samplingConfig.cpp; order of temperature, penalties and min_tokens,
kernels/penaltyKernels.cu; what an absent top_k or top_p means, layers/topKSamplingLayer.cu. The random numbers are
numpy's, so that a seed gives the same tokens on every machine, but not those of TensorRT-LLM.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from builder.reference.errors import ReferenceModelError
from builder.reference.floats import Float32

_LEAST_TEMPERATURE = 1e-6
"""So that quotients stay finite; TensorRT-LLM adds as much to every temperature but 1."""


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is chosen; ReferenceModelError, naming the parameter, for a value out of range.

    Without top_k and top_p the likeliest token is taken (greedy), as with top_k 1 or temperature 0, whatever else is
    given. The penalties count the prompt's tokens too.
    """

    temperature: float = 1.0
    """≥ 0"""
    top_k: int | None = None
    """Only the k likeliest tokens; 0 means all of them, and then top_p decides."""
    top_p: float | None = None
    """In (0, 1]: of those, only the smallest set of likeliest tokens with at least this probability together."""
    repetition_penalty: float = 1.0
    """> 0; logits of tokens that occurred are divided by it if positive, else multiplied."""
    presence_penalty: float = 0.0
    """Subtracted from the logits of tokens that occurred."""
    frequency_penalty: float = 0.0
    """Subtracted from the logits of tokens that occurred, as many times as they did."""
    min_tokens: int = 0
    """No end token before so many tokens were generated."""
    seed: int = 0
    """Below 2**64"""

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, numbers.Real, lambda value: value >= 0, "at least 0")
        if self.top_k is not None:
            _check("top_k", self.top_k, numbers.Integral, lambda value: value >= 0, "an integer of at least 0")
        if self.top_p is not None:
            _check("top_p", self.top_p, numbers.Real, lambda value: 0 < value <= 1, "above 0 and at most 1")
        _check("repetition_penalty", self.repetition_penalty, numbers.Real, lambda value: value > 0, "above 0")
        _check("presence_penalty", self.presence_penalty, numbers.Real, math.isfinite, "a finite number")
        _check("frequency_penalty", self.frequency_penalty, numbers.Real, math.isfinite, "a finite number")
        _check("min_tokens", self.min_tokens, numbers.Integral, lambda value: value >= 0, "an integer of at least 0")
        _check("seed", self.seed, numbers.Integral, lambda value: 0 <= value < 2**64, "an integer from 0 to 2**64 - 1")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0 or self.top_k == 1 or (not self.top_k and self.top_p is None)

    @property
    def penalises(self) -> bool:
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)


class Sampler:
    """Chooses the tokens of one request; the same parameters, prompt and logits give the same tokens."""

    def __init__(
        self, params: SamplingParams, prompt: npt.ArrayLike, vocab_size: int, end_ids: Collection[int] = ()
    ) -> None:
        """`prompt` are its token ids; `end_ids` are what min_tokens holds back."""
        self.params = params
        self.generated = 0
        self._random = np.random.default_rng(params.seed)
        self._end_ids = list(end_ids)
        ids = np.asarray(prompt, dtype=np.int64)
        known = np.concatenate([ids, self._end_ids]).astype(np.int64)
        if np.any((known < 0) | (known >= vocab_size)):
            raise ReferenceModelError(f"token ids of the prompt and end_ids must be in 0…{vocab_size - 1}")
        self._occurrences = np.bincount(ids, minlength=vocab_size) if params.penalises else None

    def sample(self, logits: Float32) -> int:
        """The next token after `logits` (vocab_size,), which stay as they are."""
        adjusted = self._adjusted(logits)
        token = int(adjusted.argmax()) if self.params.greedy else self._draw(adjusted)
        self.generated += 1
        if self._occurrences is not None:
            self._occurrences[token] += 1
        return token

    def _adjusted(self, logits: Float32) -> npt.NDArray[np.float64]:
        params = self.params
        adjusted = logits.astype(np.float64) / max(params.temperature, _LEAST_TEMPERATURE)
        if self._occurrences is not None:
            seen = np.flatnonzero(self._occurrences)
            values = adjusted[seen]
            values = np.where(values < 0, values * params.repetition_penalty, values / params.repetition_penalty)
            adjusted[seen] = values - params.presence_penalty - params.frequency_penalty * self._occurrences[seen]
        if self.generated < params.min_tokens:
            adjusted[self._end_ids] = -np.inf
        return adjusted

    def _draw(self, logits: npt.NDArray[np.float64]) -> int:
        ids = _largest(logits, self.params.top_k or len(logits))
        weights = np.exp(logits[ids] - logits[ids].max())
        if self.params.top_p is not None and self.params.top_p < 1:
            kept = _nucleus(weights, self.params.top_p)
            ids, weights = ids[kept], weights[kept]
        cumulative = np.cumsum(weights)
        drawn = np.searchsorted(cumulative, self._random.random() * cumulative[-1], side="right")
        return int(ids[min(drawn, len(ids) - 1)])


def _largest(values: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.intp]:
    """The indices of the `count` largest values, ascending; of equal values the first ones."""
    if count >= len(values):
        return np.arange(len(values))
    least = np.partition(values, -count)[-count]
    above = np.flatnonzero(values > least)
    equal = np.flatnonzero(values == least)[: count - len(above)]
    return np.sort(np.concatenate([above, equal]))


def _nucleus(weights: npt.NDArray[np.float64], top_p: float) -> npt.NDArray[np.intp]:
    """The indices, ascending, of the smallest set of largest weights that make up at least `top_p` of their sum."""
    total = weights.sum()
    # Those below this bound make up less than the rest 1 - top_p even together, so they needn't be sorted.
    candidates = weights[weights >= (1 - top_p) * total / len(weights)]
    cumulative = np.cumsum(np.sort(candidates)[::-1])
    return _largest(weights, int(np.searchsorted(cumulative, top_p * total)) + 1)


def _check(name: str, value: Any, kind: type, in_range: Callable[[Any], bool], expected: str) -> None:
    # numpy's scalars, as they come out of tensors, count as numbers too; so does bool, which is surely a mistake
    number = isinstance(value, kind) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not in_range(value):
        raise ReferenceModelError(f"{name} must be {expected}, not {value!r}")
