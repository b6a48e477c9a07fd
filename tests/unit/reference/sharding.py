"""Writes a transformers Llama as a TensorRT-LLM checkpoint, independently of our converter, for the tests here.

As plain as possible: the whole model is in memory, and every rank is cut out of it with torch's own functions.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM


def tiny_llama(seed: int = 0, **overrides: Any) -> LlamaForCausalLM:
    """Random weights, float32; wide enough that no two tensors have the same shape by accident.

    Norm weights and biases are random as well, since transformers would begin with ones and zeros.
    """
    options: dict[str, Any] = {
        "vocab_size": 97,
        "hidden_size": 36,
        "intermediate_size": 66,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "head_dim": 8,
        "max_position_embeddings": 512,
        "initializer_range": 0.3,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**(options | overrides))).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.3)
            elif "norm" in name:
                parameter.uniform_(0.5, 1.5)
    return model


def checkpoint_config(config: LlamaConfig, tp: int, pp: int, dtype: torch.dtype) -> dict[str, Any]:
    rope = dict(config.rope_parameters)
    theta, kind = rope.pop("rope_theta"), rope.pop("rope_type")
    return {
        "architecture": "LlamaForCausalLM",
        "dtype": str(dtype).removeprefix("torch."),
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_size": config.head_dim,
        "intermediate_size": config.intermediate_size,
        "norm_epsilon": config.rms_norm_eps,
        "hidden_act": config.hidden_act,
        "position_embedding_type": "rope_gpt_neox",
        "max_position_embeddings": config.max_position_embeddings,
        "rotary_base": theta,
        "rotary_scaling": None if kind == "default" else {"type": kind, **rope},
        "attn_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "tie_word_embeddings": config.tie_word_embeddings,
        "mapping": {"world_size": tp * pp, "tp_size": tp, "pp_size": pp},
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
    }


def rank_tensors(model: LlamaForCausalLM, tp: int, pp: int, rank: int) -> dict[str, torch.Tensor]:
    config = model.config
    weights = model.state_dict()
    stage, tensor_rank = rank // tp, rank % tp

    def column(name: str) -> torch.Tensor:
        return weights[name].chunk(tp, dim=0)[tensor_rank]

    def row(name: str) -> torch.Tensor:
        return weights[name].chunk(tp, dim=1)[tensor_rank]

    def heads(name: str, count: int) -> torch.Tensor:
        whole = weights[name].unflatten(0, (count, config.head_dim))
        if count < tp:
            whole = whole.repeat_interleave(tp // count, dim=0)
        return whole.chunk(tp, dim=0)[tensor_rank].flatten(0, 1)

    tensors = {}
    if stage == 0:
        tensors["transformer.vocab_embedding.weight"] = weights["model.embed_tokens.weight"]
    layers = torch.arange(config.num_hidden_layers).tensor_split(pp)[stage].tolist()
    for number, layer in enumerate(layers):
        old, new = f"model.layers.{layer}.", f"transformer.layers.{number}."
        tensors[new + "input_layernorm.weight"] = weights[old + "input_layernorm.weight"]
        tensors[new + "post_layernorm.weight"] = weights[old + "post_attention_layernorm.weight"]
        for kind in ("weight", "bias") if config.attention_bias else ("weight",):
            tensors[new + "attention.qkv." + kind] = torch.cat(
                [
                    heads(f"{old}self_attn.q_proj.{kind}", config.num_attention_heads),
                    heads(f"{old}self_attn.k_proj.{kind}", config.num_key_value_heads),
                    heads(f"{old}self_attn.v_proj.{kind}", config.num_key_value_heads),
                ]
            )
        for kind in ("weight", "bias") if config.mlp_bias else ("weight",):
            tensors[new + "mlp.fc." + kind] = column(f"{old}mlp.gate_proj.{kind}")
            tensors[new + "mlp.gate." + kind] = column(f"{old}mlp.up_proj.{kind}")
        tensors[new + "attention.dense.weight"] = row(old + "self_attn.o_proj.weight")
        tensors[new + "mlp.proj.weight"] = row(old + "mlp.down_proj.weight")
        if config.attention_bias:
            tensors[new + "attention.dense.bias"] = weights[old + "self_attn.o_proj.bias"]
        if config.mlp_bias:
            tensors[new + "mlp.proj.bias"] = weights[old + "mlp.down_proj.bias"]
    if stage == pp - 1:
        tensors["transformer.ln_f.weight"] = weights["model.norm.weight"]
        head = weights["lm_head.weight"]
        padding = -len(head) % tp
        tensors["lm_head.weight"] = torch.nn.functional.pad(head, (0, 0, 0, padding)).chunk(tp, dim=0)[tensor_rank]
    return tensors


def write_checkpoint(
    model: LlamaForCausalLM, folder: Path, *, tp: int = 1, pp: int = 1, dtype: torch.dtype = torch.float32
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(checkpoint_config(model.config, tp, pp, dtype)))
    for rank in range(tp * pp):
        tensors = {name: tensor.to(dtype).clone() for name, tensor in rank_tensors(model, tp, pp, rank).items()}
        save_file(tensors, folder / f"rank{rank}.safetensors", metadata={"format": "pt"})
    return folder
