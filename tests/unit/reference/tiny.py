"""Tiny transformers models of every family, with random weights in float32."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MixtralConfig,
    Phi3Config,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)
from transformers.models.auto import AutoModelForCausalLM

WINDOW = 16
"""Tokens that layers with a window see."""

# Wide enough that no two tensors have the same shape by accident.
SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 36,
    "intermediate_size": 66,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}

FAMILIES: dict[str, tuple[type[PreTrainedConfig], dict[str, Any]]] = {
    "llama": (LlamaConfig, {}),
    "mistral": (MistralConfig, {"sliding_window": WINDOW}),
    "mixtral": (MixtralConfig, {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 24}),
    # layers 1 and 2 have a window
    "qwen2": (Qwen2Config, {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}),
    "qwen3": (Qwen3Config, {}),
    "qwen3_moe": (
        Qwen3MoeConfig,
        {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True},
    ),
    "gemma": (GemmaConfig, {}),
    # soft caps low enough that they bend most scores and logits
    "gemma2": (
        Gemma2Config,
        {
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma3": (
        Gemma3TextConfig,
        {
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 24,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 700.0},
                "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0},
            },
        },
    ),
    # the width of a head is hidden_size / num_attention_heads there
    "phi3": (Phi3Config, {"hidden_size": 48, "sliding_window": WINDOW}),
}


def tiny(family: str, seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """Every weight is random, norms and biases as well, since transformers would begin with ones and zeros."""
    config_class, own = FAMILIES[family]
    options = SIZES | own | overrides
    if family == "phi3":
        del options["head_dim"]
    config = config_class(**options)
    # the eager attention is the one that has soft caps
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    torch.manual_seed(seed)
    around = 0.0 if family.startswith("gemma") else 1.0  # Gemma's norms multiply by 1 + weight
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(around - 0.5, around + 0.5)
            else:
                parameter.normal_(0, 0.3)
    return model


def tiny_llama(seed: int = 0, **overrides: Any) -> LlamaForCausalLM:
    return tiny("llama", seed, **overrides)
