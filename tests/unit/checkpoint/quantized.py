"""Models whose weights are published quantised, small and random, and what numbers such weights stand for.

The forms are those that ModelOpt's export_hf_checkpoint, compressed-tensors and transformers' FBGEMM write; what the
numbers stand for is computed in float64, which holds every product of a code and its scales exactly.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.unit.checkpoint.families import edit_config, save_model, stored_tensors
from tests.unit.checkpoint.reassembly import Rank

GROUP = 32
SIZES = {"hidden_size": 96, "intermediate_size": 192, "num_hidden_layers": 3}

Tensors = dict[str, torch.Tensor]

ALGORITHMS = {
    "fp8": "FP8",
    "fp8-rowwise": "FP8_PER_CHANNEL_PER_TOKEN",
    "nvfp4": "NVFP4",
    "int4-awq": "W4A16_AWQ",
    "w4a8-awq": "W4A8_AWQ",
    "int8-sq": "W8A8_SQ_PER_CHANNEL",
}


# sources


def save_quantized(
    folder: Path,
    precision: str,
    method: str = "modelopt",
    family: str = "llama",
    *,
    excluded: tuple[str, ...] = (),
    kv_cache: bool = False,
    alike: bool = False,
    prequant: tuple[str, ...] = ("o_proj", "down_proj"),
    **changes: Any,
) -> Path:
    """Write a model of random weights, quantised, into `folder`.

    `excluded` are modules that stay as they are. `alike`: linears that are fused have the same scale. `prequant`: the
    linears with a pre-quantisation scale; ModelOpt folds those of linears behind a norm into it.
    """
    save_model(folder, family, **{**SIZES, **changes})
    generator = torch.Generator().manual_seed(11)
    tensors: Tensors = {}
    for name, tensor in stored_tensors(folder).items():
        module = name.removesuffix(".weight")
        if not _is_linear(name) or any(part in module for part in excluded):
            tensors[name] = tensor
            continue
        shared = torch.Generator().manual_seed(int(name.split(".")[2])) if alike or precision in _SHARED else generator
        made = _FORMS[precision](tensor, generator, shared)
        if precision in _PREQUANT and module.endswith(prequant):
            made["pre_quant_scale"] = _positive((tensor.shape[1],), shared).bfloat16()
        for parameter, value in made.items():
            tensors[f"{module}.{parameter}"] = _stored(value, parameter, method)
    if kv_cache:
        layers = {name.rpartition(".self_attn.")[0] for name in tensors if ".self_attn." in name}
        places = ("k_proj.k_scale", "v_proj.v_scale") if method == "modelopt" else ("k_scale", "v_scale")
        tensors |= {f"{layer}.self_attn.{place}": _positive((), generator) for layer in layers for place in places}
    for file in folder.glob("model*"):
        file.unlink()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    ignored = ["lm_head", *excluded]
    edit_config(folder, quantization_config=quantization_config(precision, method, ignored, kv_cache))
    return folder


def quantization_config(precision: str, method: str, ignored: list[str], kv_cache: bool = False) -> dict[str, Any]:
    """What the tools write into config.json."""
    if method == "fbgemm_fp8":
        return {"quant_method": method, "activation_scale_ub": 1200.0, "modules_to_not_convert": ignored}
    scheme = {"kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False}} if kv_cache else {}
    if method == "modelopt":
        group = {"group_size": GROUP} if precision in ("int4-awq", "w4a8-awq") else {}
        return {"quant_method": method, "quant_algo": ALGORITHMS[precision], "ignore": ignored, **group, **scheme}
    numbers = {"num_bits": 8, "type": "float", "symmetric": True}
    weights, inputs = ("tensor", "tensor") if precision == "fp8" else ("channel", "token")
    return {
        "quant_method": method,
        "format": "float-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {**numbers, "strategy": weights, "dynamic": False},
                "input_activations": {**numbers, "strategy": inputs, "dynamic": inputs == "token"},
            }
        },
        "ignore": ignored,
        **scheme,
    }


def _is_linear(name: str) -> bool:
    return name.endswith(("_proj.weight", ".w1.weight", ".w2.weight", ".w3.weight"))


def _stored(value: torch.Tensor, parameter: str, method: str) -> torch.Tensor:
    """compressed-tensors has scales [1] and, in the model's dtype, [N, 1]; FBGEMM [N, 1] in float32."""
    if parameter == "weight_scale" and method != "modelopt" and value.dim() == 1:
        return value[:, None].clone() if method == "fbgemm_fp8" else value[:, None].bfloat16()
    return value.reshape(1) if method == "compressed-tensors" and value.dim() == 0 else value


