"""The quantised model as files: as TensorRT-LLM's engines read it, or as its PyTorch flow does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from builder.checkpoint.modelopt.checks import check_tensors
from builder.checkpoint.modelopt.configs import ALGORITHMS, FORMATS, KV_ALGORITHMS
from builder.checkpoint.modelopt.failure import Failure
from builder.checkpoint.modelopt.limits import DECODERS
from builder.checkpoint.modelopt.ranks import EMBEDDING, add_missing_prequant, excluded, share, staged

_BESIDE = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "spiece.model",
    "chat_template*",
    "generation_config.json",
)
"""What the PyTorch flow reads beside weights and config."""

_HEAD = "lm_head.weight"
_VOCABULARY_STEP = 64


def check_format(model: Any, job: Mapping[str, Any]) -> None:
    """Failure DIFFERENT if the quantizers in a model aren't those of the job: known before anything is measured."""
    from modelopt.torch.export.quant_utils import get_quantization_format

    wanted, found = FORMATS[job["precision"]], get_quantization_format(model)
    if found != wanted:
        raise Failure("DIFFERENT", f"it makes {found or 'floats'} of the weights")


def export_ranks(model: Any, job: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """Write rank0.safetensors, … and ModelOpt's config.json, the layout of TensorRT-LLM's checkpoints; returns that.

    The library makes the ranks of one pipeline stage; here its layers are dealt out to stages, since its own split
    takes even ones only, and gives the last stage of a tied Gemma no head. Embedding and head are written from the
    model, every rank a share of ceil(V / tp) rows: for INT4 the library pads them to a multiple of 64 tokens, which the
    network would then seem to have, and fails where the head is tied.
    """
    import torch
    from modelopt.torch.export.model_config_export import torch_to_tensorrt_llm_checkpoint
    from safetensors.torch import save_file

    dtype, tp, stages = getattr(torch, job["dtype"]), job["tp"], job["stages"]
    embedding = model.get_input_embeddings().weight
    vocabulary = embedding.shape[0]
    model.config.vocab_size = -(-vocabulary // _VOCABULARY_STEP) * _VOCABULARY_STEP  # it has nothing to pad then
    config: dict[str, Any] = {}
    section: dict[str, Any] = {}
    left_out: list[str] = []
    with torch.inference_mode():
        ranks = torch_to_tensorrt_llm_checkpoint(model, DECODERS[job["model_type"]], dtype, tp, 1)
        for number, (config, tensors, layers) in enumerate(ranks):
            config |= {"num_hidden_layers": stages[-1][1], "vocab_size": vocabulary}
            config["mapping"] |= {"world_size": tp * len(stages), "pp_size": len(stages)}
            section = config["quantization"]
            agree(section, layers, job)
            tensors[EMBEDDING] = share(embedding, tp, number, dtype)
            if not _quantized_head(tensors, job):
                head = model.get_output_embeddings().weight
                tensors[_HEAD] = share(head, tp, number, dtype)
            if section.get("pre_quant_scale"):
                add_missing_prequant(tensors, dtype)
            check_tensors(tensors.items())
            parts = list(staged(tensors, stages))
            left_out = excluded(parts) if section["quant_algo"] else []
            for stage, own in enumerate(parts):
                save_file(own, out / f"rank{stage * tp + number}.safetensors")
    del config["rank"]  # it is every rank's
    section.pop("quantized_layers", None)  # there are none, or it was refused
    section["exclude_modules"] = left_out
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return config


def export_hugging_face(model: Any, job: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """Write the model as Hugging Face lays it out, with ModelOpt's hf_quant_config.json, and what belongs to it.

    config.json is the source's own, with the quantisation in it: transformers 5 would write rope_parameters, which the
    transformers 4 of TensorRT-LLM doesn't know, and it would take 10000 for a theta without a word.
    """
    from modelopt.torch.export import export_hf_checkpoint
    from safetensors import safe_open

    export_hf_checkpoint(model, export_dir=out)
    source = Path(job["source"])
    told = json.loads((out / "hf_quant_config.json").read_text())["quantization"]
    agree(told, {}, job)
    names: set[str] = set()
    for file in sorted(out.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            own = sorted(tensors.keys())
            check_tensors((name, tensors.get_tensor(name)) for name in own)
            names.update(own)
    _quantized_head(names, job)
    config: dict[str, Any] = json.loads((source / "config.json").read_text())
    exported = json.loads((out / "config.json").read_text())
    config |= {"torch_dtype": job["dtype"], "quantization_config": exported["quantization_config"]}
    config.pop("dtype", None)
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for pattern in _BESIDE:
        for path in sorted(source.glob(pattern)):
            if path.is_file():
                shutil.copyfile(path, out / path.name)
    return config


def agree(section: Mapping[str, Any], layers: Mapping[str, Any], job: Mapping[str, Any]) -> None:
    """Failure DIFFERENT unless what was quantised is what the job says, in one way for all layers."""
    wanted = (ALGORITHMS[job["precision"]], KV_ALGORITHMS[job["kv_cache"]])
    found = (section.get("quant_algo"), section.get("kv_cache_quant_algo"))
    if found != wanted or layers.get("quantized_layers"):
        raise Failure(
            "DIFFERENT", f"weights {found[0]}, KV cache {found[1]} instead of weights {wanted[0]}, KV cache {wanted[1]}"
        )
    size, group = section.get("group_size"), job["group_size"]
    if group and size and size != group:
        raise Failure("DIFFERENT", f"groups of {size} weights instead of {group}")


def _quantized_head(tensors: Iterable[str], job: Mapping[str, Any]) -> bool:
    quantized = any(name.startswith("lm_head.") and "scal" in name for name in tensors)
    if job["quantize_lm_head"] and not quantized:
        raise Failure("HEAD", "it was left as it is")
    if quantized and not job["quantize_lm_head"]:
        raise Failure("DIFFERENT", "the head is quantised, and precision.quantize_lm_head isn't set")
    return quantized
