"""The parts of a layer against torch's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from builder.reference.layers import causal_attention, gelu_tanh, rms_norm, silu
from builder.reference.linear import Linear
from builder.reference.mlp import Router

RANDOM = np.random.default_rng(11)
WIDE = np.linspace(-200, 200, 40_001, dtype=np.float32)


def test_silu_is_torchs_however_large_its_argument() -> None:
    assert_allclose(silu(WIDE), torch.nn.functional.silu(torch.from_numpy(WIDE)).numpy(), rtol=1e-6, atol=1e-6)


def test_gelu_is_torchs_with_tanh_however_large_its_argument() -> None:
    expected = torch.nn.functional.gelu(torch.from_numpy(WIDE), approximate="tanh").numpy()
    assert_allclose(gelu_tanh(WIDE), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", [(7, 36), (7, 6, 8)], ids=["rows", "heads"])
def test_norms_are_torchs(shape: tuple[int, ...]) -> None:
    x = RANDOM.standard_normal(shape, dtype=np.float32)
    weight = RANDOM.standard_normal(shape[-1], dtype=np.float32)
    expected = torch.nn.functional.rms_norm(torch.from_numpy(x), shape[-1:], torch.from_numpy(weight), 1e-3).numpy()
    assert_allclose(rms_norm(x, weight, 1e-3), expected, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("window", [None, 1, 4, 9, 10, 20])
@pytest.mark.parametrize("rows", [1, 3, 10])
def test_attention_is_torchs_with_the_mask_of_its_window(rows: int, window: int | None) -> None:
    queries, keys, values = (RANDOM.standard_normal((count, 10, 8), dtype=np.float32) for count in (6, 3, 3))
    position = torch.arange(10)
    visible = position[:, None] >= position
    if window is not None:
        visible &= position[:, None] - position < window
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(torch.from_numpy(part) for part in (queries, keys, values)), visible, scale=0.3, enable_gqa=True
    )
    mixed = causal_attention(queries.transpose(1, 0, 2)[10 - rows :], keys, values, 0.3, window)
    assert_allclose(mixed, expected.transpose(0, 1).flatten(1)[10 - rows :].numpy(), rtol=1e-5, atol=1e-6)


def test_of_equally_likely_experts_the_first_are_chosen() -> None:
    router = Router(Linear(np.ones((5, 4), dtype=np.float32)), per_token=2, normalized=True)
    assert_array_equal(router(np.ones((1, 4), dtype=np.float32)), np.array([[0.5, 0.5, 0, 0, 0]], dtype=np.float32))


@pytest.mark.parametrize("normalized", [True, False])
def test_an_experts_share_is_its_softmax_however_large_the_scores(normalized: bool) -> None:
    scores = torch.tensor([[300.0, 299.0, -300.0, 298.0]])
    router = Router(Linear(scores.T.numpy()), per_token=2, normalized=normalized)
    expected = (scores[:, :2] if normalized else scores).softmax(1)[:, :2].numpy()
    assert_allclose(router(np.ones((1, 1), dtype=np.float32))[:, :2], expected, rtol=1e-6)
