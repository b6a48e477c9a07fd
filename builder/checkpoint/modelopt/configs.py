"""What `mtq.quantize` is told for one of our precisions, chosen as TensorRT-LLM's quantize.py chooses it.

Source: tensorrt_llm/quantization/quantize_by_modelopt.py@042c510d in NVIDIA/TensorRT-LLM. One difference: INT8 KV
caches. That file asks for quantizers at the outputs of k_proj and v_proj, while ModelOpt's export (0.37 as 0.47,
torch/export/quant_utils.py, get_kv_cache_scaling_factor) reads those of the attention, and would write no scales.

A config names quantizers by patterns, and later ones win: a list of entries in ModelOpt 0.47, a mapping in 0.37:

    {"quant_cfg": [{"quantizer_name": "*weight_quantizer", "cfg": {"num_bits": 4, "block_sizes": {-1: 128}}}, …],
    {"quant_cfg": {"*weight_quantizer": {"num_bits": 4, "block_sizes": {-1: 128}}, …},
     "algorithm": "max" or {"method": "awq_lite", …}}
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

CONFIGS = {
    "fp8": "FP8_DEFAULT_CFG",
    "fp8-rowwise": "FP8_PER_CHANNEL_PER_TOKEN_CFG",
    "nvfp4": "NVFP4_DEFAULT_CFG",
    "int4-awq": "INT4_AWQ_CFG",
    "w4a8-awq": "W4A8_AWQ_BETA_CFG",
    "int8-sq": "INT8_SMOOTHQUANT_CFG",
}
"""Our precision → ModelOpt's config."""

FLOATS = ("fp16", "bf16")
"""Precisions whose weights stay as they are, for a KV cache that is quantised alone."""

ALGORITHMS = {
    "fp8": "FP8",
    "fp8-rowwise": "FP8_PER_CHANNEL_PER_TOKEN",
    "nvfp4": "NVFP4",
    "int4-awq": "W4A16_AWQ",
    "w4a8-awq": "W4A8_AWQ",
    "int8-sq": "W8A8_SQ_PER_CHANNEL",
    **dict.fromkeys(FLOATS),
}
"""Our precision → quant_algo of what is exported; None for floats."""

FORMATS = {
    "fp8": "fp8",
    "fp8-rowwise": "fp8_pc_pt",
    "nvfp4": "nvfp4",
    "int4-awq": "int4_awq",
    "w4a8-awq": "w4a8_awq",
    "int8-sq": "int8_sq",
    **dict.fromkeys(FLOATS),
}
"""Our precision → what ModelOpt calls quantizers in a model."""

KV_ALGORITHMS = {None: None, "fp8": "FP8", "int8": "INT8", "nvfp4": "NVFP4"}
"""Our KV cache → kv_cache_quant_algo."""

_KV_CONFIGS = {"fp8": "FP8_KV_CFG", "nvfp4": "NVFP4_KV_CFG"}
_INT8_KV = {"*[kv]_bmm_quantizer": {"num_bits": 8, "axis": None}}
_HEAD = "*lm_head*"
_GEMMA = ("gemma", "gemma2", "gemma3_text")


def quantization_config(mtq: Any, job: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a job; `mtq` is modelopt.torch.quantization, or has its configs."""
    precision = job["precision"]
    if precision in FLOATS:
        base = getattr(mtq, CONFIGS["fp8"])["quant_cfg"]
        off = [{"quantizer_name": "*", "enable": False}] if isinstance(base, list) else {"*": {"enable": False}}
        config: dict[str, Any] = {"quant_cfg": off, "algorithm": "max"}
    else:
        config = copy.deepcopy(getattr(mtq, CONFIGS[precision]))
    quantizers = config["quant_cfg"]
    if job["group_size"] and "awq" in precision:
        _set_block_size(quantizers, job["group_size"])
    if job["quantize_lm_head"]:
        _remove(quantizers, _HEAD)
    if job["kv_cache"] == "int8":
        _add(quantizers, _INT8_KV)
    elif job["kv_cache"] is not None:
        _add(quantizers, getattr(mtq, _KV_CONFIGS[job["kv_cache"]])["quant_cfg"])
    if (algorithm := _algorithm(job)) is not None:
        config["algorithm"] = algorithm
    return config


def passes(algorithm: Any) -> int:
    """How often calibration runs all texts through the model."""
    method = algorithm.get("method") if isinstance(algorithm, Mapping) else algorithm
    return 2 if isinstance(method, str) and method.startswith("awq") else 1


def _algorithm(job: Mapping[str, Any]) -> dict[str, Any] | None:
    """Where it isn't the config's own: as the recipe says, or for Gemma, whose results the defaults spoil."""
    gemma = job["model_type"] in _GEMMA
    if job["precision"] == "int8-sq" and (job["smoothquant_alpha"] is not None or gemma):
        alpha = 0.5 if job["smoothquant_alpha"] is None else job["smoothquant_alpha"]
        return {"method": "smoothquant", "alpha": alpha}
    if job["precision"] == "w4a8-awq" and gemma:
        return {"method": "awq_lite", "alpha_step": 1}
    return None


def _set_block_size(quantizers: Any, size: int) -> None:
    """Blocks of INT4 weights lie along the inputs, the last dimension; a weight may be quantised in two steps."""
    for name, steps in _named(quantizers):
        if name == "*weight_quantizer":
            for step in steps if isinstance(steps, list) else [steps]:
                if step.get("block_sizes"):
                    step["block_sizes"][-1] = size


def _named(quantizers: Any) -> list[tuple[str, Any]]:
    """Each pattern with what it sets."""
    if isinstance(quantizers, list):
        return [(entry["quantizer_name"], entry.get("cfg") or {}) for entry in quantizers]
    return list(quantizers.items())


def _remove(quantizers: Any, pattern: str) -> None:
    if isinstance(quantizers, list):
        quantizers[:] = [entry for entry in quantizers if entry["quantizer_name"] != pattern]
    else:
        quantizers.pop(pattern, None)


def _add(quantizers: Any, more: Any) -> None:
    """Put more patterns behind those that are there: a list of entries, or a mapping."""
    if isinstance(quantizers, dict):
        quantizers.update({name: dict(value) for name, value in _named(more)})
    elif isinstance(more, list):
        quantizers += copy.deepcopy(more)
    else:
        quantizers += [{"quantizer_name": name, "cfg": dict(value)} for name, value in more.items()]
