"""What TensorRT-LLM's class of each architecture decides by itself, and which keys of config.json it knows.

Sources, tensorrt_llm/models/: llama/{config,model}.py, qwen/{config,model}.py, gemma/{config,model}.py,
phi3/{config,model}.py, modeling_utils.py (PretrainedConfig).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from builder.reference.fields import Fields


@dataclass(frozen=True)
class Family:
    """`attn_bias` is what an absent key stands for; `dense_bias`: whether it is about the output projection as well.

    `sandwich_norms`: attention and MLP have a norm behind them too. `fused_mlp`: gate and up are one tensor.
    `own_keys` are those that the class reads besides the common ones.
    """

    qwen_type: str | None = None
    attn_bias: bool = False
    dense_bias: bool = True
    qk_norms: bool = False
    sandwich_norms: bool = False
    scaled_embedding: bool = False
    fused_mlp: bool = False
    experts: bool = False
    own_keys: frozenset[str] = frozenset()


def _qwen(qwen_type: str, *, qk_norms: bool = False, experts: bool = False) -> Family:
    keys = {"qwen_type", "moe_intermediate_size", "mlp_only_layers", "decoder_sparse_step"}
    return Family(qwen_type, True, False, qk_norms, experts=experts, own_keys=frozenset(keys))


_GEMMA2_KEYS = frozenset({"query_pre_attn_scalar", "final_logit_softcapping", "attn_logit_softcapping"})
_GEMMA3_KEYS = frozenset(
    {
        "query_pre_attn_scalar",
        "final_logit_softcapping",
        "_sliding_window_pattern",
        "rope_local_base_freq",
        "sliding_window",
    }
)
_PHI3_KEYS = frozenset(
    {"original_max_position_embeddings", "longrope_scaling_short_factors", "longrope_scaling_long_factors"}
)

FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": Family(),
    "MistralForCausalLM": Family(),
    "MixtralForCausalLM": Family(experts=True),
    "Qwen2ForCausalLM": _qwen("qwen2"),
    "Qwen3ForCausalLM": _qwen("qwen3", qk_norms=True),
    "Qwen3MoeForCausalLM": _qwen("qwen3_moe", qk_norms=True, experts=True),
    "GemmaForCausalLM": Family(scaled_embedding=True),
    "Gemma2ForCausalLM": Family(sandwich_norms=True, scaled_embedding=True, own_keys=_GEMMA2_KEYS),
    "Gemma3ForCausalLM": Family(qk_norms=True, sandwich_norms=True, scaled_embedding=True, own_keys=_GEMMA3_KEYS),
    "Phi3ForCausalLM": Family(fused_mlp=True, own_keys=_PHI3_KEYS),
}

MODELOPT_QWEN = "QWenForCausalLM"
"""What ModelOpt calls every Qwen; `qwen_type` tells them apart, and is taken to be qwen2 where it is absent."""

_ONLY_VALUES: Mapping[str, tuple[object, object]] = {
    # key → (the only value that is implemented, what TensorRT-LLM takes if it is absent)
    "residual_mlp": (False, False),
    "fc_after_embed": (False, False),
    "use_input_layernorm_in_first_layer": (True, True),
    "use_last_layernorm": (True, True),
    "layer_idx_offset": (0, 0),
    "embedding_multiplier": (1.0, 1.0),
    "attention_multiplier": (1.0, 1.0),
    "residual_multiplier": (1.0, 1.0),
    "output_multiplier_scale": (1.0, 1.0),
    "num_labels": (1, 1),
    "use_logn_attn": (False, False),
    "lm_head_bias": (False, False),
    "rmsnorm": (True, True),
    "moe_shared_expert_intermediate_size": (0, 0),
}

_WITHOUT_EFFECT = frozenset(
    # They change neither names, shapes nor float32 results.
    {
        "decoder",
        "disable_weight_only_quant_plugin",
        "kv_dtype",
        "logits_dtype",
        "producer",
        "rank",
        "remove_duplicated_kv_heads",
        "seq_length",
        "share_embedding_table",
        "use_fused_mlp",
    }
)

_READ = frozenset(
    {
        "architecture",
        "attn_bias",
        "bias",
        "dtype",
        "embedding_sharding_dim",
        "head_size",
        "hidden_act",
        "hidden_size",
        "inter_layernorms",
        "intermediate_size",
        "mapping",
        "max_position_embeddings",
        "mlp_bias",
        "moe",
        "norm_epsilon",
        "num_attention_heads",
        "num_hidden_layers",
        "num_key_value_heads",
        "position_embedding_type",
        "qk_layernorm",
        "quantization",
        "rotary_base",
        "rotary_embedding_dim",
        "rotary_pct",
        "rotary_scaling",
        "runtime_defaults",
        "tie_word_embeddings",
        "use_parallel_embedding",
        "vocab_size",
    }
)


def read_family(fields: Fields) -> Family:
    """The family of config.json; ReferenceModelError for keys that contradict it, and for keys that aren't known.

    Those that are switched off (null or false) don't have to be known.
    """
    family = _by_name(fields)
    for key, (implemented, default) in _ONLY_VALUES.items():
        value = fields.table.get(key, default)
        if value != implemented:
            raise fields.error(f"{key} {value!r} is not implemented; implemented: {implemented!r}")
    for key, decided in (("qk_layernorm", family.qk_norms), ("inter_layernorms", family.sandwich_norms)):
        if fields.boolean(key, decided) is not decided:
            raise fields.error(f"{key} {not decided} is not implemented for {fields.table['architecture']}")
    known = _READ | _WITHOUT_EFFECT | _ONLY_VALUES.keys() | family.own_keys
    fields.refuse_unknown(known)
    return family


def _by_name(fields: Fields) -> Family:
    name = fields.choice("architecture", (*FAMILIES, MODELOPT_QWEN))
    qwens = {family.qwen_type: family for family in FAMILIES.values() if family.qwen_type is not None}
    if name == MODELOPT_QWEN:
        return qwens[fields.choice("qwen_type", tuple(qwens), default="qwen2")]
    family = FAMILIES[name]
    if family.qwen_type is not None:
        fields.choice("qwen_type", (family.qwen_type,), default=family.qwen_type)
    return family
