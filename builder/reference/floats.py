"""Floats that numpy doesn't have: bfloat16, FP8 (E4M3) and FP4 (E2M1), as their bits and as float32.

E4M3 is the finite variant ("fn"): sign, 4 bits of exponent (bias 7), 3 of mantissa; S.1111.111 is NaN, and there is no
infinity. OCP 8-bit Floating Point Specification 1.0; OCP Microscaling Formats 1.0 for E2M1.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

E4M3_MAX = np.float32(448)
_LOOKUP_CODES = 1 << 18


@cache
def e4m3_values() -> Float32:
    """(256,): what each byte stands for."""
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    magnitude = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    values = np.where(codes & 0x80, -magnitude, magnitude).astype(np.float32)
    values[codes & 0x7F == 0x7F] = np.nan
    return values


@cache
def e2m1_values() -> Float32:
    """(16,): what each half of a byte stands for; its highest bit is the sign."""
    magnitudes = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    return np.asarray([*magnitudes, *(-value for value in magnitudes)], dtype=np.float32)


def nearest_e4m3(values: Float32) -> Float32:
    """Rounded to the nearest E4M3 value, ties to even, saturated, as __nv_cvt_float_to_fp8 with __NV_SATFINITE does."""
    magnitude = np.minimum(np.abs(values), E4M3_MAX)
    exponent = np.clip(np.frexp(magnitude)[1] - 1, -6, 8)
    step = np.ldexp(np.float32(1), exponent - 3)
    nearest: Float32 = np.copysign(np.rint(magnitude / step) * step, values)
    return nearest


def looked_up(values: Float32, codes: npt.NDArray[Any]) -> Float32:
    """values[codes] for codes of one byte, a few rows at a time: numpy widens what it indexes with to 8 bytes."""
    result = np.empty(codes.shape, dtype=np.float32)
    flat, flat_codes = result.reshape(-1), codes.reshape(-1)
    for begin in range(0, flat.size, _LOOKUP_CODES):
        flat[begin : begin + _LOOKUP_CODES] = values[flat_codes[begin : begin + _LOOKUP_CODES]]
    return result


def bfloat16_values(bits: npt.NDArray[np.uint16]) -> Float32:
    """bfloat16 is the upper half of float32."""
    widened = bits.astype(np.uint32)
    widened <<= 16
    return widened.view(np.float32)


def rounded_to(dtype: str, value: float) -> float:
    """A finite number in F16, BF16 or F32 (safetensors' names), rounded to nearest, ties to even."""
    if dtype == "F16":
        return float(np.float16(value))
    single = np.float32(value)
    if dtype == "F32":
        return float(single)
    bits = int(single.view(np.uint32))
    bits += 0x7FFF + (bits >> 16 & 1)
    return float(np.uint32(bits & 0xFFFF0000).view(np.float32))
