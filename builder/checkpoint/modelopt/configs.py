"""ModelOpt's quantisation configs for our precisions, chosen as TensorRT-LLM's quantize.py chooses them.

tensorrt_llm/quantization/quantize_by_modelopt.py@042c510d in NVIDIA/TensorRT-LLM.
"""

from __future__ import annotations

import copy
from typing import Any

PRECISIONS = {
    "fp8": "FP8_DEFAULT_CFG",
    "fp8-rowwise": "FP8_PER_CHANNEL_PER_TOKEN_CFG",
    "nvfp4": "NVFP4_DEFAULT_CFG",
    "int4-awq": "INT4_AWQ_CFG",
    "w4a8-awq": "W4A8_AWQ_BETA_CFG",
    "int8-sq": "INT8_SMOOTHQUANT_CFG",
}

KV_CACHE = {"fp8": "FP8_KV_CFG", "nvfp4": "NVFP4_KV_CFG"}
_INT8_KV = {"num_bits": 8, "axis": None}

DECODERS = {
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "qwen2": "qwen",
    "qwen3": "qwen",
    "qwen3_moe": "qwen",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "phi3": "phi3",
}
"""model_type → ModelOpt's name of a decoder."""


def quantization_config(mtq: Any, job: dict[str, Any]) -> dict[str, Any]:
    """The config for `mtq.quantize`; `mtq` is modelopt.torch.quantization."""
    if job["precision"] in PRECISIONS:
        config: dict[str, Any] = copy.deepcopy(getattr(mtq, PRECISIONS[job["precision"]]))
    else:  # weights stay floats, and the KV cache is quantised
        config = {"quant_cfg": [{"quantizer_name": "*", "enable": False}], "algorithm": "max"}
    if job["group_size"] and "awq" in job["precision"]:
        _set_block_sizes(config["quant_cfg"], job["group_size"])
    if job["smoothquant_alpha"] is not None and job["precision"] == "int8-sq":
        config["algorithm"] = {"method": "smoothquant", "alpha": job["smoothquant_alpha"]}
    entries = config["quant_cfg"]
    if job["quantize_lm_head"]:
        entries = [entry for entry in entries if "lm_head" not in entry["quantizer_name"]]
    if job["kv_cache"] in KV_CACHE:
        entries = [*entries, *copy.deepcopy(getattr(mtq, KV_CACHE[job["kv_cache"]])["quant_cfg"])]
    elif job["kv_cache"] == "int8":
        entries = [
            *entries,
            *(
                {"quantizer_name": f"*{kind}_proj.output_quantizer", "cfg": dict(_INT8_KV), "enable": True}
                for kind in "kv"
            ),
        ]
    return {**config, "quant_cfg": entries}


def _set_block_sizes(config: Any, size: int) -> None:
    """The blocks along the inputs, wherever the config says them."""
    if isinstance(config, dict):
        blocks = config.get("block_sizes")
        if isinstance(blocks, dict) and -1 in blocks:
            blocks[-1] = size
        for value in config.values():
            _set_block_sizes(value, size)
    elif isinstance(config, list):
        for value in config:
            _set_block_sizes(value, size)
