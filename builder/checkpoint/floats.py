"""Float formats that numpy doesn't know together: bfloat16, float16 and float32, spelt as safetensors does."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_CARRIERS: dict[str, npt.DTypeLike] = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32}

CONVERTIBLE = frozenset(_CARRIERS)


def carrier(dtype: str) -> npt.DTypeLike:
    """The numpy type that holds this format: bfloat16 travels as its bits, in uint16."""
    return _CARRIERS[dtype]


def convert_floats(values: Array, source: str, target: str) -> Array:
    """`values` (in the carrier of `source`) in the carrier of `target`, rounded to nearest, ties to even.

    OverflowError if a finite value has no finite counterpart.
    """
    if source == target:
        return values
    wide = (values.astype(np.uint32) << 16).view(np.float32) if source == "BF16" else values.astype(np.float32)
    if target == "F32":
        return wide
    narrow: Array
    if target == "F16":
        with np.errstate(over="ignore"):
            narrow = wide.astype(np.float16)
        overflow = np.isinf(narrow) & np.isfinite(wide)
    else:
        narrow = _round_to_bfloat16(wide)
        overflow = (narrow & 0x7FFF == 0x7F80) & np.isfinite(wide)
    if overflow.any():
        raise OverflowError(f"{wide[overflow][0]:g} is beyond the range of {target}")
    return narrow


def _round_to_bfloat16(wide: Array) -> Array:
    bits = wide.view(np.uint32)
    rounded = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    # the addition would carry a NaN's mantissa over into the sign: keep its upper half, and make it quiet
    return np.where(np.isnan(wide), (bits >> 16).astype(np.uint16) | np.uint16(0x40), rounded)
