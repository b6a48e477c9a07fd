"""The gated MLP, and the choice among several of them: a mixture of experts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from builder.reference.floats import Float32
from builder.reference.linear import Linear


@dataclass(frozen=True)
class GatedMlp:
    """proj(activation(fc(x)) · gate(x)), or a rank's part of it: `fc_gate` is both in one product, fc first."""

    fc_gate: Linear
    proj: Linear
    activation: Callable[[Float32], Float32]

    def __call__(self, x: Float32) -> Float32:
        fc, gate = np.split(self.fc_gate(x), 2, axis=1)
        return self.proj(self.activation(fc) * gate)


@dataclass(frozen=True)
class Router:
    """Sends each token to its `per_token` likeliest experts; of equal ones to the first."""

    linear: Linear
    per_token: int
    normalized: bool

    def __call__(self, x: Float32) -> Float32:
        """(rows, hidden) → (rows, experts): what each expert's result is multiplied with, zero for most.

        The softmax of all scores or, normalised, that of the chosen ones (default_routing and renormalize in
        tensorrt_llm/layers/moe.py).
        """
        scores = self.linear(x)
        likelihoods = np.exp(scores - scores.max(axis=1, keepdims=True))
        chosen = np.argsort(-scores, axis=1, kind="stable")[:, : self.per_token]
        shares: Float32 = np.zeros_like(likelihoods)
        np.put_along_axis(shares, chosen, np.take_along_axis(likelihoods, chosen, axis=1), axis=1)
        shares /= (shares if self.normalized else likelihoods).sum(axis=1, keepdims=True)
        return shares


def mixture(x: Float32, shares: Float32, experts: Sequence[tuple[int, GatedMlp]]) -> Float32:
    """The sum, for each row, of what its experts make of it; `experts` may be some of all, with their numbers."""
    total = np.zeros_like(x)
    for number, expert in experts:
        rows = np.flatnonzero(shares[:, number])
        if len(rows):
            total[rows] += shares[rows, number, None] * expert(x[rows])
    return total
