"""config.json of a TensorRT-LLM checkpoint as a typed record.

Keys and defaults are those of TensorRT-LLM's PretrainedConfig and of the classes of its models
(tensorrt_llm/models/modeling_utils.py and models/{llama,qwen,gemma,phi3}/config.py). A key that would change the
computation in a way that isn't implemented is refused, and so is a key that we don't know, unless it is switched off
(null or false).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from builder.reference.families import Family, read_family
from builder.reference.fields import Fields
from builder.reference.floats import rounded_to
from builder.reference.layer_kinds import Experts, read_experts, read_local_layers, read_windows
from builder.reference.mapping import RankMapping
from builder.reference.quantization import Quantization
from builder.reference.rotary import Rope, read_rope

STORED_DTYPES = {"float16": "F16", "bfloat16": "BF16", "float32": "F32"}
"""TensorRT-LLM's names of types → those of safetensors."""

_ACTIVATIONS: Mapping[str, str] = {
    # a gated MLP's name for the function of its gate → the function; tensorrt_llm/functional.py has one gelu for all
    "silu": "silu",
    "swiglu": "silu",
    "gelu": "gelu_tanh",
    "geglu": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
_FUSED_ACTIVATIONS = ("swiglu", "geglu")
"""Those that take gate and up as one tensor: with others, experts and Phi-3 would have no gate."""


@dataclass(frozen=True)
class Config:
    """What the reference model needs to know of `pretrained_config`; sizes are those of the whole model.

    `windows`: how many tokens each layer sees, None for all. `local_layers` have the rope `local_rope` (Gemma-3).
    `query_scale` is what scores are multiplied with. `sandwich_norms`: attention and MLP have a norm behind them too
    (Gemma-2, Gemma-3). `fused_mlp`: gate and up are one tensor, up first (Phi-3). `embedding_scale`: what the
    embedding's output is multiplied with (Gemma). Norms of queries and keys have the same `norm_epsilon` as all
    others, as in transformers; TensorRT-LLM's Attention has 1e-5 for these.
    """

    dtype: str
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_size: int
    intermediate_size: int
    norm_epsilon: float
    activation: str
    rope: Rope
    local_rope: Rope | None
    local_layers: frozenset[int]
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
    mapping: RankMapping

    @property
    def tp_size(self) -> int:
        return self.mapping.tp

    @property
    def pp_size(self) -> int:
        return self.mapping.pp

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

    def experts_of(self, layer: int) -> Experts | None:
        return None if self.experts is None or layer in self.experts.dense_layers else self.experts

    def rope_of(self, layer: int) -> Rope:
        return self.local_rope if self.local_rope is not None and layer in self.local_layers else self.rope

    @classmethod
    def from_dict(cls, table: object, where: str) -> Config:
        """From the parsed config.json of a checkpoint, or the pretrained_config of an engine.

        ReferenceModelError, which begins with `where`, for what is absent, malformed, contradictory or unknown.
        """
        fields = Fields(table, where)
        family = read_family(fields)
        dtype = fields.choice("dtype", tuple(STORED_DTYPES))
        hidden_size, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
        layers = fields.integer("num_hidden_layers")
        head_size = fields.integer("head_size", hidden_size // heads)
        rope, local_rope = _ropes(fields, head_size)
        attn_bias, dense_bias = _attention_biases(fields, family)
        mapping = RankMapping.from_fields(fields.inner("mapping"))
        parallel_embedding, sharding_dim = _parallel_embedding(fields, family, mapping.tp)
        config = cls(
            dtype=dtype,
            vocab_size=fields.integer("vocab_size"),
            hidden_size=hidden_size,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=fields.integer("num_key_value_heads", heads),
            head_size=head_size,
            intermediate_size=fields.integer("intermediate_size", 4 * hidden_size),
            norm_epsilon=fields.number("norm_epsilon", 1e-5),
            activation=_activation(fields, family),
            rope=rope,
            local_rope=local_rope,
            local_layers=read_local_layers(fields, layers),
            windows=read_windows(fields, layers),
            query_scale=_query_scale(fields, family, head_size),
            attention_soft_cap=fields.optional_number("attn_logit_softcapping"),
            logit_soft_cap=fields.optional_number("final_logit_softcapping"),
            # in the type of the activations, as transformers and TensorRT-LLM hold it
            embedding_scale=rounded_to(STORED_DTYPES[dtype], hidden_size**0.5) if family.scaled_embedding else None,
            attn_bias=attn_bias,
            dense_bias=dense_bias,
            mlp_bias=_mlp_bias(fields, family),
            qk_layernorm=family.qk_norms,
            sandwich_norms=family.sandwich_norms,
            fused_mlp=family.fused_mlp,
            experts=read_experts(fields, family, layers),
            tie_word_embeddings=fields.boolean("tie_word_embeddings")
            if "tie_word_embeddings" in fields.table
            else None,
            use_parallel_embedding=parallel_embedding,
            embedding_sharding_dim=sharding_dim,
            quantization=Quantization.from_fields(fields.inner("quantization")),
            mapping=mapping,
        )
        config._check_divisibility(fields)
        config._check_experts(fields)
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
        if self.use_parallel_embedding and self.embedding_sharding_dim == 1 and self.hidden_size % tp:
            raise fields.error(f"tp_size {tp} doesn't divide hidden_size {self.hidden_size} (embedding_sharding_dim 1)")
        if self.pp_size > self.num_hidden_layers:
            raise fields.error(f"pp_size {self.pp_size} exceeds num_hidden_layers {self.num_hidden_layers}")
        if self.fused_mlp and self.pp_size > 1:
            raise fields.error("pp_size other than 1 is not implemented: TensorRT-LLM's Phi3Model has no stages")

    def _check_experts(self, fields: Fields) -> None:
        experts, mapping = self.experts, self.mapping
        if experts is None:
            return
        if experts.count % mapping.moe_ep or experts.intermediate_size % mapping.moe_tp:
            raise fields.error(
                f"moe_ep_size {mapping.moe_ep} and moe_tp_size {mapping.moe_tp} don't divide {experts.count} "
                f"experts of width {experts.intermediate_size}"
            )
        if self.quantization.algo not in (None, "FP8", "W8A16", "W4A16"):
            raise fields.error(f"quantization: quant_algo {self.quantization.algo} is not implemented for experts")


def _ropes(fields: Fields, head_size: int) -> tuple[Rope, Rope | None]:
    """The rope of full attention, and that of local layers, which isn't scaled."""
    share = fields.number("rotary_pct", 1.0)
    dim = fields.integer("rotary_embedding_dim", int(head_size * share))
    if dim != int(head_size * share) or dim > head_size or dim % 2:
        raise fields.error(
            f"rotary_embedding_dim {dim} must be head_size {head_size} times rotary_pct {share:g}, and even"
        )
    rope = read_rope(fields, fields.number("rotary_base", 10000.0), dim)
    if fields.table.get("rope_local_base_freq") is None:
        return rope, None
    return rope, Rope(fields.number("rope_local_base_freq"), dim)


def _attention_biases(fields: Fields, family: Family) -> tuple[bool, bool]:
    """Whether qkv, and whether dense has a bias. ModelOpt says the second as `bias`."""
    attn_bias = fields.boolean("attn_bias", family.attn_bias)
    dense_bias = attn_bias and family.dense_bias
    if family.fused_mlp and attn_bias:
        raise fields.error("attn_bias True is not implemented for Phi3ForCausalLM")
    if fields.boolean("bias", dense_bias) is not dense_bias:
        raise fields.error(f"bias {not dense_bias} contradicts attn_bias {attn_bias}")
    return attn_bias, dense_bias


def _mlp_bias(fields: Fields, family: Family) -> bool:
    mlp_bias = fields.boolean("mlp_bias")
    if mlp_bias and (family.fused_mlp or family.experts):
        raise fields.error(f"mlp_bias True is not implemented for {fields.table['architecture']}")
    return mlp_bias


def _activation(fields: Fields, family: Family) -> str:
    fused = family.fused_mlp or family.experts
    return _ACTIVATIONS[fields.choice("hidden_act", _FUSED_ACTIVATIONS if fused else tuple(_ACTIVATIONS), "gelu")]


def _query_scale(fields: Fields, family: Family, head_size: int) -> float:
    """1/√query_pre_attn_scalar where the family has it, else 1/√head_size."""
    scalar = fields.number("query_pre_attn_scalar") if family.sandwich_norms else head_size
    return float(scalar**-0.5)


def _parallel_embedding(fields: Fields, family: Family, tp: int) -> tuple[bool, int]:
    """Whether the embedding is split, and along which dimension. Gemma's always is where there are several ranks,
    whatever the key says (GemmaConfig)."""
    dim = fields.table.get("embedding_sharding_dim", 0)
    if dim not in (0, 1) or isinstance(dim, bool):
        raise fields.error(f"embedding_sharding_dim must be 0 or 1, not {dim!r}")
    wanted = fields.boolean("use_parallel_embedding") or family.scaled_embedding
    return wanted and tp > 1, int(dim)
