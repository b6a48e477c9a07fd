"""Quantises the linears of a written checkpoint with torch, and says what is left of them, for the tests here.

Scales are found by the simplest rule that there is; what counts is that the stored numbers and the values that they
stand for are made together, apart from the code that is tested.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

GROUP = 4
"""Inputs that share a scale of AWQ, here."""

Parts = dict[str, Tensor]
Quantizer = Callable[[Tensor], tuple[Parts, Tensor]]
"""weight (out, in) → its tensors, by what follows the linear's name, and the values that they stand for, (out, in)."""

ONE = torch.ones(1)
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def fp8(weight: Tensor) -> tuple[Parts, Tensor]:
    scale = weight.abs().max().reshape(1) / 448
    codes = (weight / scale).to(torch.float8_e4m3fn)
    parts = {"weight": codes, "weights_scaling_factor": scale, "activation_scaling_factor": ONE}
    return parts, codes.to(torch.float32) * scale


def fp8_rowwise(weight: Tensor) -> tuple[Parts, Tensor]:
    scale = weight.abs().amax(1) / 448
    codes = (weight / scale[:, None]).to(torch.float8_e4m3fn)
    return {"weight": codes, "per_channel_scale": scale}, codes.to(torch.float32) * scale[:, None]


def nvfp4(weight: Tensor, shape: tuple[int, ...] = ()) -> tuple[Parts, Tensor]:
    blocks = weight.unflatten(1, (-1, 16))
    whole = weight.abs().max() / (448 * 6)
    scales = (blocks.abs().amax(2) / 6 / whole).to(torch.float8_e4m3fn)
    steps = scales.to(torch.float32) * whole
    codes = (blocks / steps[..., None]).unsqueeze(-1).sub(E2M1).abs().argmin(-1).flatten(1)
    first, second = codes[:, 0::2], codes[:, 1::2]
    parts = {
        "weight": (first + 16 * second).to(torch.uint8),
        "weights_scaling_factor": scales,
        "weights_scaling_factor_2": whole.reshape(shape),
        "activation_scaling_factor": ONE.reshape(shape),
    }
    return parts, E2M1[codes] * steps.repeat_interleave(16, dim=1)


def nvfp4_with_lists(weight: Tensor) -> tuple[Parts, Tensor]:
    """The numbers as [1] instead of []."""
    return nvfp4(weight, (1,))


