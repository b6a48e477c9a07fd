"""Confidence intervals for what is measured on windows of a text, whose tokens aren't independent of each other.

Tokens of one window share a context, and neighbouring windows a topic; windows that far apart stretches of the text
fill don't. So neighbours are put together into batches (32 to 63 of them where there are windows enough), and an
interval is computed from the batches' means alone: the method of batch means (Law, Simulation Modeling and Analysis,
5th ed., 9.5.3). Whatever happens inside a batch is then accounted for without a model of it, and the price is small:
Student's t with 31 degrees of freedom is 4 % wider than the normal quantile. A block bootstrap would need a block
length, resamples and a seed, and its percentile interval is too short where there are few blocks.

mean        batch b has the share s_b of the tokens and the mean m_b; m = Σ s_b m_b;
            standard error² = B/(B-1) · Σ s_b² (m_b - m)², the cluster-robust variance, s²/B for equal batches;
            interval m ± t(B-1) · standard error.
proportion  design effect = standard error² / (p(1-p)/n), and n* = n / design effect · (z/t(B-1))², n at most, is the
            effective sample size (Korn and Graubard, Survey Methodology 24, 1998), for which Wilson's interval is
            taken: it keeps its coverage near 0 and 1, and never leaves them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]

CONFIDENCE = 0.95

MIN_WINDOWS = 8
"""Fewer means can't show their own spread: t(6) is a quarter wider than the normal quantile, t(1) six times."""

_BATCHES = 32


@dataclass(frozen=True)
class Interval:
    """An estimate, and the interval that holds the truth in 95 of 100 samples."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True)
class Proportion(Interval):
    """`effective_tokens` independent ones would carry as much as the tokens of the sample do."""

    effective_tokens: float


def mean_interval(window_means: Float64) -> Interval:
    """Of the mean over all tokens; `window_means` (windows,) are of equally many tokens each, in the text's order."""
    mean, error, batches = _clustered(window_means)
    half = t_quantile((1 + CONFIDENCE) / 2, batches - 1) * error
    return Interval(mean, mean - half, mean + half)


def proportion_interval(window_shares: Float64, window_tokens: int) -> Proportion:
    """Of the share of all tokens that have a property; `window_shares` (windows,) of `window_tokens` tokens each.

    Where all have it, or none, the sample doesn't tell how tokens hang together: they count as independent.
    """
    share, error, batches = _clustered(window_shares)
    tokens = float(window_shares.size * window_tokens)
    effective = tokens
    if 0 < share < 1 and error > 0:
        ratio = normal_quantile() / t_quantile((1 + CONFIDENCE) / 2, batches - 1)
        effective = min(tokens, share * (1 - share) / error**2 * ratio**2)
    return Proportion(share, *wilson(share, effective), effective)


def wilson(share: float, count: float) -> tuple[float, float]:
    """Wilson's score interval of a proportion that was seen in `count` independent trials."""
    z2 = normal_quantile() ** 2
    centre = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = math.sqrt(z2 * (share * (1 - share) / count + z2 / (4 * count**2))) / (1 + z2 / count)
    return max(centre - half, 0.0), min(centre + half, 1.0)


def mean_tokens_to_settle(interval: Interval, limit: float, tokens: int) -> float:
    """About how many tokens, in place of `tokens`, put the limit outside the interval: it shrinks as their root."""
    distance = abs(interval.estimate - limit)
    half = (interval.high - interval.low) / 2
    return tokens * (half / distance) ** 2 if distance > 0 else math.inf


def share_tokens_to_settle(proportion: Proportion, limit: float, tokens: int) -> float:
    """As `mean_tokens_to_settle`: Wilson's interval ends where the distance is z standard errors of the limit."""
    distance = abs(proportion.estimate - limit)
    if distance == 0:
        return math.inf
    effective = normal_quantile() ** 2 * limit * (1 - limit) / distance**2
    return tokens * effective / proportion.effective_tokens


def least_tokens_for_share(limit: float) -> float:
    """Tokens below which not even agreement on all of them shows a share above `limit` (below 1)."""
    return normal_quantile() ** 2 * limit / (1 - limit)


def normal_quantile() -> float:
    """How many standard errors the two-sided interval of a normal estimate is wide to each side: 1.95996."""
    return NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


def t_quantile(probability: float, degrees: int) -> float:
    """The quantile of Student's t, for a probability of at least 0.5 and a whole number of degrees of freedom.

    With t = √degrees · tan θ the distribution is a finite sum of powers of cos θ (Abramowitz and Stegun 26.7.3 and
    26.7.4), without an approximation, and grows with θ: bisection finds it as exactly as numbers are held.
    """
    wanted, low, high = 2 * probability - 1, 0.0, math.pi / 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if _inside(middle, degrees) < wanted else (low, middle)
    return math.sqrt(degrees) * math.tan(low)


def _inside(angle: float, degrees: int) -> float:
    """The probability that Student's t is within ±√degrees · tan(angle)."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = degrees % 2
    term = cosine if odd else 1.0
    total = 0.0
    for power in range(odd, degrees - 1, 2):
        total += term
        term *= cosine**2 * (power + 1) / (power + 2)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def _clustered(window_means: Float64) -> tuple[float, float, int]:
    """The mean, its standard error, and the number of batches; ValueError for fewer than two windows."""
    windows = window_means.size
    if windows < 2:
        raise ValueError(f"{windows} windows don't show how they differ")
    batches = np.array_split(window_means, windows // max(windows // _BATCHES, 1))
    shares = np.array([batch.size / windows for batch in batches])
    mean = float(window_means.mean())
    deviations = np.array([batch.mean() for batch in batches]) - mean
    count = len(batches)
    return mean, math.sqrt(count / (count - 1) * float(((shares * deviations) ** 2).sum())), count


def percent(share: float) -> str:
    """A share in words."""
    return f"{100 * share:.2f} %"
