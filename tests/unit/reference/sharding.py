"""Writes a transformers model as a TensorRT-LLM checkpoint, independently of our converter, for the tests here.

As plain as possible: the whole model is in memory, and every rank is cut out of it with torch's own functions.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

NORMS = {
    "input_layernorm": "input_layernorm",
    "post_attention_layernorm": "post_layernorm",
    "pre_feedforward_layernorm": "pre_feedforward_layernorm",
    "post_feedforward_layernorm": "post_feedforward_layernorm",
    "self_attn.q_norm": "attention.q_layernorm",
    "self_attn.k_norm": "attention.k_layernorm",
}
"""transformers' names → TensorRT-LLM's, in a layer."""


@dataclass(frozen=True)
class Split:
    """`embedding`: the dimension along which the embedding is split; None: not at all."""

    tp: int = 1
    pp: int = 1
    cp: int = 1
    moe_ep: int = 1
    embedding: int | None = None

    @property
    def moe_tp(self) -> int:
        return self.tp // self.moe_ep


def checkpoint_config(model: PreTrainedModel, split: Split, dtype: torch.dtype) -> dict[str, Any]:
    config = model.config
    kind = config.model_type
    rope = dict(config.rope_parameters)
    local = rope.pop("sliding_attention", None)
    rope = dict(rope.pop("full_attention", rope))
    theta, rope_type = rope.pop("rope_theta"), rope.pop("rope_type")
    partial = rope.pop("partial_rotary_factor", 1.0)
    table = {
        "architecture": type(model).__name__,
        "dtype": str(dtype).removeprefix("torch."),
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_size": head_size(model),
        "intermediate_size": config.intermediate_size,
        "norm_epsilon": config.rms_norm_eps,
        "hidden_act": config.hidden_activation if kind in ("gemma2", "gemma3_text") else config.hidden_act,
        "position_embedding_type": "rope_gpt_neox",
        "max_position_embeddings": config.max_position_embeddings,
        "rotary_base": theta,
        "rotary_scaling": None if rope_type == "default" else {"type": rope_type, **rope},
        "attn_bias": getattr(config, "attention_bias", kind == "qwen2"),
        "mlp_bias": getattr(config, "mlp_bias", False),
        "tie_word_embeddings": config.tie_word_embeddings,
        "mapping": {"world_size": split.tp * split.pp * split.cp, "tp_size": split.tp, "pp_size": split.pp},
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
    }
    if split.cp > 1:
        table["mapping"] |= {"cp_size": split.cp}
    if split.embedding is not None:
        table |= {"use_parallel_embedding": True, "embedding_sharding_dim": split.embedding}
    if any(layer_windows(model)):
        windows = [window or config.max_position_embeddings for window in layer_windows(model)]
        table["runtime_defaults"] = {"max_attention_window": windows}
    if kind in ("qwen2", "qwen3", "qwen3_moe"):
        table["qwen_type"] = kind
    if kind in ("qwen3", "qwen3_moe", "gemma3_text"):
        table["qk_layernorm"] = True
    if kind in ("mixtral", "qwen3_moe"):
        normalised = kind == "mixtral" or config.norm_topk_prob
        count = config.num_local_experts if kind == "mixtral" else config.num_experts
        table |= {"hidden_act": "swiglu"}
        table["moe"] = {
            "num_experts": count,
            "top_k": config.num_experts_per_tok,
            "normalization_mode": 1 if normalised else 0,
        }
        table["mapping"] |= {"moe_tp_size": split.moe_tp, "moe_ep_size": split.moe_ep}
    if kind == "qwen3_moe":
        table |= {
            "moe_intermediate_size": config.moe_intermediate_size,
            "mlp_only_layers": config.mlp_only_layers,
            "decoder_sparse_step": config.decoder_sparse_step,
        }
    if kind in ("gemma2", "gemma3_text"):
        table |= {
            "inter_layernorms": True,
            "query_pre_attn_scalar": config.query_pre_attn_scalar,
            "final_logit_softcapping": config.final_logit_softcapping,
        }
    if kind == "gemma2":
        table["attn_logit_softcapping"] = config.attn_logit_softcapping
    if kind == "gemma3_text":
        assert local is not None
        full = config.layer_types.index("full_attention")
        table |= {
            "_sliding_window_pattern": full + 1,
            "rope_local_base_freq": local["rope_theta"],
            "sliding_window": config.sliding_window,
        }
    if kind == "phi3":
        table |= {"hidden_act": "swiglu", "rotary_pct": partial}
        if rope_type == "longrope":
            table |= {
                "position_embedding_type": "long_rope",
                "original_max_position_embeddings": rope["original_max_position_embeddings"],
                "longrope_scaling_short_factors": rope["short_factor"],
                "longrope_scaling_long_factors": rope["long_factor"],
            }
    return table


def head_size(model: PreTrainedModel) -> int:
    config = model.config
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def layer_windows(model: PreTrainedModel) -> list[int | None]:
    config = model.config
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return [window] * config.num_hidden_layers
    return [window if kind == "sliding_attention" else None for kind in kinds]


def rank_tensors(model: PreTrainedModel, split: Split, rank: int) -> dict[str, Tensor]:
    config, weights, tp = model.config, model.state_dict(), split.tp
    kind, size = config.model_type, head_size(model)
    stage, tensor_rank = rank // tp, rank % tp

    def column(whole: Tensor) -> Tensor:
        return whole.chunk(tp, dim=0)[tensor_rank]

    def row(whole: Tensor) -> Tensor:
        return whole.chunk(tp, dim=1)[tensor_rank]

    def padded(whole: Tensor) -> Tensor:
        return column(torch.nn.functional.pad(whole, (0, 0, 0, -len(whole) % tp)))

    def heads(whole: Tensor, count: int) -> Tensor:
        apart = whole.unflatten(0, (count, size))
        if count < tp:
            apart = apart.repeat_interleave(tp // count, dim=0)
        return column(apart).flatten(0, 1)

    def norm(name: str) -> Tensor:
        return weights[name] + 1 if kind.startswith("gemma") else weights[name]

    def attention(old: str, new: str) -> None:
        counts = (config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads)
        for parameter in ("weight", "bias"):
            if kind == "phi3" and parameter == "weight":
                parts = weights[old + "qkv_proj.weight"].split([count * size for count in counts])
            elif f"{old}q_proj.{parameter}" in weights:
                parts = [weights[f"{old}{name}_proj.{parameter}"] for name in "qkv"]
            else:
                continue
            shares = [heads(part, count) for part, count in zip(parts, counts, strict=True)]
            tensors[f"{new}qkv.{parameter}"] = torch.cat(shares)
        tensors[new + "dense.weight"] = row(weights[old + "o_proj.weight"])
        if old + "o_proj.bias" in weights:
            tensors[new + "dense.bias"] = weights[old + "o_proj.bias"]

    def dense_mlp(old: str, new: str) -> None:
        if kind == "phi3":
            gate, up = weights[old + "gate_up_proj.weight"].chunk(2)
            tensors[new + "fc.weight"] = torch.cat([column(up), column(gate)])
        else:
            for parameter in ("weight", "bias"):
                if f"{old}gate_proj.{parameter}" in weights:
                    tensors[f"{new}fc.{parameter}"] = column(weights[f"{old}gate_proj.{parameter}"])
                    tensors[f"{new}gate.{parameter}"] = column(weights[f"{old}up_proj.{parameter}"])
        tensors[new + "proj.weight"] = row(weights[old + "down_proj.weight"])
        if old + "down_proj.bias" in weights:
            tensors[new + "proj.bias"] = weights[old + "down_proj.bias"]

    def experts(old: str, new: str) -> None:
        group, part = tensor_rank % split.moe_ep, tensor_rank // split.moe_ep
        gate, up = weights[old + "experts.gate_up_proj"].chunk(split.moe_ep)[group].chunk(2, dim=1)
        down = weights[old + "experts.down_proj"].chunk(split.moe_ep)[group]
        halves = [half.chunk(split.moe_tp, dim=1)[part] for half in (up, gate)]
        tensors[new + "router.weight"] = weights[old + "gate.weight"]
        tensors[new + "fc.weight"] = torch.cat(halves, dim=1)
        tensors[new + "proj.weight"] = down.chunk(split.moe_tp, dim=2)[part]

    tensors: dict[str, Tensor] = {}
    if stage == 0:
        embedding = weights["model.embed_tokens.weight"]
        if split.embedding is not None:
            embedding = padded(embedding) if split.embedding == 0 else row(embedding)
        tensors["transformer.vocab_embedding.weight"] = embedding
    layers = torch.arange(config.num_hidden_layers).tensor_split(split.pp)[stage].tolist()
    for number, layer in enumerate(layers):
        old, new = f"model.layers.{layer}.", f"transformer.layers.{number}."
        for theirs, ours in NORMS.items():
            if f"{old}{theirs}.weight" in weights:
                tensors[f"{new}{ours}.weight"] = norm(f"{old}{theirs}.weight")
        attention(old + "self_attn.", new + "attention.")
        has_experts = f"{old}mlp.experts.gate_up_proj" in weights
        (experts if has_experts else dense_mlp)(old + "mlp.", new + "mlp.")
    if stage == split.pp - 1:
        tensors["transformer.ln_f.weight"] = norm("model.norm.weight")
        tensors["lm_head.weight"] = padded(weights["lm_head.weight"])
    return tensors


def write_checkpoint(
    model: PreTrainedModel, folder: Path, *, dtype: torch.dtype = torch.float32, **split: int | None
) -> Path:
    whole = Split(**split)  # type: ignore[arg-type]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(checkpoint_config(model, whole, dtype)))
    for rank in range(whole.tp * whole.pp):
        tensors = {
            name: tensor.to(torch.float32 if name.endswith("router.weight") else dtype).clone()
            for name, tensor in rank_tensors(model, whole, rank).items()
        }
        save_file(tensors, folder / f"rank{rank}.safetensors", metadata={"format": "pt"})
    return folder
