"""How far a quantised weight may be from the weight that it was made from.

w is the source's weight, v what the checkpoint's stands for, s the scale that they share. All formats round to nearest,
so that |w - v| is at most half the step between the two numbers of the format around w.

    FP8 E4M3     Numbers from 2^-6·s on have 3 bits of mantissa: a step is at most 2^-3 of the number's power of two,
                 half of it at most 2^-4·|w|. Below them steps are 2^-9·s, half 2^-10·s. The largest, 448·s, is
                 max|w|, so nothing is cut off.
    INT8         Steps are s: s / 2. Codes reach ±127, and max|w| = 127·s.
    INT4         Steps are s: s / 2, where the code isn't the largest or smallest: what lies beyond those was cut off on
                 purpose (AWQ searches for scales that cut), and then |w| is only known to be at least |v| - s / 2.
    NVFP4        Steps of E2M1 are 0.5 up to 2, 1 up to 4, 2 up to 6, times the block's scale. That is itself rounded to
                 E4M3, which may make it smaller by 2^-4: then up to 6·(1 + 2^-4) = 6.375 are stored as 6, within the
                 half step of 1 that holds above 4. Of a block whose scale rounds to 0 nothing is claimed.

AWQ and SmoothQuant divide the weight's columns by the pre-quantisation scale p first: there w stands for w / p.
ModelOpt divides in the model's dtype, and again where linears are fused and share one p; p is rounded, so is what it is
replaced with, and so is w / s before it becomes a code: five roundings, 5 · 2^-9 · |w| for bfloat16, are allowed
besides. The others allow two, for weights that ModelOpt reads in another dtype than they are published in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]

ROUNDING = {"BF16": 2.0**-9, "F16": 2.0**-12, "F32": 2.0**-24}
"""What one rounding in a dtype may change, relative to the number: half a step."""

_TINY = 1e-12


def fp8(weight: Float64, _: Float64, scale: Float64) -> Float64:
    """All (out, in); `scale` is that of every weight."""
    return np.maximum(np.abs(weight) * 2.0**-4, scale * 2.0**-10)


def int8(weight: Float64, _: Float64, scale: Float64) -> Float64:
    return scale / 2 + np.zeros_like(weight)


def int4(weight: Float64, value: Float64, scale: Float64) -> Float64:
    codes = np.rint(value / np.maximum(scale, _TINY))
    outside = ((codes >= 7) & (weight > value)) | ((codes <= -8) & (weight < value))
    return np.where(outside, np.inf, scale / 2)


def nvfp4(weight: Float64, _: Float64, scale: Float64) -> Float64:
    size = np.abs(weight) / np.maximum(scale, _TINY)
    steps = np.where(size < 2, 0.25, np.where(size < 4, 0.5, 1.0))
    return np.where(scale > 0, steps * scale, np.inf)


BOUNDS: Mapping[str, Callable[[Float64, Float64, Float64], Float64]] = {
    "FP8": fp8,
    "FP8_PER_CHANNEL_PER_TOKEN": fp8,
    "W8A8_SQ_PER_CHANNEL": int8,
    "W4A16_AWQ": int4,
    "W4A8_AWQ": int4,
    "NVFP4": nvfp4,
}
"""quant_algo → (weight, value, scale) → the largest error that the format allows."""
