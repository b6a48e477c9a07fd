"""config.json of a TensorRT-LLM checkpoint, and the limits of a build_config, as typed records.

Keys and defaults are those of TensorRT-LLM's PretrainedConfig and LLaMAConfig
(tensorrt_llm/models/modeling_utils.py and models/llama/config.py). A key that would change the computation in a way
that isn't implemented is refused, and so is a key that we don't know, unless it is switched off (null or false).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from builder.reference.errors import ReferenceModelError

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM")

STORED_DTYPES = {"float16": "F16", "bfloat16": "BF16", "float32": "F32"}
"""TensorRT-LLM's names of types → those of safetensors."""

_REQUIRED_VALUES: Mapping[str, tuple[object, object]] = {
    # key → (the only value that is implemented, what TensorRT-LLM takes if it is absent)
    "position_embedding_type": ("rope_gpt_neox", "learned_absolute"),
    "rotary_pct": (1.0, 1.0),
    "qk_layernorm": (False, False),
    "use_parallel_embedding": (False, False),
    "residual_mlp": (False, False),
    "fc_after_embed": (False, False),
    "use_input_layernorm_in_first_layer": (True, True),
    "use_last_layernorm": (True, True),
    "layer_idx_offset": (0, 0),
    "embedding_multiplier": (1.0, 1.0),
    "attention_multiplier": (1.0, 1.0),
    "residual_multiplier": (1.0, 1.0),
    "output_multiplier_scale": (1.0, 1.0),
}

_WITHOUT_EFFECT = frozenset(
    # They change neither names, shapes nor float32 results of an unquantised model.
    {
        "disable_weight_only_quant_plugin",
        "embedding_sharding_dim",
        "kv_dtype",
        "logits_dtype",
        "max_position_embeddings",
        "producer",
        "remove_duplicated_kv_heads",
        "runtime_defaults",
        "share_embedding_table",
    }
)

_READ = frozenset(
    {
        "architecture",
        "attn_bias",
        "dtype",
        "head_size",
        "hidden_act",
        "hidden_size",
        "intermediate_size",
        "mapping",
        "mlp_bias",
        "moe",
        "norm_epsilon",
        "num_attention_heads",
        "num_hidden_layers",
        "num_key_value_heads",
        "quantization",
        "rotary_base",
        "rotary_embedding_dim",
        "rotary_scaling",
        "tie_word_embeddings",
        "vocab_size",
    }
)


@dataclass(frozen=True)
class LinearScaling:
    """All positions divided by `factor`."""

    factor: float