def _smoothed(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The weight with every column multiplied by another number, and what an input has to be multiplied with."""
    scale = torch.linspace(0.5, 2, weight.shape[1])
    return weight / scale, scale


def int4_awq(weight: Tensor) -> tuple[Parts, Tensor]:
    smooth, prequant = _smoothed(weight)
    scale = smooth.unflatten(1, (-1, GROUP)).abs().amax(2) / 7
    wide = scale.repeat_interleave(GROUP, dim=1)
    codes = (smooth / wide).round().clamp(-8, 7)
    codes[0, 0] = -8  # a code that a symmetric rule never gives
    unsigned = codes.to(torch.int32) % 16
    parts = {
        "weight": (unsigned[0::2] + 16 * unsigned[1::2]).to(torch.uint8).view(torch.int8),
        "weights_scaling_factor": scale,
        "prequant_scaling_factor": prequant,
    }
    return parts, codes * wide * prequant


def w4a8_awq(weight: Tensor) -> tuple[Parts, Tensor]:
    parts, values = int4_awq(weight)
    # the step of FP8 that the scales are multiples of, which the product of the scales takes out again
    return parts | {"weights_scaling_factor_2": ONE * 0.01, "activation_scaling_factor": ONE * 3}, values


def int8_sq(weight: Tensor) -> tuple[Parts, Tensor]:
    smooth, prequant = _smoothed(weight)
    scale = smooth.abs().amax(1) / 127
    codes = (smooth / scale[:, None]).round().to(torch.int8)
    parts = {
        "weight": codes,
        "weights_scaling_factor": scale,
        "activation_scaling_factor": ONE,
        "prequant_scaling_factor": prequant,
    }
    return parts, codes.to(torch.float32) * scale[:, None] * prequant


def weight_only(weight: Tensor, bits: int) -> tuple[Parts, Tensor]:
    """The loop of symmetric_quantize in TensorRT-LLM's cutlass_preprocessors.cpp, number by number."""
    steps = 2 ** (bits - 1)
    scales = weight.abs().amax(1, keepdim=True) / steps
    codes = [
        # C's round(): halves away from zero
        [max(-steps, min(steps - 1, int(math.copysign(math.floor(abs(scaled) + 0.5), scaled)))) for scaled in row]
        for row in (weight / scales).tolist()
    ]
    return {"weight": weight}, torch.tensor(codes) * scales


QUANTIZERS: dict[str, tuple[str, Quantizer]] = {
    "fp8": ("FP8", fp8),
    "fp8-rowwise": ("FP8_PER_CHANNEL_PER_TOKEN", fp8_rowwise),
    "nvfp4": ("NVFP4", nvfp4),
    "nvfp4-lists": ("NVFP4", nvfp4_with_lists),
    "int4-awq": ("W4A16_AWQ", int4_awq),
    "w4a8-awq": ("W4A8_AWQ", w4a8_awq),
    "int8-sq": ("W8A8_SQ_PER_CHANNEL", int8_sq),
    "int8-wo": ("W8A16", lambda weight: weight_only(weight, 8)),
    "int4-wo": ("W4A16", lambda weight: weight_only(weight, 4)),
}

LINEARS = ("attention.qkv", "attention.dense", "mlp.fc", "mlp.gate", "mlp.proj")


def quantization(name: str, **more: Any) -> dict[str, Any]:
    """The section of config.json."""
    algo, _ = QUANTIZERS[name]
    section = {"quant_algo": algo, "kv_cache_quant_algo": None, "exclude_modules": ["lm_head", "*vocab_embedding"]}
    if "awq" in name:
        section |= {"group_size": GROUP, "has_zero_point": False, "pre_quant_scale": True}
    return section | more


def quantize(folder: Path, name: str, skip: tuple[str, ...] = (), also: tuple[str, ...] = (), **more: Any) -> Path:
    """Quantise the checkpoint in `folder`; beside it, `folder`-values has what is left of it, as floats.

    `skip`: linears, without their layer, that stay floats; `also`: others that don't. `more` of the section of
    config.json. Returns the second folder.
    """
    _, quantizer = QUANTIZERS[name]
    left = folder.with_name(f"{folder.name}-values")
    left.mkdir()
    text = (folder / "config.json").read_text()
    (left / "config.json").write_text(text)
    (folder / "config.json").write_text(json.dumps(json.loads(text) | {"quantization": quantization(name, **more)}))
    for path in folder.glob("*.safetensors"):
        stored, values = {}, {}
        for key, tensor in load_file(path).items():
            linear = key.removesuffix(".weight")
            quantized = linear.endswith(LINEARS) and not linear.endswith(skip or ("nothing",))
            if key.endswith(".weight") and (quantized or linear in also):
                parts, values[key] = experts(tensor, quantizer) if tensor.dim() == 3 else quantizer(tensor)
                stored |= {f"{linear}.{part}": content for part, content in parts.items()}
            else:
                stored[key] = values[key] = tensor
        for target, tensors in ((folder, stored), (left, values)):
            save_file({key: tensor.contiguous().clone() for key, tensor in tensors.items()}, target / path.name)
    return left


def experts(weight: Tensor, quantizer: Quantizer) -> tuple[Parts, Tensor]:
    """One after another; they have one scale of activations together."""
    each = [quantizer(expert) for expert in weight]
    parts = {name: torch.stack([parts[name] for parts, _ in each]) for name in each[0][0]}
    if "activation_scaling_factor" in parts:
        parts["activation_scaling_factor"] = ONE
    return parts, torch.stack([values for _, values in each])
