"""Small floats against torch's, for every bit pattern."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal

from builder.reference.floats import bfloat16_values, e2m1_values, e4m3_values, looked_up, nearest_e4m3, rounded_to


def test_e4m3_values_are_those_of_torch_for_all_bytes() -> None:
    expected = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float32).numpy()
    assert_array_equal(e4m3_values(), expected)
    numbers = ~np.isnan(expected)
    assert numbers.sum() == 254
    assert_array_equal(np.signbit(e4m3_values())[numbers], np.signbit(expected)[numbers])  # -0 as well


def test_e2m1_values_are_those_of_the_specification_for_all_codes() -> None:
    def value(code: int) -> float:
        sign, exponent, mantissa = code >> 3, code >> 1 & 3, code & 1
        magnitude = mantissa / 2 if exponent == 0 else (1 + mantissa / 2) * 2.0 ** (exponent - 1)
        return math.copysign(magnitude, -1 if sign else 1)

    expected = np.array([value(code) for code in range(16)], dtype=np.float32)
    assert_array_equal(e2m1_values(), expected)
    assert_array_equal(np.signbit(e2m1_values()), np.signbit(expected))


def test_bfloat16_values_are_those_of_torch_for_all_bit_patterns() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    expected = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).to(torch.float32).numpy()
    assert_array_equal(bfloat16_values(bits), expected)


def test_rounding_to_e4m3_is_torchs_within_its_range() -> None:
    random = np.random.default_rng(5)
    values = np.concatenate(
        [
            e4m3_values()[np.isfinite(e4m3_values())],
            # the middles between neighbours, where ties go to the even one
            np.convolve(np.unique(e4m3_values()[np.isfinite(e4m3_values())]), [0.5, 0.5], "valid"),
            random.uniform(-448, 448, 20000),
            random.uniform(-0.03, 0.03, 20000),  # subnormal numbers: below 2^-6 in steps of 2^-9
        ]
    ).astype(np.float32)
    expected = torch.from_numpy(values).to(torch.float8_e4m3fn).to(torch.float32).numpy()
    assert_array_equal(nearest_e4m3(values), expected)


def test_rounding_to_e4m3_saturates() -> None:
    values = np.array([449, 1e6, np.inf, -449, -np.inf], dtype=np.float32)
    assert_array_equal(nearest_e4m3(values), np.array([448, 448, 448, -448, -448], dtype=np.float32))


@pytest.mark.parametrize(
    ("dtype", "torch_dtype"), [("F16", torch.float16), ("BF16", torch.bfloat16), ("F32", torch.float32)]
)
def test_single_numbers_are_rounded_as_torch_does(dtype: str, torch_dtype: torch.dtype) -> None:
    # 1 + 2^-8 is the middle of two bfloat16 numbers, and so is 1 + 3·2^-8; 1 + 2^-11 is one of float16
    for value in (48.0, math.sqrt(3072), math.sqrt(44), 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11, 0.1, -math.pi):
        assert rounded_to(dtype, value) == torch.tensor(value, dtype=torch_dtype).item()


def test_long_arrays_are_looked_up_whole() -> None:
    codes = np.random.default_rng(1).integers(0, 16, (3, 100_003), dtype=np.uint8)
    assert_array_equal(looked_up(e2m1_values(), codes), e2m1_values()[codes])
