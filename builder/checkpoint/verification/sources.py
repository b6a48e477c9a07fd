"""What published quantised weights stand for, read as their publishers describe them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from builder.checkpoint.floats import widen
from builder.checkpoint.source import SourceWeights
from builder.checkpoint.verification.assembly import Piece
from builder.model.spec import ModelSpec
from builder.reference import dequantize
from builder.reference.floats import Float32


def source_values(weights: SourceWeights, spec: ModelSpec, piece: Piece) -> Float32 | None:
    """The values of a piece in float32, (out, in), with its pre-quantisation scale; None for what isn't quantised."""
    module = piece.source.removesuffix(".weight")

    def numbers(parameter: str) -> Float32:
        info = weights.tensors[f"{module}.{parameter}"]
        return np.asarray(widen(weights.array(info.name), info.dtype), dtype=np.float32)

    precision = spec.quantization.precision if spec.quantization else None
    if f"{module}.qweight" in weights.tensors:
        values = _gptq(weights, module, numbers("scales"))
    elif f"{module}.weight_scale" not in weights.tensors:
        return None
    else:
        read: dict[str | None, Callable[[], Float32]] = {
            "fp8": lambda: dequantize.fp8(weights.array(piece.source), numbers("weight_scale")),
            "fp8-rowwise": lambda: dequantize.fp8(weights.array(piece.source), numbers("weight_scale").reshape(-1)),
            "nvfp4": lambda: dequantize.nvfp4(
                weights.array(piece.source), weights.array(f"{module}.weight_scale"), numbers("weight_scale_2")
            ),
            "int4-awq": lambda: dequantize.int4(weights.array(piece.source).view(np.int8), numbers("weight_scale")),
            "w4a8-awq": lambda: dequantize.int4(weights.array(piece.source).view(np.int8), numbers("weight_scale")),
            "int8-sq": lambda: dequantize.int8(weights.array(piece.source).view(np.int8), numbers("weight_scale")),
        }
        values = read[precision]()
    if f"{module}.pre_quant_scale" in weights.tensors:
        values = values * numbers("pre_quant_scale")
    return np.ascontiguousarray(values[piece.rows, piece.columns])


def _gptq(weights: SourceWeights, module: str, scales: Float32) -> Float32:
    """(q - 8) · scale: eight numbers of 4 bits in each word, along the inputs; scales (inputs / group, outputs)."""
    words = weights.array(f"{module}.qweight")
    codes = (words[:, None, :] >> (4 * np.arange(8, dtype=np.uint32))[None, :, None]) & 15
    values = codes.reshape(-1, scales.shape[1]).astype(np.float32) - 8
    values *= np.repeat(scales, len(values) // len(scales), axis=0)
    return np.asarray(values.T, dtype=np.float32)
