"""Float formats that numpy doesn't know: bfloat16, and FP8 E4M3 without infinities; spelt as safetensors does."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from builder.reference.floats import E4M3_MAX, bfloat16_values, e4m3_values

Array = npt.NDArray[Any]

_CARRIERS: dict[str, npt.DTypeLike] = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32}

CONVERTIBLE = frozenset(_CARRIERS)


def carrier(dtype: str) -> npt.DTypeLike:
    """The numpy type that holds this format: bfloat16 travels as its bits, in uint16; others are bytes."""
    return np.uint32 if dtype == "I32" else _CARRIERS.get(dtype, np.uint8)


def widen(values: Array, dtype: str) -> Array:
    """float32 of `values` in the carrier of `dtype`, exactly; a copy unless it is float32 already."""
    if dtype == "BF16":
        return bfloat16_values(values)
    if dtype == "F8_E4M3":
        return e4m3_values()[values]
    return values.astype(np.float32, copy=False)


def narrow(wide: Array, dtype: str) -> Array:
    """float32 values in the carrier of `dtype`, rounded to nearest, ties to even.

    OverflowError if a finite value has no finite counterpart.
    """
    if dtype == "F32":
        return wide
    result: Array
    if dtype == "F16":
        with np.errstate(over="ignore"):
            result = wide.astype(np.float16)
        overflow = np.isinf(result) & np.isfinite(wide)
    else:
        result = _round_to_bfloat16(wide)
        overflow = (result & 0x7FFF == 0x7F80) & np.isfinite(wide)
    if overflow.any():
        raise OverflowError(f"{wide[overflow][0]:g} is beyond the range of {dtype}")
    return result


def convert_floats(values: Array, source: str, target: str) -> Array:
    """`values` (in the carrier of `source`) in the carrier of `target`; see `narrow`."""
    return values if source == target else narrow(widen(values, source), target)


def rescale_fp8(values: Array, factor: float) -> Array:
    """FP8 bytes that stand for `factor` times what `values` stand for, rounded to nearest, ties to even.

    `factor` is at most 1, so that nothing overflows; NaNs stay.
    """
    rescaled: Array = _rescaled_codes(factor)[values]
    return rescaled


def _rescaled_codes(factor: float) -> Array:
    """What becomes of each of the 256 codes."""
    codes = np.arange(256, dtype=np.uint8)
    scaled = e4m3_values().astype(np.float64) * factor
    grid = e4m3_values()[:0x7F].astype(np.float64)  # 0 to 448, ascending
    magnitude = np.minimum(np.abs(scaled), E4M3_MAX)
    above = np.clip(np.searchsorted(grid, magnitude), 1, len(grid) - 1)
    middle = (grid[above - 1] + grid[above]) / 2
    up = (magnitude > middle) | ((magnitude == middle) & (above % 2 == 0))
    rounded = np.where(up, above, above - 1).astype(np.uint8) | (codes & 0x80)
    table: Array = np.where(np.isnan(scaled), codes, rounded)
    return table


def _round_to_bfloat16(wide: Array) -> Array:
    bits = wide.view(np.uint32)
    rounded = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    # the addition would carry a NaN's mantissa over into the sign: keep its upper half, and make it quiet
    return np.where(np.isnan(wide), (bits >> 16).astype(np.uint16) | np.uint16(0x40), rounded)
