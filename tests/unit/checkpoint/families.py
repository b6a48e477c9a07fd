"""Small random models of every family that the converter knows, as transformers saves them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

hub: Any = transformers  # its types are of no use here

SIZES: dict[str, Any] = {
    "vocab_size": 97,  # no multiple of anything
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 16,  # not hidden_size / heads
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
"""What every model has, unless its row says otherwise."""


def rope(kind: str, **numbers: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **numbers}}


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
PHI = {"hidden_size": 96, "head_dim": None}
LONGROPE = {
    "short_factor": [1 + number / 10 for number in range(8)],
    "long_factor": [2 + number / 5 for number in range(8)],
    "original_max_position_embeddings": 64,
}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama with biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, tied": ("Llama", {"tie_word_embeddings": True}),
    "llama 3.1": ("Llama", rope("llama3", **LLAMA3)),
    "mistral with a window": ("Mistral", {"sliding_window": 16}),
    "mistral-nemo": ("Mistral", {"sliding_window": None, "head_dim": 4}),
    "mixtral": ("Mixtral", {"num_local_experts": 6, "num_experts_per_tok": 2}),
    "qwen2": ("Qwen2", {}),
    "qwen2, one KV head": ("Qwen2", {"num_key_value_heads": 1}),
    "qwen3": ("Qwen3", {}),
    "qwen3-moe": ("Qwen3Moe", {**EXPERTS, "norm_topk_prob": True}),
    "qwen3-moe with dense layers": ("Qwen3Moe", {**EXPERTS, "norm_topk_prob": False, "mlp_only_layers": [0, 2]}),
    "gemma": ("Gemma", {}),
    "gemma-2": ("Gemma2", {"sliding_window": 16, "query_pre_attn_scalar": 24}),
    "gemma-3": (
        "Gemma3Text",
        {
            "sliding_window": 16,
            "query_pre_attn_scalar": 24,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
    ),
    "phi-3-mini": ("Phi3", {**PHI, "num_key_value_heads": 6}),
    "phi-4": ("Phi3", PHI),
    "phi-4-mini": (
        "Phi3",
        {**PHI, "tie_word_embeddings": True, "partial_rotary_factor": 0.75}
        | rope("default", partial_rotary_factor=0.75),
    ),
    "phi-3-128k": ("Phi3", {**PHI, **rope("longrope", **LONGROPE), "original_max_position_embeddings": 64}),
}


def save_model(
    folder: Path, name: str, dtype: torch.dtype = torch.bfloat16, max_shard_size: str = "1GB", **changes: Any
) -> Path:
    """Write the family's model with `changes` to its sizes into `folder`; the same arguments give the same bytes."""
    hub.logging.disable_progress_bar()
    family, values = FAMILIES[name]
    values = {
        key: value for key, value in {**SIZES, **values, **changes}.items() if value is not None or "window" in key
    }
    config = getattr(hub, f"{family}Config")(**values)
    torch.manual_seed(7)
    model = hub.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases would all be 1 or 0
            parameter.copy_(torch.randn_like(parameter))
    model.to(dtype).save_pretrained(folder, max_shard_size=max_shard_size)
    return folder


def stored_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of all weight files of a model."""
    tensors: dict[str, torch.Tensor] = {}
    for file in folder.glob("model*.safetensors"):
        tensors |= load_file(file)
    return tensors


def edit_config(folder: Path, **changes: Any) -> None:
    """Replace some keys of config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_weights(folder: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Change the tensors of a model with one weight file in place."""
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
