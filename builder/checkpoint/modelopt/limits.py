"""What the library can't do, known before it is started: calibration may take hours.

Found by exporting small models of each family (ModelOpt 0.47 with transformers 5, and 0.37 with 4.57).
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

DECODERS = {
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "qwen2": "qwen",
    "qwen3": "qwen",
    "gemma": "gemma",
}
"""model_type → the decoder that export_tensorrt_llm_checkpoint is told, for those that it exports."""

OLDEST = (0, 37)
"""That of TensorRT-LLM 1.2, whose configs are mappings."""

_EXPERTS = ("mixtral", "qwen3_moe")
_PER_CHANNEL = ("fp8-rowwise", "int8-sq")
_HALVES = ("float16", "bfloat16")
_BLOCKS = (64, 128)
"""Of INT4 weights, in TensorRT-LLM's kernels."""


def unexported(job: Mapping[str, Any]) -> str | None:
    """Why the library exports no such checkpoint, in words; None if it does."""
    return _not_as_hugging_face(job) if job["export_format"] == "hf" else _not_as_ranks(job)


def _not_as_hugging_face(job: Mapping[str, Any]) -> str | None:
    if job["model_type"] in _EXPERTS and "awq" in job["precision"]:
        return "it knows no experts of INT4 weights in this format"
    if job["kv_cache"] == "int8":
        return "it knows no INT8 KV cache in this format"
    return None


def _not_as_ranks(job: Mapping[str, Any]) -> str | None:
    if job["dtype"] not in _HALVES:
        return f"what isn't quantised would become float16, and {job['dtype']} was asked for"
    if job["model_type"] not in DECODERS:
        return f"it knows {', '.join(DECODERS)}"
    if job["model_type"] == "mixtral" and _major("transformers") >= 5:
        return "it doesn't know experts that are one tensor, as transformers 5 has them"
    if job["precision"] in _PER_CHANNEL and job["kv_heads"] < job["tp"]:
        return f"{job['kv_heads']} KV heads with a scale per channel can't be repeated for {job['tp']} tensor ranks"
    return None


def unquantized_head(job: Mapping[str, Any]) -> str | None:
    """Why the library leaves a head as it is, or makes none that can be read, in words; None if it quantises it."""
    precision, vocabulary = job["precision"], job["vocab_size"]
    if job["export_format"] == "hf":
        if job["tied"]:
            return "it is tied to the embedding, and who reads this format would take that for both"
    elif job["tied"] and job["model_type"] == "gemma":
        return "it is tied to the embedding, which TensorRT-LLM takes for both in Gemma"
    elif precision in _PER_CHANNEL and vocabulary % job["tp"]:
        return f"scales of {vocabulary} tokens can't be shared by {job['tp']} tensor ranks"
    block = block_size(job)
    if block is not None and vocabulary % block:
        return f"it leaves a head as it is whose {vocabulary} tokens aren't a multiple of {block}, the size of a block"
    return None


def block_size(job: Mapping[str, Any]) -> int | None:
    """Inputs that share a scale; None for precisions without blocks."""
    if job["precision"] == "nvfp4":
        return 16
    return job["group_size"] or 128 if "awq" in job["precision"] else None


def fitting_blocks(inputs: set[int]) -> list[int]:
    """Sizes of blocks of INT4 weights that divide the inputs of all linears."""
    return [size for size in _BLOCKS if not any(number % size for number in inputs)]


def _major(package: str) -> int:
    try:
        return int(version(package).split(".")[0])
    except PackageNotFoundError:
        return 0
