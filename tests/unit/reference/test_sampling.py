from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from builder.reference.errors import ReferenceModelError
from builder.reference.sampling import Sampler, SamplingParams

PROBABILITIES = np.array([0.30, 0.25, 0.15, 0.12, 0.08, 0.06, 0.04])
LOGITS = np.log(PROBABILITIES).astype(np.float32) + 3


def draws(count: int, *, prompt: tuple[int, ...] = (), **params: Any) -> np.ndarray:
    sampler = Sampler(SamplingParams(**params), prompt, len(LOGITS))
    return np.array([sampler.sample(LOGITS) for _ in range(count)])


def assert_distributed(tokens: np.ndarray, expected: np.ndarray) -> None:
    """Pearson's chi-square test at a level of 0.1 %; seeds are fixed, so that a test passes always or never."""
    critical = {1: 10.83, 2: 13.82, 3: 16.27, 4: 18.47, 5: 20.52, 6: 22.46}
    counts = np.bincount(tokens, minlength=len(expected))
    possible = expected > 0
    assert not counts[~possible].any()
    wanted = expected[possible] / expected.sum() * len(tokens)
    assert (((counts[possible] - wanted) ** 2) / wanted).sum() < critical[possible.sum() - 1]


def test_the_default_is_greedy() -> None:
    assert set(draws(50)) == {0}


@pytest.mark.parametrize(
    "params",
    [{"top_k": 0}, {"temperature": 0.5}, {"top_k": 1, "top_p": 0.9}, {"temperature": 0.0, "top_k": 0, "top_p": 1.0}],
    ids=repr,
)
def test_these_parameters_are_greedy_in_tensorrt_llm_too(params: dict[str, Any]) -> None:
    assert set(draws(50, **params)) == {0}


def test_all_tokens_are_drawn_as_likely_as_they_are() -> None:
    assert_distributed(draws(20_000, top_k=0, top_p=1.0, seed=1), PROBABILITIES)


def test_temperature_divides_the_logits() -> None:
    assert_distributed(draws(20_000, top_p=1.0, temperature=2.0, seed=2), PROBABILITIES**0.5)
    assert_distributed(draws(20_000, top_p=1.0, temperature=0.5, seed=3), PROBABILITIES**2)


def test_a_temperature_close_to_zero_is_as_good_as_greedy() -> None:
    assert set(draws(50, top_p=1.0, temperature=1e-320)) == {0}


def test_top_k_keeps_the_likeliest_tokens() -> None:
    assert_distributed(draws(20_000, top_k=3, seed=4), np.where(PROBABILITIES >= 0.15, PROBABILITIES, 0))


def test_top_k_beyond_the_vocabulary_keeps_all() -> None:
    assert_distributed(draws(20_000, top_k=100, seed=5), PROBABILITIES)


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    # 0.30 + 0.25 + 0.15 = 0.70 is not enough for 0.75, with 0.12 it is
    assert_distributed(draws(20_000, top_p=0.75, seed=6), np.where(PROBABILITIES >= 0.12, PROBABILITIES, 0))


def test_a_tiny_top_p_keeps_one_token() -> None:
    assert set(draws(50, top_p=1e-6)) == {0}


def test_top_p_is_applied_to_what_top_k_left() -> None:
    # of 0.30, 0.25 and 0.15 the first two make 0.786, the first alone 0.43
    assert_distributed(draws(20_000, top_k=3, top_p=0.5, seed=7), np.where(PROBABILITIES >= 0.25, PROBABILITIES, 0))


def test_of_equal_tokens_the_first_ones_are_kept() -> None:
    sampler = Sampler(SamplingParams(top_k=2, seed=8), (), 5)
    logits = np.array([0, 1, 1, 1, 0], dtype=np.float32)
    assert {sampler.sample(logits) for _ in range(100)} == {1, 2}


def test_a_seed_gives_the_same_tokens_and_another_seed_others() -> None:
    first = draws(200, top_p=1.0, seed=11)
    assert first.tolist() == draws(200, top_p=1.0, seed=11).tolist()
    assert first.tolist() != draws(200, top_p=1.0, seed=12).tolist()


def test_the_repetition_penalty_divides_positive_and_multiplies_negative_logits() -> None:
    logits = np.array([4.0, 3.0, -1.0, -1.5], dtype=np.float32)
    sampler = Sampler(SamplingParams(repetition_penalty=2.0, top_p=1.0), [0, 2, 2], 4)
    assert sampler._adjusted(logits).tolist() == [2.0, 3.0, -2.0, -1.5]


def test_presence_counts_once_and_frequency_every_time() -> None:
    logits = np.zeros(4, dtype=np.float32)
    sampler = Sampler(SamplingParams(presence_penalty=0.5, frequency_penalty=0.25), [3, 3, 1], 4)
    assert sampler._adjusted(logits).tolist() == [0.0, -0.75, 0.0, -1.0]


def test_penalties_come_after_the_temperature() -> None:
    logits = np.array([4.0, 2.0], dtype=np.float32)
    sampler = Sampler(SamplingParams(temperature=2.0, presence_penalty=0.5), [0], 2)
    assert sampler._adjusted(logits).tolist() == [1.5, 1.0]


def test_generated_tokens_are_penalised_as_the_prompt_is() -> None:
    tokens = draws(7, frequency_penalty=100.0)
    assert sorted(tokens) == list(range(7))


def test_no_end_token_comes_before_min_tokens() -> None:
    sampler = Sampler(SamplingParams(min_tokens=3), (), len(LOGITS), end_ids=(0, 1))
    assert [sampler.sample(LOGITS) for _ in range(5)] == [2, 2, 2, 0, 0]


def test_logits_stay_as_they_were() -> None:
    before = LOGITS.copy()
    draws(5, prompt=(1, 2), temperature=0.3, top_p=0.9, presence_penalty=1.0)
    assert (before == LOGITS).all()


def test_numbers_out_of_tensors_are_accepted() -> None:
    params = SamplingParams(
        temperature=np.float32(0.5), top_k=np.int32(2), top_p=np.float32(1.0), seed=np.uint64(2**64 - 1)
    )
    assert Sampler(params, np.array([0], dtype=np.int32), 7).sample(LOGITS) in (0, 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", "hot"),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_k", True),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("repetition_penalty", 0.0),
        ("presence_penalty", float("inf")),
        ("frequency_penalty", None),
        ("min_tokens", -1),
        ("seed", -1),
        ("seed", 2**64),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ReferenceModelError, match=f"^{name} must be"):
        SamplingParams(**{name: value})


@pytest.mark.parametrize(("prompt", "end_ids"), [([7], []), ([-1], []), ([], [7])])
def test_token_ids_beyond_the_vocabulary_are_refused(prompt: list[int], end_ids: list[int]) -> None:
    with pytest.raises(ReferenceModelError, match="token ids"):
        Sampler(SamplingParams(), prompt, 7, end_ids)
