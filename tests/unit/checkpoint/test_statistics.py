import math

import numpy as np
import pytest

from builder.checkpoint.statistics import (
    Interval,
    Proportion,
    least_tokens_for_share,
    mean_interval,
    mean_tokens_to_settle,
    normal_quantile,
    proportion_interval,
    share_tokens_to_settle,
    t_quantile,
    wilson,
)

DATA_SETS = 2000


@pytest.mark.parametrize(
    ("probability", "degrees", "published"),
    [
        (0.975, 1, 12.7062047),
        (0.975, 2, 4.3026527),
        (0.975, 3, 3.1824463),
        (0.975, 4, 2.7764451),
        (0.975, 5, 2.5705818),
        (0.975, 7, 2.3646243),
        (0.975, 10, 2.2281389),
        (0.975, 30, 2.0422725),
        (0.975, 60, 2.0002978),
        (0.975, 120, 1.9799304),
        (0.95, 1, 6.3137515),
        (0.95, 2, 2.9199856),
        (0.995, 10, 3.1692727),
        (0.995, 30, 2.7499957),
    ],
)
def test_the_quantiles_of_students_t_are_those_of_the_tables(
    probability: float, degrees: int, published: float
) -> None:
    assert t_quantile(probability, degrees) == pytest.approx(published, abs=1e-6)


@pytest.mark.parametrize("probability", [0.5, 0.6, 0.9, 0.975, 0.9995])
def test_one_and_two_degrees_of_freedom_have_quantiles_in_closed_form(probability: float) -> None:
    assert t_quantile(probability, 1) == pytest.approx(math.tan(math.pi * (probability - 0.5)), rel=1e-9, abs=1e-12)
    two = (2 * probability - 1) / math.sqrt(2 * probability * (1 - probability))
    assert t_quantile(probability, 2) == pytest.approx(two, rel=1e-9, abs=1e-12)


def test_students_t_becomes_the_normal_distribution() -> None:
    assert t_quantile(0.975, 100_000) == pytest.approx(normal_quantile(), abs=5e-5)
    assert normal_quantile() == pytest.approx(1.959963985, abs=1e-9)


@pytest.mark.parametrize(
    ("successes", "count", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilsons_interval_is_that_of_newcombes_examples(successes: int, count: int, low: float, high: float) -> None:
    # R. G. Newcombe, Statistics in Medicine 17 (1998), table I, method 3
    assert wilson(successes / count, count) == pytest.approx((low, high), abs=5e-5)


def test_the_interval_of_independent_windows_is_students() -> None:
    # the differences of Student's own sleep data (Biometrika 6, 1908): 1.58 ± 2.2622 · 1.2299 / √10
    interval = mean_interval(np.array([1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4]))
    assert (interval.estimate, interval.low, interval.high) == pytest.approx((1.58, 0.7001142, 2.4598858), abs=1e-6)


def correlated_tokens(random: np.random.Generator, windows: int, tokens: int, between: float) -> np.ndarray:
    """Skewed values with mean 0, correlated from token to token, in windows that differ by `between`."""
    noise = random.exponential(1.0, (windows, tokens + 50)) - 1
    values = np.empty_like(noise)
    values[:, 0] = noise[:, 0]
    for token in range(1, tokens + 50):
        values[:, token] = 0.7 * values[:, token - 1] + noise[:, token]
    return values[:, 50:] + between * random.standard_normal((windows, 1))


@pytest.mark.parametrize(("windows", "tokens", "between"), [(8, 64, 0.0), (16, 64, 0.5), (40, 32, 0.0), (64, 32, 0.5)])
def test_19_of_20_intervals_hold_the_true_mean_though_tokens_are_correlated(
    windows: int, tokens: int, between: float
) -> None:
    random = np.random.default_rng(5)
    held = naive = 0
    for _ in range(DATA_SETS):
        values = correlated_tokens(random, windows, tokens, between)
        interval = mean_interval(values.mean(axis=1))
        held += interval.low <= 0 <= interval.high
        naive += abs(values.mean()) <= 1.96 * values.std() / math.sqrt(values.size)
    assert 0.93 <= held / DATA_SETS <= 0.97
    assert naive / DATA_SETS < 0.75, "tokens that count as independent would have done"


def test_neighbouring_windows_on_one_topic_count_as_one() -> None:
    random = np.random.default_rng(6)
    held = naive = 0
    for _ in range(DATA_SETS):
        topics = np.repeat(random.standard_normal(128), 2)  # two windows each
        means = topics + random.standard_normal(256)
        interval = mean_interval(means)
        held += interval.low <= 0 <= interval.high
        naive += abs(means.mean()) <= 1.97 * means.std(ddof=1) / 16
    assert 0.93 <= held / DATA_SETS <= 0.97
    assert naive / DATA_SETS < 0.91


@pytest.mark.parametrize(
    ("windows", "tokens", "share", "correlation"),
    [(8, 50, 0.9, 0.05), (16, 50, 0.9, 0.05), (32, 127, 0.9, 0.02), (64, 127, 0.97, 0.02), (64, 255, 0.95, 0.01)],
)
def test_19_of_20_intervals_hold_the_true_share_though_windows_differ(
    windows: int, tokens: int, share: float, correlation: float
) -> None:
    random = np.random.default_rng(7)
    size = 1 / correlation - 1  # of the beta distribution that has this correlation inside a window
    held = naive = 0
    for _ in range(DATA_SETS):
        shares = random.binomial(tokens, random.beta(share * size, (1 - share) * size, windows)) / tokens
        proportion = proportion_interval(shares, tokens)
        held += proportion.low <= share <= proportion.high
        low, high = wilson(shares.mean(), windows * tokens)
        naive += low <= share <= high
    assert 0.93 <= held / DATA_SETS <= 0.97
    assert naive / DATA_SETS < 0.88, "Wilson's interval alone would have done"


def test_independent_tokens_carry_their_whole_number() -> None:
    shares = np.random.default_rng(8).binomial(500, 0.9, 64) / 500
    assert 0.5 * 32_000 < proportion_interval(shares, 500).effective_tokens <= 32_000


def test_where_all_agree_the_share_may_still_be_a_little_lower() -> None:
    proportion = proportion_interval(np.ones(10), 100)
    assert (proportion.estimate, proportion.high, proportion.effective_tokens) == (1.0, 1.0, 1000.0)
    assert proportion.low == pytest.approx(1000 / (1000 + 1.959964**2))
    assert least_tokens_for_share(proportion.low) == pytest.approx(1000)


def test_models_that_do_not_differ_have_an_interval_without_width() -> None:
    assert mean_interval(np.zeros(9)) == Interval(0.0, 0.0, 0.0)


def test_a_single_window_does_not_tell_how_windows_differ() -> None:
    with pytest.raises(ValueError, match="1 windows"):
        mean_interval(np.zeros(1))


def test_twice_as_close_to_the_gate_needs_four_times_the_tokens() -> None:
    interval = Interval(0.5, 0.3, 0.7)
    assert mean_tokens_to_settle(interval, 0.4, 1000) == pytest.approx(4000)
    assert mean_tokens_to_settle(interval, 0.45, 1000) == pytest.approx(16000)
    assert mean_tokens_to_settle(interval, 0.5, 1000) == math.inf


def test_so_many_tokens_settle_a_share() -> None:
    proportion = Proportion(0.92, *wilson(0.92, 200), 200)
    assert proportion.low < 0.9
    needed = share_tokens_to_settle(proportion, 0.9, 400)
    assert wilson(0.92, needed / 2)[0] == pytest.approx(0.9)
    assert share_tokens_to_settle(proportion, 0.92, 400) == math.inf