def _positive(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Between 2^-8 and 2^-6, with all bits of a float32 in use."""
    return 2 ** (torch.rand(shape, generator=generator) * 2 - 8)


def _bytes(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)


def _fp8_codes(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Every number there is, but NaN."""
    codes = _bytes(shape, generator)
    return torch.where(codes & 0x7F == 0x7F, codes & 0xF0, codes).view(torch.float8_e4m3fn)


def _fp8(weight: torch.Tensor, own: torch.Generator, shared: torch.Generator) -> Tensors:
    return {
        "weight": _fp8_codes(tuple(weight.shape), own),
        "weight_scale": _positive((), shared),
        "input_scale": _positive((), own),
    }


def _fp8_rowwise(weight: torch.Tensor, own: torch.Generator, _: torch.Generator) -> Tensors:
    return {"weight": _fp8_codes(tuple(weight.shape), own), "weight_scale": _positive((len(weight),), own)}


def _nvfp4(weight: torch.Tensor, own: torch.Generator, shared: torch.Generator) -> Tensors:
    rows, columns = weight.shape
    blocks = _bytes((rows, columns // 16), own) % 0x7F
    return {
        "weight": _bytes((rows, columns // 2), own),
        "weight_scale": blocks.view(torch.float8_e4m3fn),
        "weight_scale_2": _positive((), shared),
        "input_scale": _positive((), own),
    }


def _int4_awq(weight: torch.Tensor, own: torch.Generator, _: torch.Generator) -> Tensors:
    rows, columns = weight.shape
    return {"weight": _bytes((rows // 2, columns), own), "weight_scale": _positive((rows, columns // GROUP), own)}


def _w4a8_awq(weight: torch.Tensor, own: torch.Generator, shared: torch.Generator) -> Tensors:
    numbers = {"weight_scale_2": _positive((), shared), "input_scale": _positive((), own)}
    return _int4_awq(weight, own, shared) | numbers


def _int8_sq(weight: torch.Tensor, own: torch.Generator, _: torch.Generator) -> Tensors:
    return {
        "weight": _bytes(tuple(weight.shape), own).view(torch.int8),
        "weight_scale": _positive((len(weight),), own),
        "input_scale": _positive((), own),
    }


_FORMS: dict[str, Callable[[torch.Tensor, torch.Generator, torch.Generator], Tensors]] = {
    "fp8": _fp8,
    "fp8-rowwise": _fp8_rowwise,
    "nvfp4": _nvfp4,
    "int4-awq": _int4_awq,
    "w4a8-awq": _w4a8_awq,
    "int8-sq": _int8_sq,
}
_PREQUANT = ("int4-awq", "w4a8-awq", "int8-sq")
_SHARED = ("nvfp4", "w4a8-awq", "int4-awq", "int8-sq")
"""Where fused linears must have one scale, ModelOpt gives them one."""


# what the numbers stand for


def source_values(tensors: Tensors, precision: str) -> Tensors:
    """The weights of a source by their names: quantised ones in float64, others as they are; no scales."""
    values = {name: tensor for name, tensor in tensors.items() if name.endswith((".weight", ".bias"))}
    for name in values:
        module = name.removesuffix(".weight")
        if (scale := tensors.get(f"{module}.weight_scale")) is not None:
            second = tensors.get(f"{module}.weight_scale_2")
            values[name] = _values(precision, tensors[name], scale, second)
    return values


def rank_values(rank: Rank, precision: str) -> tuple[Rank, Rank]:
    """The weights of a rank in the same way, and the other scales, of activations, by their names."""
    scale_name = "per_channel_scale" if precision == "fp8-rowwise" else "weights_scaling_factor"
    values, others = {}, {}
    for name, tensor in rank.items():
        module, _, parameter = name.rpartition(".")
        if parameter in ("activation_scaling_factor", "prequant_scaling_factor", "kv_cache_scaling_factor"):
            others[name] = tensor
        elif parameter == "weight" and f"{module}.{scale_name}" in rank:
            second = rank.get(f"{module}.weights_scaling_factor_2")
            values[name] = _values(precision, tensor, rank[f"{module}.{scale_name}"], second)
        elif parameter in ("weight", "bias"):
            values[name] = tensor
        else:
            assert parameter in (scale_name, "weights_scaling_factor_2"), name
    return values, others


def _values(
    precision: str, weight: torch.Tensor, scale: torch.Tensor, second: torch.Tensor | None = None
) -> torch.Tensor:
    factor = 1.0 if second is None else second.double()
    if precision == "fp8":
        return weight.double() * scale.double().reshape((-1, 1, 1) if weight.dim() == 3 else ())
    if precision in ("fp8-rowwise", "int8-sq"):
        return weight.double() * scale.double().reshape(len(weight), 1)
    if precision == "nvfp4":
        return _e2m1(weight) * scale.double().repeat_interleave(16, dim=1) * factor
    codes = _int4(weight)
    return codes * scale.double().repeat_interleave(codes.shape[1] // scale.shape[1], dim=1) * factor


def _e2m1(packed: torch.Tensor) -> torch.Tensor:
    """Sign, 2 bits of exponent, 1 of mantissa; the lower half of a byte comes first."""
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
    codes = torch.stack([packed & 15, packed >> 4], dim=2).flatten(1).long()
    return torch.cat([table, -table])[codes]


def _int4(packed: torch.Tensor) -> torch.Tensor:
    """Two's complement; the lower half of a byte is the earlier row."""
    signed = packed.view(torch.int8).to(torch.int16)
    low, high = (signed << 12 >> 12) & 15, (signed >> 4) & 15
    codes = torch.stack([low, high], dim=1).flatten(0, 1)
    return torch.where(codes > 7, codes - 16, codes).double()


def config_of(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config
