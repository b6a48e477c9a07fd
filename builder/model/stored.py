"""How many bytes the weight files of a model hold: the download, in the precision in which it was published.

Tensor data only, without the headers of the files. Layouts of quantised linears, (out, in) = (N, K):

    fp8           weight [N, K]; weight_scale float32 []; static also input_scale []
    fp8-rowwise   weight [N, K]; weight_scale [N, 1] float32
    fp8-block     weight [N, K]; weight_scale_inv [⌈N/128⌉, ⌈K/128⌉] float32
    int4-awq      qweight int32 [K, N/8], qzeros int32 [K/g, N/8], scales float16 [K/g, N]               (AutoAWQ)
                  weight uint8 [N/2, K], weight_scale [N, K/g], pre_quant_scale [K]                       (ModelOpt)
    int4/8-gptq   qweight int32 [K·bits/32, N], qzeros int32 [K/g, N·bits/32], scales float16 [K/g, N], g_idx int32 [K]
    nvfp4         weight uint8 [N, K/2], weight_scale fp8 [N, K/16], weight_scale_2 and input_scale float32 []
    mxfp4         blocks uint8 [N, K/32, 16], scales uint8 [N, K/32]

Sources: huggingface/transformers src/transformers/integrations (finegrained_fp8.py, fbgemm_fp8.py, mxfp4.py),
casper-hansen/AutoAWQ awq/modules/linear/gemm.py, AutoGPTQ/AutoGPTQ auto_gptq/nn_modules/qlinear/qlinear_cuda.py,
NVIDIA/Model-Optimizer modelopt/torch/export/quant_utils.py.
"""

from __future__ import annotations

import math
from functools import lru_cache

from builder.model.inventory import weights
from builder.model.layer_weights import Weight
from builder.model.next_token import next_token_weights
from builder.model.spec import ModelSpec, SourceQuantization

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_FLOAT32 = 4
_INT32_BITS = 32


@lru_cache(maxsize=1024)
def stored_bytes(spec: ModelSpec, *, head: bool | None = None, next_token: bool = True) -> int | None:
    """The bytes of all tensors of the language model.

    None for a quantisation whose layout isn't known, or that differs from layer to layer.

    `head`: whether lm_head is stored, which the headers of the files tell. Models with tied embeddings may have it
    nevertheless; without it, config.json decides. `next_token`: with the layers for multi-token prediction.
    """
    quantization = spec.quantization
    if quantization is not None and quantization.precision in (None, "mixed"):
        return None
    total = 0
    for weight in (*weights(spec), *(next_token_weights(spec) if next_token else ())):
        if weight.role == "head" and head is False and not weight.layers:
            continue
        per_tensor = plain_bytes(spec, weight)
        if quantization is not None and weight.quantized:
            per_tensor = quantized_bytes(spec, weight, quantization)
        total += per_tensor * weight.total
    if head and spec.tie_word_embeddings:
        total += spec.vocab_size * spec.hidden_size * DTYPE_BYTES[spec.dtype]
    return total


def plain_bytes(spec: ModelSpec, weight: Weight) -> int:
    """One such tensor, unquantised."""
    return math.prod(weight.shape) * DTYPE_BYTES[weight.dtype or spec.dtype]


def quantized_bytes(spec: ModelSpec, weight: Weight, quantization: SourceQuantization) -> int:
    """One such linear with everything that is stored beside it to read it."""
    rows, columns = weight.shape
    values = rows * columns
    group = quantization.group_size or columns
    groups = -(-columns // group)
    scale = DTYPE_BYTES[spec.dtype]
    match quantization.precision:
        case "fp8":
            return values + _FLOAT32 * (2 if quantization.activations == "static" else 1)
        case "fp8-rowwise":
            return values + _FLOAT32 * rows
        case "fp8-block":
            height, width = quantization.block or (128, 128)
            return values + _FLOAT32 * -(-rows // height) * -(-columns // width)
        case "nvfp4":
            return values // 2 + rows * groups + 2 * _FLOAT32
        case "mxfp4":
            return values // 2 + rows * groups
        case "int4-awq" if quantization.method == "awq":
            return values // 2 + groups * rows // 2 + groups * rows * 2
        case "int4-awq" | "w4a8-awq":
            return values // 2 + groups * rows * scale + columns * scale
        case "int4-gptq" | "int8-gptq":
            bits = quantization.bits or 4
            return (values + groups * rows) * bits // 8 + groups * rows * 2 + columns * _INT32_BITS // 8
        case "int8-wo" | "int4-wo" | "int8-sq":
            return values * (quantization.bits or 8) // 8 + rows * scale
    raise ValueError(f"no layout for {quantization.precision}")
