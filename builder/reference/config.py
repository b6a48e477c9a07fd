"""config.json of a TensorRT-LLM checkpoint, and the limits of a build_config, as typed records.

Keys and defaults are those of TensorRT-LLM's PretrainedConfig and of the classes of its models
(tensorrt_llm/models/modeling_utils.py and models/{llama,qwen,gemma,phi3}/config.py). A key that would change the
computation in a way that isn't implemented is refused, and so is a key that we don't know, unless it is switched off
(null or false).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from builder.reference.fields import Fields
from builder.reference.quantization import Quantization
from builder.reference.rotary import Rope, read_rope

ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "MixtralForCausalLM",
    "QWenForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "GemmaForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "Phi3ForCausalLM",
)

STORED_DTYPES = {"float16": "F16", "bfloat16": "BF16", "float32": "F32"}
"""TensorRT-LLM's names of types → those of safetensors."""

ACTIVATIONS = ("silu", "swiglu", "gelu", "geglu", "gelu_new", "gelu_pytorch_tanh")
"""swiglu and geglu are TensorRT-LLM's other names for a gated MLP whose gate is a silu or a gelu."""

_REQUIRED_VALUES: Mapping[str, tuple[object, object]] = {
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
}

_WITHOUT_EFFECT = frozenset(
    # They change neither names, shapes nor float32 results.
    {
        "decoder",
        "disable_weight_only_quant_plugin",
        "kv_dtype",
        "logits_dtype",
        "longrope_scaling_long_factors",
        "longrope_scaling_short_factors",
        "max_position_embeddings",
        "model_type",
        "moe_shared_expert_intermediate_size",
        "original_max_position_embeddings",
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
        "_sliding_window_pattern",
        "architecture",
        "attn_bias",
        "attn_logit_softcapping",
        "bias",
        "decoder_sparse_step",
        "dtype",
        "embedding_sharding_dim",
        "final_logit_softcapping",
        "head_size",
        "hidden_act",
        "hidden_size",
        "inter_layernorms",
        "intermediate_size",
        "mapping",
        "mlp_bias",
        "mlp_only_layers",
        "moe",
        "moe_intermediate_size",
        "norm_epsilon",
        "num_attention_heads",
        "num_hidden_layers",
        "num_key_value_heads",
        "position_embedding_type",
        "qk_layernorm",
        "quantization",
        "query_pre_attn_scalar",
        "qwen_type",
        "rope_local_base_freq",
        "rotary_base",
        "rotary_embedding_dim",
        "rotary_pct",
        "rotary_scaling",
        "runtime_defaults",
        "sliding_window",
        "tie_word_embeddings",
        "use_parallel_embedding",
        "vocab_size",
    }
)


@dataclass(frozen=True)
class Experts:
    """A mixture of experts: how many there are, how many a token uses, and whether their weights sum up to 1."""

    count: int
    per_token: int
    normalized: bool
    intermediate_size: int
    dense_layers: frozenset[int]


