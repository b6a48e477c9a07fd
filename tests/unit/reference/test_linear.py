from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from builder.reference.linear import Linear

RANDOM = np.random.default_rng(3)
WEIGHT = RANDOM.standard_normal((5000, 48), dtype=np.float32)  # more than one block of output features
BIAS = RANDOM.standard_normal(5000, dtype=np.float32)
ROWS = RANDOM.standard_normal((20, 48), dtype=np.float32)


@pytest.mark.parametrize("rows", [1, 8, 9, 20])
def test_a_product_equals_the_one_in_double_precision(rows: int) -> None:
    expected = ROWS[:rows].astype(np.float64) @ WEIGHT.T.astype(np.float64) + BIAS
    # sums of 48 products of normal numbers in float32
    assert_allclose(Linear(WEIGHT, BIAS)(ROWS[:rows]), expected, atol=2e-5, rtol=0)


def test_a_row_does_not_depend_on_the_other_rows_of_a_small_batch() -> None:
    linear = Linear(WEIGHT)
    assert_array_equal(linear(ROWS[:8])[5:6], linear(ROWS[5:6]))