@dataclass(frozen=True)
class Llama3Scaling:
    """Long wavelengths divided by `factor`, short ones left, those between interpolated (Llama 3.1)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class Config:
    """What the reference model needs to know of `pretrained_config`; sizes are those of the whole model."""

    dtype: str
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_size: int
    intermediate_size: int
    norm_epsilon: float
    rotary_base: float
    rotary_scaling: LinearScaling | Llama3Scaling | None
    attn_bias: bool
    mlp_bias: bool
    tie_word_embeddings: bool | None
    tp_size: int
    pp_size: int

    @property
    def world_size(self) -> int:
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

    def stage_layers(self, stage: int) -> int:
        """The number of layers of a pipeline stage; the first stages take what doesn't divide evenly."""
        share, remainder = divmod(self.num_hidden_layers, self.pp_size)
        return share + (stage < remainder)

    @classmethod
    def from_dict(cls, table: object, where: str) -> Config:
        """From the parsed config.json of a checkpoint, or the pretrained_config of an engine.

        ReferenceModelError, which begins with `where`, for what is absent, malformed, contradictory or unknown.
        """
        fields = _Fields(table, where)
        fields.choice("architecture", ARCHITECTURES)
        _check_keys(fields)
        _check_quantization(fields)
        tp_size, pp_size = _mapping(fields)
        hidden_size = fields.integer("hidden_size")
        heads = fields.integer("num_attention_heads")
        head_size = fields.integer("head_size", hidden_size // heads)
        rotary_dim = fields.integer("rotary_embedding_dim", head_size)
        if rotary_dim != head_size or head_size % 2:
            raise fields.error(f"rotary_embedding_dim {rotary_dim} must be head_size {head_size}, and even")
        # "swiglu" is TensorRT-LLM's other name for a gated MLP whose gate is a silu
        fields.choice("hidden_act", ("silu", "swiglu"), default="gelu")
        config = cls(
            dtype=fields.choice("dtype", tuple(STORED_DTYPES)),
            vocab_size=fields.integer("vocab_size"),
            hidden_size=hidden_size,
            num_hidden_layers=fields.integer("num_hidden_layers"),
            num_attention_heads=heads,
            num_key_value_heads=fields.integer("num_key_value_heads", heads),
            head_size=head_size,
            intermediate_size=fields.integer("intermediate_size", 4 * hidden_size),
            norm_epsilon=fields.number("norm_epsilon", 1e-5),
            rotary_base=fields.number("rotary_base", 10000.0),
            rotary_scaling=_rotary_scaling(fields),
            attn_bias=fields.boolean("attn_bias"),
            mlp_bias=fields.boolean("mlp_bias"),
            tie_word_embeddings=fields.boolean("tie_word_embeddings")
            if "tie_word_embeddings" in fields.table
            else None,
            tp_size=tp_size,
            pp_size=pp_size,
        )
        config._check_divisibility(fields)
        return config

    def _check_divisibility(self, fields: _Fields) -> None:
        heads, key_value_heads, tp = self.num_attention_heads, self.num_key_value_heads, self.tp_size
        if heads % key_value_heads:
            raise fields.error(f"{heads} attention heads don't share {key_value_heads} KV heads evenly")
        if heads % tp or (key_value_heads % tp and tp % key_value_heads) or self.intermediate_size % tp:
            raise fields.error(
                f"tp_size {tp} doesn't divide {heads} attention heads, {key_value_heads} KV heads "
                f"and intermediate_size {self.intermediate_size}"
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
        fields = _Fields(table, where)
        return cls(
            max_batch_size=fields.integer("max_batch_size"),
            max_input_len=fields.integer("max_input_len"),
            max_seq_len=fields.integer("max_seq_len"),
            max_num_tokens=fields.integer("max_num_tokens"),
            max_beam_width=fields.integer("max_beam_width", 1),
        )


class _Fields:
    """A JSON object whose fields are taken out with their types checked."""

    def __init__(self, table: object, where: str) -> None:
        if not isinstance(table, Mapping):
            raise ReferenceModelError(f"{where}: a JSON object is expected, not {table!r:.80}")
        self.table: Mapping[str, Any] = table
        self.where = where

    def error(self, message: str) -> ReferenceModelError:
        return ReferenceModelError(f"{self.where}: {message}")

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._value(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.error(f"{key} must be a positive integer, not {value!r}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._value(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise self.error(f"{key} must be a positive number, not {value!r}")
        return float(value)

    def boolean(self, key: str) -> bool:
        value = self._value(key, False)
        if not isinstance(value, bool):
            raise self.error(f"{key} must be true or false, not {value!r}")
        return value

    def choice(self, key: str, values: tuple[str, ...], default: str | None = None) -> str:
        value = self._value(key, default)
        if not isinstance(value, str) or value not in values:
            raise self.error(f"{key} {value!r} is not implemented; implemented: {', '.join(values)}")
        return value

    def _value(self, key: str, default: object) -> object:
        value = self.table.get(key)
        value = default if value is None else value
        if value is None:
            raise self.error(f"{key} is missing")
        return value


def _check_keys(fields: _Fields) -> None:
    for key, (implemented, default) in _REQUIRED_VALUES.items():
        value = fields.table.get(key, default)
        if value != implemented:
            raise fields.error(f"{key} {value!r} is not implemented; implemented: {implemented!r}")
    moe = fields.table.get("moe")
    if moe and (not isinstance(moe, Mapping) or moe.get("num_experts", 0) != 0):
        raise fields.error("a mixture of experts (moe) is not implemented")
    known = _READ | _WITHOUT_EFFECT | _REQUIRED_VALUES.keys()
    for key, value in fields.table.items():
        if key not in known and value is not None and value is not False:
            raise fields.error(f"the key {key!r} is not known, it may change the result")


def _check_quantization(fields: _Fields) -> None:
    quantization = fields.table.get("quantization")
    if quantization is None:
        return
    inner = _Fields(quantization, f"{fields.where}: quantization")
    for key in ("quant_algo", "kv_cache_quant_algo"):
        if inner.table.get(key) is not None:
            raise inner.error(f"{key} {inner.table[key]!r} is not implemented, only null is")


def _mapping(fields: _Fields) -> tuple[int, int]:
    inner = _Fields(fields.table.get("mapping") or {}, f"{fields.where}: mapping")
    tp_size, pp_size = inner.integer("tp_size", 1), inner.integer("pp_size", 1)
    if inner.integer("cp_size", 1) != 1:
        raise inner.error("cp_size other than 1 (context parallelism) is not implemented")
    world_size = inner.integer("world_size", tp_size * pp_size)
    if world_size != tp_size * pp_size:
        raise inner.error(f"world_size {world_size} is not tp_size {tp_size} times pp_size {pp_size}")
    return tp_size, pp_size


def _rotary_scaling(fields: _Fields) -> LinearScaling | Llama3Scaling | None:
    table = fields.table.get("rotary_scaling")
    if table is None:
        return None
    inner = _Fields(table, f"{fields.where}: rotary_scaling")
    kinds = {inner.table[key] for key in ("type", "rope_type") if key in inner.table}
    if kinds == {"linear"}:
        names = {"factor"}
        scaling: LinearScaling | Llama3Scaling = LinearScaling(inner.number("factor"))
    elif kinds == {"llama3"}:
        names = {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}
        scaling = Llama3Scaling(
            factor=inner.number("factor"),
            low_freq_factor=inner.number("low_freq_factor"),
            high_freq_factor=inner.number("high_freq_factor"),
            original_max_position_embeddings=inner.integer("original_max_position_embeddings"),
        )
        if scaling.low_freq_factor >= scaling.high_freq_factor:
            raise inner.error("low_freq_factor must be below high_freq_factor")
    else:
        raise inner.error(
            f"type {' and '.join(map(repr, kinds)) or None} is not implemented; implemented: linear, llama3"
        )
    if unknown := inner.table.keys() - names - {"type", "rope_type"}:
        raise inner.error(f"the keys {', '.join(sorted(unknown))} are not known")
    return scaling
