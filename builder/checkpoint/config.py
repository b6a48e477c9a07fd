"""config.json of a TensorRT-LLM checkpoint."""

from __future__ import annotations

from typing import Any

from builder.model.spec import ModelSpec


def checkpoint_config(spec: ModelSpec, tp: int, pp: int) -> dict[str, Any]:
    """What TensorRT-LLM's PretrainedConfig and LLaMAConfig read, with every value that the model needs.

    Only keys that they know: they would take any other one as an attribute, with a warning. `mapping` has no rank,
    since one config stands for all of them. `vocab_size` is the model's own; TensorRT-LLM pads it itself.
    """
    return {
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
        "rotary_scaling": None if spec.rope_scaling is None else dict(spec.rope_scaling),
        "norm_epsilon": spec.rms_norm_eps,
        "hidden_act": spec.hidden_act,
        "attn_bias": spec.attention_bias,
        "mlp_bias": spec.mlp_bias,
        "qk_layernorm": False,
        "tie_word_embeddings": spec.tie_word_embeddings,
        "use_parallel_embedding": False,
        "embedding_sharding_dim": 0,
        "mapping": {"world_size": tp * pp, "tp_size": tp, "pp_size": pp},
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
    }
