"""The values that quantised weights stand for, in float32. Activations aren't rounded here as they are on a GPU.

Formats as NVIDIA's ModelOpt 0.47 writes them into TensorRT-LLM checkpoints (modelopt/torch/export/quant_utils.py);
rounding of W8A16 and W4A16 as TensorRT-LLM's builder does it (symmetric_quantize in
cpp/tensorrt_llm/kernels/cutlass_kernels/cutlass_preprocessors.cpp).
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from builder.reference.weights import Float32

Bytes = npt.NDArray[np.uint8]

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The magnitudes of a 4-bit float, by its lower three bits; the fourth is the sign."""

NVFP4_BLOCK = 16


@cache
def e4m3_values() -> Float32:
    """What each byte stands for: sign, 4 bits of exponent (bias 7), 3 of mantissa; S.1111.111 is NaN."""
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    magnitude = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    values = np.where(codes & 0x80, -magnitude, magnitude).astype(np.float32)
    values[codes & 0x7F == 0x7F] = np.nan
    return values


def fp8(weight: Bytes, scale: Float32) -> Float32:
    """weight (…, out, in) bytes; scale: one number, one per row (out,), or one per expert (experts, 1)."""
    values: Float32 = e4m3_values()[weight]
    if scale.size == 1:
        values *= scale.reshape(())
    elif weight.ndim == 3:
        values *= scale.reshape(-1, 1, 1)
    else:
        values *= scale.reshape(-1, 1)
    return values


def nvfp4(weight: Bytes, block_scales: Bytes, scale: Float32) -> Float32:
    """weight (out, in / 2), the lower half of a byte first; block_scales (out, in / 16) in E4M3; scale: one number."""
    values = np.empty((weight.shape[0], weight.shape[1] * 2), dtype=np.float32)
    values[:, 0::2] = _e2m1_values()[weight & 15]
    values[:, 1::2] = _e2m1_values()[weight >> 4]
    scales = e4m3_values()[block_scales] * scale.reshape(())
    blocks = values.reshape(len(values), -1, NVFP4_BLOCK)
    blocks *= scales[:, :, None]
    return values


def int8(weight: npt.NDArray[np.int8], scale: Float32) -> Float32:
    """weight (out, in), scale (out,)"""
    return weight.astype(np.float32) * scale.reshape(-1, 1)


def int4(weight: npt.NDArray[np.int8], scale: Float32) -> Float32:
    """weight (out / 2, in): the lower half of a byte is an even row, the upper half the odd row after it, two's
    complement; scale (out, in / group)."""
    values = np.empty((weight.shape[0] * 2, weight.shape[1]), dtype=np.float32)
    values[0::2] = weight << 4 >> 4
    values[1::2] = weight >> 4
    groups = values.reshape(len(values), scale.shape[1], -1)
    groups *= scale[:, :, None]
    return values


def rounded(weight: Float32, bits: int) -> Float32:
    """Weights of (…, out, in) as weight-only quantisation makes them: one scale per output, max|w| / 2^(bits - 1)."""
    steps = 1 << (bits - 1)
    scale = np.abs(weight).max(axis=-1, keepdims=True) / np.float32(steps)
    with np.errstate(divide="ignore", invalid="ignore"):
        codes = np.where(scale > 0, np.rint(weight / scale), 0)
    result: Float32 = (np.clip(codes, -steps, steps - 1) * scale).astype(np.float32)
    return result


def rounded_cache(values: Float32, scale: float, algo: str) -> Float32:
    """Keys or values as a quantised KV cache gives them back: stored as values / scale in FP8 or INT8."""
    scaled = values / np.float32(scale)
    if algo == "INT8":
        stored: Float32 = np.clip(np.rint(scaled), -128, 127)
        return stored * np.float32(scale)
    return _nearest_e4m3(scaled) * np.float32(scale)


def _nearest_e4m3(values: Float32) -> Float32:
    """Rounded to nearest, ties to even, saturated at ±448."""
    magnitude = np.minimum(np.abs(values), np.float32(448))
    exponent = np.clip(np.frexp(magnitude)[1] - 1, -6, 8)
    step = np.ldexp(np.float32(1), exponent - 3)
    result: Float32 = np.copysign(np.rint(magnitude / step) * step, values).astype(np.float32)
    return result


@cache
def _e2m1_values() -> Float32:
    return np.asarray([*E2M1, *(-value for value in E2M1)], dtype=np.float32)
