"""config.json of a TensorRT-LLM checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from builder import catalog
from builder.model.layout import Split, excluded_modules
from builder.model.layout.coverage import full_attention_interval
from builder.model.layout.table import parallel_embedding
from builder.model.spec import Attention, ModelSpec, Rope

UNQUANTIZED = ("lm_head", "*vocab_embedding", "*router")
"""What weight-only quantisation leaves as it is: exclude_modules."""

_PRE_QUANT_SCALE = ("int4-awq", "w4a8-awq", "int4-gptq")


def checkpoint_config(spec: ModelSpec, split: Split, quantization: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What TensorRT-LLM's PretrainedConfig and the classes of its models read, with every value that the model needs.

    `quantization` is its section of this name; without it, that of the published weights. Besides the keys of
    LLaMAConfig, QWenConfig, GemmaConfig and Phi3Config there are none: they would take any other one as an attribute,
    with a warning. `mapping` has no rank, since one config stands for all. `vocab_size` is the model's own;
    TensorRT-LLM pads it itself. Windows are where it keeps them for its runtime, `runtime_defaults`.
    """
    split = parallel_embedding(spec, split)
    rope = _widest_view(spec)
    config = {
        "architecture": spec.architecture,
        "dtype": spec.dtype,
        "logits_dtype": "float32",
        "num_hidden_layers": spec.num_hidden_layers,
        "hidden_size": spec.hidden_size,
        "num_attention_heads": spec.num_attention_heads,
        "num_key_value_heads": spec.num_key_value_heads,
        "head_size": spec.head_dim,
        "intermediate_size": spec.intermediate_size,
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.max_position_embeddings,
        "position_embedding_type": "rope_gpt_neox",
        "rotary_base": spec.rope_theta,
        "rotary_scaling": None if spec.rope_scaling is None else _plain(spec.rope_scaling),
        "norm_epsilon": spec.rms_norm_eps,
        "hidden_act": spec.hidden_act,
        "attn_bias": spec.attention_bias,
        "mlp_bias": spec.mlp_bias,
        "qk_layernorm": spec.qk_norm,
        "tie_word_embeddings": spec.tie_word_embeddings,
        "use_parallel_embedding": split.use_parallel_embedding,
        "embedding_sharding_dim": split.embedding_sharding_dim,
        "mapping": _mapping(spec, split),
        "quantization": dict(quantization) if quantization is not None else published_quantization(spec, split),
    }
    if any(attention.window for attention in _attentions(spec)):
        config["runtime_defaults"] = {"max_attention_window": _windows(spec)}
    if spec.model_type in ("qwen2", "qwen3", "qwen3_moe"):
        config["qwen_type"] = spec.model_type
    if spec.experts is not None:
        config |= _experts(spec)
    if spec.model_type.startswith("gemma"):
        config |= _gemma(spec)
    if spec.model_type == "phi3":
        config["hidden_act"] = "swiglu"
        config["rotary_pct"] = rope.partial_factor if rope else 1.0
        if rope is not None and rope.type == "longrope":
            config |= {
                "position_embedding_type": "long_rope",
                "original_max_position_embeddings": rope.scaling["original_max_position_embeddings"],
                "longrope_scaling_short_factors": list(rope.scaling["short_factor"]),
                "longrope_scaling_long_factors": list(rope.scaling["long_factor"]),
            }
    return config


def float_quantization(quant_algo: str | None = None) -> dict[str, Any]:
    """The section for weights that are stored as floats: for good, or (W8A16, W4A16) until trtllm-build quantises them.

    The second is what quantize.py writes for int8_wo and int4_wo: it fits every GPU, while convert_checkpoint.py
    stores weights in the order that the kernels of one compute capability want.
    """
    section: dict[str, Any] = {"quant_algo": quant_algo, "kv_cache_quant_algo": None}
    return section | {"exclude_modules": list(UNQUANTIZED)} if quant_algo else section


def published_quantization(spec: ModelSpec, split: Split) -> dict[str, Any]:
    """The section for weights as they were published."""
    found = spec.quantization
    if found is None or found.precision is None:
        return float_quantization()
    precision = catalog.precisions()[found.precision]
    section: dict[str, Any] = {
        # symmetric GPTQ is stored in the form of AWQ, see builder.model.layout.linears
        "quant_algo": "W4A16_AWQ" if found.precision == "int4-gptq" else precision.quant_algo,
        "kv_cache_quant_algo": catalog.kv_precisions()[found.kv_cache].quant_algo if found.kv_cache else None,
        "exclude_modules": excluded_modules(spec, replace(split, cp=1)),
    }
    if precision.group_size is not None:
        section["group_size"] = found.group_size or precision.group_size
    if found.precision in _PRE_QUANT_SCALE:
        section |= {"has_zero_point": False, "pre_quant_scale": True}
    return section


def _mapping(spec: ModelSpec, split: Split) -> dict[str, int]:
    mapping = {"world_size": split.world_size, "tp_size": split.tp, "pp_size": split.pp}
    if split.cp > 1:
        mapping["cp_size"] = split.cp
    if spec.experts is not None:
        mapping |= {"moe_tp_size": split.moe_tp, "moe_ep_size": split.moe_ep}
    return mapping


def _experts(spec: ModelSpec) -> dict[str, Any]:
    """`swiglu` says in a mixture of experts what `silu` says in a gated MLP."""
    experts = spec.experts
    if experts is None:
        return {}
    mode = 1 if spec.norm_topk_prob else 0  # ExpertScaleNormalizationMode: RENORMALIZE, NONE
    config: dict[str, Any] = {
        "hidden_act": "swiglu",
        "moe": {"num_experts": experts.count, "top_k": experts.per_token, "normalization_mode": mode},
    }
    if spec.model_type == "qwen3_moe":
        dense = [number for number, layer in enumerate(spec.layers) if layer.experts is None]
        config |= {
            "moe_intermediate_size": experts.intermediate_size,
            "mlp_only_layers": dense,
            "decoder_sparse_step": 1,
        }
    return config


def _gemma(spec: ModelSpec) -> dict[str, Any]:
    if spec.model_type == "gemma":
        return {"inter_layernorms": False}
    config: dict[str, Any] = {
        "inter_layernorms": True,
        "query_pre_attn_scalar": spec.query_pre_attn_scalar or spec.head_dim,
        "final_logit_softcapping": spec.final_logit_softcapping,
    }
    if spec.model_type == "gemma2":
        return config | {"attn_logit_softcapping": spec.attn_logit_softcapping}
    local = next(attention for attention in _attentions(spec) if attention.window is not None)
    return config | {
        "_sliding_window_pattern": full_attention_interval(spec),
        "rope_local_base_freq": local.rope.theta if local.rope else None,
        "sliding_window": local.window,
    }


def _attentions(spec: ModelSpec) -> list[Attention]:
    return [layer.attention for layer in spec.layers if layer.attention is not None]


def _widest_view(spec: ModelSpec) -> Rope | None:
    """The rotary embedding of full attention, where a model has two."""
    attentions = sorted(_attentions(spec), key=lambda attention: attention.window is not None)
    return attentions[0].rope


def _windows(spec: ModelSpec) -> list[int]:
    """How many tokens each layer sees, the newest included."""
    return [attention.window or spec.max_position_embeddings for attention in _attentions(spec)]


def _plain(scaling: Mapping[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in scaling.items()}
