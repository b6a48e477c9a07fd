"""Linears of a rank's file, whatever format they are stored in.

folder = ModelFolder.open(checkpoint)
rank = RankWeights(folder.ranks[0])
weight = effective(rank, "transformer.layers.0.attention.qkv", folder.config.quantization)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from builder.reference import dequantize
from builder.reference.floats import Float32
from builder.reference.quantization import Quantization
from builder.reference.weights import RankWeights


def dequantized(rank: RankWeights, name: str, quantization: Quantization, expert: int | None = None) -> Float32:
    """The values of the linear `name` ("transformer.layers.0.mlp.fc") in float32, (out, in).

    Of experts, `expert` says which one of those in the file. Of AWQ and SmoothQuant these are the values as they are
    stored; see `effective`. With W8A16 and W4A16 they are what is left of the stored floats in an engine. TensorRT-LLM
    holds the scales of AWQ in the model's dtype, which isn't done here.
    """
    weight = f"{name}.weight"
    algo = quantization.format_of(name, experts=expert is not None)
    if algo is None:
        return rank.float32(weight, expert)
    if quantization.rounds_when_built:
        bits, half_scales = 8 if algo == "W8A16" else 4, rank.dtype(weight) == "F16"
        return dequantize.weight_only(rank.float32(weight, expert), bits, half_scales=half_scales)
    codes: npt.NDArray[Any] = rank.stored(weight) if expert is None else rank.stored(weight)[expert]
    if algo == "FP8_PER_CHANNEL_PER_TOKEN":
        return dequantize.fp8(codes, rank.float32(f"{name}.per_channel_scale"))
    if algo == "NVFP4":
        blocks = rank.stored(f"{name}.weights_scaling_factor")
        return dequantize.nvfp4(codes, blocks, rank.float32(f"{name}.weights_scaling_factor_2"))
    scale = rank.float32(f"{name}.weights_scaling_factor", expert)
    if algo == "FP8":
        return dequantize.fp8(codes, scale)
    if algo == "W8A8_SQ_PER_CHANNEL":
        return dequantize.int8(codes, scale)
    return dequantize.int4(codes, scale)


def effective(rank: RankWeights, name: str, quantization: Quantization, expert: int | None = None) -> Float32:
    """The same with the scale that AWQ and SmoothQuant multiply the input with: y = x Wᵀ."""
    weight = dequantized(rank, name, quantization, expert)
    scale = f"{name}.prequant_scaling_factor"
    if scale in rank:
        weight *= rank.float32(scale)
    return weight


def cache_scale(rank: RankWeights, attention: str) -> np.float32:
    """The scale of the KV cache of `attention` ("transformer.layers.0.attention").

    Where keys and values have one each as well, TensorRT-LLM takes the larger of these instead (preprocess_weights in
    models/modeling_utils.py).
    """
    apart = [name for kind in "kv" if (name := f"{attention}.{kind}_cache_scaling_factor") in rank]
    names = apart or [f"{attention}.kv_cache_scaling_factor"]
    return np.float32(max(rank.float32(name).item() for name in names))