@dataclass(frozen=True)
class Config:
    """What the reference model needs to know of `pretrained_config`; sizes are those of the whole model.

    `windows`: how many tokens each layer sees, None for all. `local_rope`: of the layers with a window, where they have
    one of their own (Gemma-3). `query_scale` is what scores are multiplied with. `sandwich_norms`: attention and MLP
    have a norm behind them as well (Gemma-2, Gemma-3). `fused_mlp`: gate and up are one tensor, up first (Phi-3).
    `embedding_scale`: what the embedding's output is multiplied with (Gemma).
    """

    architecture: str
    dtype: str
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_size: int
    intermediate_size: int
    norm_epsilon: float
    hidden_act: str
    rope: Rope
    local_rope: Rope | None
    windows: tuple[int | None, ...]
    query_scale: float
    attention_soft_cap: float | None
    logit_soft_cap: float | None
    embedding_scale: float | None
    attn_bias: bool
    dense_bias: bool
    mlp_bias: bool
    qk_layernorm: bool
    sandwich_norms: bool
    fused_mlp: bool
    experts: Experts | None
    tie_word_embeddings: bool | None
    use_parallel_embedding: bool
    embedding_sharding_dim: int
    quantization: Quantization
    tp_size: int
    pp_size: int
    moe_tp_size: int
    moe_ep_size: int

    @property
    def files(self) -> int:
        """Context-parallel ranks share a file."""
        return self.tp_size * self.pp_size

    @property
    def rank_heads(self) -> int:
        return self.num_attention_heads // self.tp_size

    @property
    def rank_key_value_heads(self) -> int:
        """At least one: if there are fewer KV heads than tensor ranks, neighbours hold copies of the same one."""
        return max(self.num_key_value_heads // self.tp_size, 1)

    @property
    def rank_vocab(self) -> int:
        """Rows of lm_head on a rank; the vocabulary is padded to a multiple of tp_size."""
        return -(-self.vocab_size // self.tp_size)

    def stage_layers(self, stage: int) -> range:
        """The layers of a pipeline stage; the first stages take what doesn't divide evenly."""
        share, remainder = divmod(self.num_hidden_layers, self.pp_size)
        start = stage * share + min(stage, remainder)
        return range(start, start + share + (stage < remainder))

    def has_experts(self, layer: int) -> bool:
        return self.experts is not None and layer not in self.experts.dense_layers

    def rope_of(self, layer: int) -> Rope:
        return self.local_rope if self.local_rope is not None and self.windows[layer] is not None else self.rope

    @classmethod
    def from_dict(cls, table: object, where: str) -> Config:
        """From the parsed config.json of a checkpoint, or the pretrained_config of an engine.

        ReferenceModelError, which begins with `where`, for what is absent, malformed, contradictory or unknown.
        """
        fields = Fields(table, where)
        architecture = fields.choice("architecture", ARCHITECTURES)
        gemma = architecture.startswith("Gemma")
        _check_keys(fields)
        hidden_size, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
        layers = fields.integer("num_hidden_layers")
        head_size = fields.integer("head_size", hidden_size // heads)
        rope, local_rope = _ropes(fields, head_size)
        mapping = _Mapping.from_fields(fields.inner("mapping"))
        qwen = fields.table.get("qwen_type")
        soft_cap = fields.optional_number("attn_logit_softcapping") if architecture == "Gemma2ForCausalLM" else None
        config = cls(
            architecture=architecture,
            dtype=fields.choice("dtype", tuple(STORED_DTYPES)),
            vocab_size=fields.integer("vocab_size"),
            hidden_size=hidden_size,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=fields.integer("num_key_value_heads", heads),
            head_size=head_size,
            intermediate_size=fields.integer("intermediate_size", 4 * hidden_size),
            norm_epsilon=fields.number("norm_epsilon", 1e-5),
            hidden_act=fields.choice("hidden_act", ACTIVATIONS, default="gelu"),
            rope=rope,
            local_rope=local_rope,
            windows=_windows(fields, layers),
            query_scale=fields.number("query_pre_attn_scalar", head_size) ** -0.5,
            attention_soft_cap=soft_cap,
            logit_soft_cap=fields.optional_number("final_logit_softcapping"),
            embedding_scale=hidden_size**0.5 if gemma else None,
            attn_bias=fields.boolean("attn_bias", qwen == "qwen2"),
            dense_bias=fields.boolean("attn_bias") and qwen is None,
            mlp_bias=fields.boolean("mlp_bias"),
            qk_layernorm=fields.boolean("qk_layernorm", architecture == "Gemma3ForCausalLM" or _is_qwen3(qwen)),
            sandwich_norms=fields.boolean("inter_layernorms"),
            fused_mlp=architecture == "Phi3ForCausalLM",
            experts=_experts(fields, layers),
            tie_word_embeddings=fields.boolean("tie_word_embeddings")
            if "tie_word_embeddings" in fields.table
            else None,
            use_parallel_embedding=fields.boolean("use_parallel_embedding"),
            embedding_sharding_dim=_sharding_dim(fields),
            quantization=Quantization.from_fields(fields.inner("quantization")),
            tp_size=mapping.tp,
            pp_size=mapping.pp,
            moe_tp_size=mapping.moe_tp,
            moe_ep_size=mapping.moe_ep,
        )
        config._check_divisibility(fields)
        return config

    def _check_divisibility(self, fields: Fields) -> None:
        heads, key_value_heads, tp = self.num_attention_heads, self.num_key_value_heads, self.tp_size
        if heads % key_value_heads:
            raise fields.error(f"{heads} attention heads don't share {key_value_heads} KV heads evenly")
        dense = self.experts is None or self.experts.dense_layers
        if heads % tp or (key_value_heads % tp and tp % key_value_heads) or (dense and self.intermediate_size % tp):
            raise fields.error(
                f"tp_size {tp} doesn't divide {heads} attention heads, {key_value_heads} KV heads "
                f"and intermediate_size {self.intermediate_size}"
            )
        experts = self.experts
        if experts and (experts.count % self.moe_ep_size or experts.intermediate_size % self.moe_tp_size):
            raise fields.error(
                f"moe_ep_size {self.moe_ep_size} and moe_tp_size {self.moe_tp_size} don't divide {experts.count} "
                f"experts of width {experts.intermediate_size}"
            )
        if self.pp_size > self.num_hidden_layers:
            raise fields.error(f"pp_size {self.pp_size} exceeds num_hidden_layers {self.num_hidden_layers}")


@dataclass(frozen=True)
class Limits:
    """What an engine was built for (TensorRT-LLM's BuildConfig)."""

    max_batch_size: int
    max_input_len: int
    max_seq_len: int
    max_num_tokens: int
    max_beam_width: int

    @classmethod
    def from_build_config(cls, table: object, where: str) -> Limits:
        fields = Fields(table, where)
        return cls(
            max_batch_size=fields.integer("max_batch_size"),
            max_input_len=fields.integer("max_input_len"),
            max_seq_len=fields.integer("max_seq_len"),
            max_num_tokens=fields.integer("max_num_tokens"),
            max_beam_width=fields.integer("max_beam_width", 1),
        )


@dataclass(frozen=True)
class _Mapping:
    tp: int
    pp: int
    moe_tp: int
    moe_ep: int

    @classmethod
    def from_fields(cls, fields: Fields) -> _Mapping:
        tp, pp, cp = (fields.integer(f"{kind}_size", 1) for kind in ("tp", "pp", "cp"))
        world_size = fields.integer("world_size", tp * pp * cp)
        if world_size != tp * pp * cp:
            raise fields.error(f"world_size {world_size} is not tp_size {tp} times pp_size {pp} times cp_size {cp}")
        moe_ep = fields.integer("moe_ep_size", 1)
        moe_tp = fields.integer("moe_tp_size", max(1, tp // moe_ep))
        if moe_tp * moe_ep != tp:
            raise fields.error(f"moe_tp_size {moe_tp} times moe_ep_size {moe_ep} is not tp_size {tp}")
        return cls(tp, pp, moe_tp, moe_ep)


_ONLY_OF: Mapping[str, tuple[str, ...]] = {
    "_sliding_window_pattern": ("Gemma3",),
    "sliding_window": ("Gemma3",),
    "rope_local_base_freq": ("Gemma3",),
    "qk_layernorm": ("Qwen3", "QWen", "Gemma3"),
    "inter_layernorms": ("Gemma2", "Gemma3"),
    "attn_logit_softcapping": ("Gemma2",),
    "final_logit_softcapping": ("Gemma2", "Gemma3"),
    "query_pre_attn_scalar": ("Gemma2", "Gemma3"),
    "moe": ("Mixtral", "Qwen3Moe", "QWen"),
}
"""Keys that TensorRT-LLM reads for some architectures alone: elsewhere they say what isn't done."""


def _check_keys(fields: Fields) -> None:
    architecture = fields.choice("architecture", ARCHITECTURES)
    for key, families in _ONLY_OF.items():
        value = fields.table.get(key)
        switched_on = value.get("num_experts") if isinstance(value, Mapping) else value
        if switched_on and not architecture.startswith(families):
            raise fields.error(f"{key} {value!r} is not implemented for {architecture}")
    for key, (implemented, default) in _REQUIRED_VALUES.items():
        value = fields.table.get(key, default)
        if value != implemented:
            raise fields.error(f"{key} {value!r} is not implemented; implemented: {implemented!r}")
    known = _READ | _WITHOUT_EFFECT | _REQUIRED_VALUES.keys()
    for key, value in fields.table.items():
        if key not in known and value is not None and value is not False:
            raise fields.error(f"the key {key!r} is not known, it may change the result")


def _is_qwen3(qwen_type: Any) -> bool:
    return qwen_type in ("qwen3", "qwen3_moe")


def _ropes(fields: Fields, head_size: int) -> tuple[Rope, Rope | None]:
    """The rope of full attention, and that of layers with a window, where it is another one."""
    fields.choice("position_embedding_type", ("rope_gpt_neox", "long_rope"), default="learned_absolute")
    share = fields.number("rotary_pct", 1.0)
    dim = fields.integer("rotary_embedding_dim", int(head_size * share))
    if dim > head_size or dim % 2:
        raise fields.error(f"rotary_embedding_dim {dim} must be even, and at most head_size {head_size}")
    positions = fields.integer("max_position_embeddings", 2048)
    rope = read_rope(fields, fields.number("rotary_base", 10000.0), dim, positions)
    if fields.table.get("rope_local_base_freq") is None:
        return rope, None
    return rope, Rope(fields.number("rope_local_base_freq"), dim, positions)


def _windows(fields: Fields, layers: int) -> tuple[int | None, ...]:
    """`runtime_defaults.max_attention_window`, which the runtime repeats for all layers; and Gemma-3's own pattern."""
    listed = fields.inner("runtime_defaults").table.get("max_attention_window")
    if listed is not None:
        if not isinstance(listed, list) or not listed or not all(type(one) is int and one > 0 for one in listed):
            raise fields.error("runtime_defaults.max_attention_window must be a list of numbers of tokens")
        positions = fields.integer("max_position_embeddings", 2048)
        seen = [listed[layer % len(listed)] for layer in range(layers)]
        return tuple(window if window < positions else None for window in seen)
    if fields.table.get("_sliding_window_pattern") is None:
        return (None,) * layers
    pattern, window = fields.integer("_sliding_window_pattern"), fields.integer("sliding_window")
    return tuple(window if (layer + 1) % pattern else None for layer in range(layers))


def _experts(fields: Fields, layers: int) -> Experts | None:
    moe = fields.inner("moe")
    if not moe.table.get("num_experts"):
        return None
    count, per_token = moe.integer("num_experts"), moe.integer("top_k")
    mode = moe.table.get("normalization_mode", 1)
    if mode not in (0, 1):
        raise moe.error(f"normalization_mode {mode!r} is not implemented; implemented: 0 (none), 1 (renormalise)")
    if per_token > count:
        raise moe.error(f"top_k {per_token} is more than num_experts {count}")
    width = fields.integer("moe_intermediate_size", fields.integer("intermediate_size"))
    step, listed = fields.integer("decoder_sparse_step", 1), fields.table.get("mlp_only_layers") or []
    if not isinstance(listed, list) or not all(type(layer) is int for layer in listed):
        raise fields.error("mlp_only_layers must be a list of layers")
    dense = frozenset(layer for layer in range(layers) if layer in listed or (layer + 1) % step)
    return Experts(count, per_token, mode == 1, width, dense)


def _sharding_dim(fields: Fields) -> int:
    dim = fields.table.get("embedding_sharding_dim", 0)
    if dim not in (0, 1):
        raise fields.error(f"embedding_sharding_dim must be 0 or 1, not {dim!r}")
    return int(dim)
