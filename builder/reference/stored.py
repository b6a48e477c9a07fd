"""Linears of a rank's file, whatever format they are stored in."""

from __future__ import annotations

from builder.reference import dequantize
from builder.reference.quantization import Quantization
from builder.reference.weights import Float32, RankWeights


def dequantized(rank: RankWeights, name: str, quantization: Quantization) -> Float32:
    """The values of the linear `name` ("transformer.layers.0.mlp.fc") in float32: (out, in), or (experts, out, in).

    Of AWQ and SmoothQuant these are the values as they are stored; see `effective`.
    """
    algo = quantization.format_of(name)
    if algo is None:
        return rank.float32(f"{name}.weight")
    if quantization.rounds_when_built:
        return dequantize.rounded(rank.float32(f"{name}.weight"), 8 if algo == "W8A16" else 4)
    weight = rank.stored(f"{name}.weight")
    if algo == "FP8_PER_CHANNEL_PER_TOKEN":
        return dequantize.fp8(weight, rank.float32(f"{name}.per_channel_scale"))
    if algo == "NVFP4":
        blocks = rank.stored(f"{name}.weights_scaling_factor")
        return dequantize.nvfp4(weight, blocks, rank.float32(f"{name}.weights_scaling_factor_2"))
    scale = rank.float32(f"{name}.weights_scaling_factor")
    if algo == "FP8":
        return dequantize.fp8(weight, scale)
    if algo == "W8A8_SQ_PER_CHANNEL":
        return dequantize.int8(weight, scale)
    return dequantize.int4(weight.view("int8"), scale)


def effective(rank: RankWeights, name: str, quantization: Quantization) -> Float32:
    """The same with the scale that AWQ and SmoothQuant multiply the input with: y = x Wᵀ."""
    weight = dequantized(rank, name, quantization)
    scale = f"{name}.prequant_scaling_factor"
    if scale in rank:
        weight = weight * rank.float32(scale)
    return weight
