"""The values that quantised weights stand for, in float32. Activations aren't rounded here, as they are on a GPU.

Formats as NVIDIA's ModelOpt 0.47 writes them into TensorRT-LLM checkpoints (modelopt/torch/export/quant_utils.py).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from builder.reference.floats import Bytes, Float32, e2m1_values, e4m3_values, looked_up, nearest_e4m3

NVFP4_BLOCK = 16
_ROWS = 64


def fp8(weight: Bytes, scale: Float32) -> Float32:
    """weight (out, in) in E4M3; scale: one number, or one per row (out,)."""
    values = looked_up(e4m3_values(), weight)
    values *= scale.reshape(-1, 1)
    return values


def nvfp4(weight: Bytes, block_scales: Bytes, scale: Float32) -> Float32:
    """weight (out, in / 2), the lower half of a byte first; block_scales (out, in / 16) in E4M3; scale: one number."""
    values = np.empty((weight.shape[0], weight.shape[1] * 2), dtype=np.float32)
    values[:, 0::2] = looked_up(e2m1_values(), weight & 15)
    values[:, 1::2] = looked_up(e2m1_values(), weight >> 4)
    scales = looked_up(e4m3_values(), block_scales) * scale.reshape(())
    blocks = values.reshape(len(values), -1, NVFP4_BLOCK)
    blocks *= scales[:, :, None]
    return values


def int8(weight: npt.NDArray[np.int8], scale: Float32) -> Float32:
    """weight (out, in), scale (out,)"""
    values = weight.astype(np.float32)
    values *= scale.reshape(-1, 1)
    return values


def int4(weight: npt.NDArray[np.int8], scale: Float32) -> Float32:
    """weight (out / 2, in): the lower half of a byte is an even row, the upper half the odd row after it, two's
    complement; scale (out, in / group)."""
    values = np.empty((weight.shape[0] * 2, weight.shape[1]), dtype=np.float32)
    values[0::2] = weight << 4 >> 4
    values[1::2] = weight >> 4
    groups = values.reshape(len(values), scale.shape[1], -1)
    groups *= scale[:, :, None]
    return values


def weight_only(weight: Float32, bits: int, *, half_scales: bool = False) -> Float32:
    """What is left of the floats (out, in) when trtllm-build has rounded them to W8A16 (8 bits) or W4A16 (4); in place.

    symmetric_quantize (cpp/tensorrt_llm/kernels/cutlass_kernels/cutlass_preprocessors.cpp): the scale of an output is
    max|w| / 2^(bits - 1), so that the largest positive weight saturates; codes are w / scale, halves rounded away from
    zero. Scales are kept in the type of the weights, which changes them in float16 only, below its normal numbers.
    """
    steps = np.float32(1 << (bits - 1))
    for begin in range(0, len(weight), _ROWS):
        rows = weight[begin : begin + _ROWS]
        scale = np.abs(rows).max(axis=1, keepdims=True) / steps
        np.divide(rows, scale, out=rows, where=scale > 0)
        np.clip(_half_away_from_zero(rows), -steps, steps - 1, out=rows)
        rows *= scale.astype(np.float16).astype(np.float32) if half_scales else scale
    return weight


def _half_away_from_zero(values: Float32) -> Float32:
    whole = np.trunc(values)
    whole += np.sign(values) * (np.abs(values - whole) >= 0.5)
    return whole


def rounded_cache(values: Float32, scale: np.float32, algo: str) -> Float32:
    """Keys or values as a quantised KV cache (FP8 or INT8) gives them back.

    The kernels multiply with 1 / scale, convert to the nearest code, ties to even, saturating, and multiply with scale
    when they read (kv_orig_quant_scale and kv_quant_orig_scale of gptAttentionPlugin).
    """
    scaled = values * (np.float32(1) / scale)
    codes: Float32 = np.clip(np.rint(scaled), -128, 127) if algo == "INT8" else nearest_e4m3(scaled)
    return codes * scale
