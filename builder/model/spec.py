"""What a model is, from its config.json: `ModelSpec`. What we don't know is refused, never guessed.

Refusals are SourceErrors with one of these codes:

    CONFIG_MISSING         no config.json              UNSUPPORTED_ARCHITECTURE   not a plain Llama
    CONFIG_JSON            it isn't strict JSON        UNSUPPORTED_QUANTIZATION   the weights are quantised already
    CONFIG_FIELD           a field is absent or bad    UNSUPPORTED_ROPE           an unknown rotary embedding
    CONFIG_CONTRADICTION   two fields disagree         UNSUPPORTED_ACTIVATION     an unknown activation
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.errors import SourceError
from builder.model.files import read_json

SUPPORTED_ARCHITECTURES = ("LlamaForCausalLM",)

STORED_DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
"""The precisions that a model can have, and how safetensors spells them."""

_DEFAULT_ROPE_THETA = 10000.0  # transformers' LlamaConfig; Llama 2 was published without the field

_ROPE_NUMBERS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


@dataclass(frozen=True)
class ModelSpec:
    """A decoder of the Llama family.

    `rope_scaling` is None, or {"type": "linear", "factor"}, or {"type": "llama3", "factor", "low_freq_factor",
    "high_freq_factor", "original_max_position_embeddings"}: TensorRT-LLM's spelling, which has no "default".
    """

    architecture: str
    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    hidden_act: str
    rope_theta: float
    rope_scaling: Mapping[str, Any] | None
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    dtype: str
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    pad_token_id: int | None

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], where: str | Path, generation_config: Mapping[str, Any] | None = None
    ) -> ModelSpec:
        """The model that a Hugging Face config.json describes; `where` names it in errors.

        Chat models may name some of their end tokens in generation_config.json alone: those of both files count.
        """
        fields = _Fields(config, where)
        architecture = _architecture(fields)
        _refuse_quantized(fields)
        heads = fields.count("num_attention_heads", most=10_000)
        hidden_size = fields.count("hidden_size")
        hidden_act = fields.text("hidden_act")
        if hidden_act != "silu":
            raise SourceError(
                f"the activation {hidden_act!r} is not supported",
                where=where,
                why="models of the Llama family are converted with silu",
                code="UNSUPPORTED_ACTIVATION",
            )
        rope_theta, rope_scaling = _rope(fields)
        vocab_size = fields.count("vocab_size")
        return cls(
            architecture=architecture,
            num_hidden_layers=fields.count("num_hidden_layers", most=10_000),
            hidden_size=hidden_size,
            num_attention_heads=heads,
            num_key_value_heads=_key_value_heads(fields, heads),
            head_dim=_head_dim(fields, hidden_size, heads),
            intermediate_size=fields.count("intermediate_size"),
            vocab_size=vocab_size,
            max_position_embeddings=fields.count("max_position_embeddings"),
            rms_norm_eps=fields.positive("rms_norm_eps"),
            hidden_act=hidden_act,
            rope_theta=rope_theta,
            rope_scaling=rope_scaling,
            tie_word_embeddings=fields.flag("tie_word_embeddings"),
            attention_bias=fields.flag("attention_bias"),
            mlp_bias=fields.flag("mlp_bias"),
            dtype=_dtype(fields),
            bos_token_id=_token(fields, "bos_token_id", vocab_size),
            eos_token_ids=tuple(
                dict.fromkeys(
                    _eos_tokens(fields, vocab_size) + _eos_tokens(_Fields(generation_config or {}, where), vocab_size)
                )
            ),
            pad_token_id=_token(fields, "pad_token_id", vocab_size),
        )

    @property
    def stored_dtype(self) -> str:
        """The dtype as safetensors spells it: "BF16", "F16" or "F32"."""
        return STORED_DTYPES[self.dtype]

    def parameter_count(self) -> int:
        """All parameters; a tied head counts once, with the embedding."""
        hidden, inner = self.hidden_size, self.intermediate_size
        query, key_value = self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim
        layer = 2 * hidden * query + 2 * hidden * key_value + 3 * hidden * inner + 2 * hidden
        if self.attention_bias:
            layer += query + 2 * key_value + hidden
        if self.mlp_bias:
            layer += 2 * inner + hidden
        embeddings = self.vocab_size * hidden * (1 if self.tie_word_embeddings else 2)
        return embeddings + self.num_hidden_layers * layer + hidden

    def kv_bytes_per_token(self, dtype_bytes: int, tp: int, pp: int = 1) -> int:
        """KV cache of one token on the fullest rank: 2 · ⌈layers / pp⌉ · ⌈KV heads / tp⌉ · head_dim · dtype_bytes."""
        layers_of_rank = -(-self.num_hidden_layers // pp)
        heads_of_rank = -(-self.num_key_value_heads // tp)
        return 2 * layers_of_rank * heads_of_rank * self.head_dim * dtype_bytes


def load_config(folder: Path) -> dict[str, Any]:
    """config.json of a model folder, read strictly: a key given twice, NaN or Infinity are errors with their place."""
    path = folder / "config.json"
    if not os.path.lexists(path):
        raise SourceError(
            "the model has no config.json",
            where=folder,
            hint="the source must be a Hugging Face model folder",
            code="CONFIG_MISSING",
        )
    config = read_json(path, code="CONFIG_JSON")
    if not isinstance(config, dict):
        raise SourceError("config.json must hold an object", where=path, code="CONFIG_JSON")
    return config


def load_generation_config(folder: Path) -> dict[str, Any]:
    """generation_config.json of a model folder, read as strictly; empty where there is none."""
    path = folder / "generation_config.json"
    if not os.path.lexists(path):
        return {}
    config = read_json(path, code="CONFIG_JSON")
    if not isinstance(config, dict):
        raise SourceError("generation_config.json must hold an object", where=path, code="CONFIG_JSON")
    return config


class _Fields:
    """Typed access to a config; what has the wrong type or is absent is named together with the file."""

    def __init__(self, config: Mapping[str, Any], where: str | Path) -> None:
        self.config = config
        self.where = where

    def get(self, name: str) -> Any:
        """The value, or None: an explicit null means the same as no such field."""
        return self.config.get(name)

    def wrong(self, name: str, expected: str) -> SourceError:
        value = self.get(name)
        message = f"{name} must be {expected}, not {value!r}" if name in self.config else f"{name} is missing"
        return SourceError(message, where=self.where, why="the model can't be known without it", code="CONFIG_FIELD")

    def contradiction(self, message: str) -> SourceError:
        return SourceError(message, where=self.where, why="the config contradicts itself", code="CONFIG_CONTRADICTION")

    def count(self, name: str, most: int = 1 << 31) -> int:
        value = self.get(name)
        if type(value) is not int or not 0 < value <= most:
            raise self.wrong(name, f"a whole number from 1 to {most}")
        return value

    def positive(self, name: str) -> float:
        value = self.get(name)
        if not _is_positive(value):
            raise self.wrong(name, "a number above 0")
        return float(value)

    def flag(self, name: str) -> bool:
        """A switch that LlamaConfig has off where the file doesn't say."""
        value = self.get(name)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def text(self, name: str) -> str:
        value = self.get(name)
        if not isinstance(value, str):
            raise self.wrong(name, "text")
        return value


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e300


def _architecture(fields: _Fields) -> str:
    architectures = fields.get("architectures")
    if not isinstance(architectures, list) or not all(isinstance(name, str) for name in architectures):
        raise fields.wrong("architectures", "a list of names")
    model_type = fields.get("model_type")
    custom_code = fields.get("auto_map")
    supported = len(architectures) == 1 and architectures[0] in SUPPORTED_ARCHITECTURES
    if not supported or model_type not in ("llama", None) or custom_code:
        why = (
            "it brings its own code (auto_map), which is never run"
            if supported and custom_code
            else f"supported: {', '.join(SUPPORTED_ARCHITECTURES)} with model_type llama"
        )
        raise SourceError(
            f"the architecture {', '.join(architectures) or 'that is not named'} (model_type {model_type}) "
            "is not supported",
            where=fields.where,
            why=why,
            code="UNSUPPORTED_ARCHITECTURE",
        )
    return str(architectures[0])


def _refuse_quantized(fields: _Fields) -> None:
    quantization = fields.get("quantization_config")
    if quantization is None:
        return
    known = quantization if isinstance(quantization, dict) else {}
    method = known.get("quant_method") or known.get("quant_algo") or "of an unnamed method"
    raise SourceError(
        f"the weights are quantised already: {method}",
        where=fields.where,
        why="only unquantised weights are converted",
        hint="name the unquantised model as the source",
        code="UNSUPPORTED_QUANTIZATION",
    )


def _key_value_heads(fields: _Fields, heads: int) -> int:
    """Models from before grouped-query attention don't have the field."""
    if fields.get("num_key_value_heads") is None:
        return heads
    key_value_heads = fields.count("num_key_value_heads")
    if heads % key_value_heads:
        raise fields.contradiction(
            f"num_attention_heads {heads} is not a multiple of num_key_value_heads {key_value_heads}"
        )
    return key_value_heads


def _head_dim(fields: _Fields, hidden_size: int, heads: int) -> int:
    if fields.get("head_dim") is not None:
        head_dim = fields.count("head_dim")
    elif hidden_size % heads:
        raise fields.contradiction(
            f"hidden_size {hidden_size} is not a multiple of num_attention_heads {heads}, and head_dim is not given"
        )
    else:
        head_dim = hidden_size // heads
    if head_dim % 2:
        raise fields.contradiction(f"head_dim {head_dim} is odd, but rotary embeddings turn pairs")
    return head_dim


def _dtype(fields: _Fields) -> str:
    """`dtype` since transformers 4.56, `torch_dtype` before."""
    names = [name for name in ("dtype", "torch_dtype") if fields.get(name) is not None] or ["torch_dtype"]
    dtypes = [fields.get(name) for name in names]
    if dtypes[0] != dtypes[-1]:
        raise fields.contradiction(f"dtype {dtypes[0]} and torch_dtype {dtypes[-1]} differ")
    if not isinstance(dtypes[0], str) or dtypes[0] not in STORED_DTYPES:
        raise fields.wrong(names[0], f"one of {', '.join(STORED_DTYPES)}")
    return dtypes[0]


def _rope(fields: _Fields) -> tuple[float, dict[str, Any] | None]:
    """Theta and scaling: `rope_theta` and `rope_scaling`, or both in `rope_parameters` since transformers 5."""
    _refuse_partial_rope(fields)
    thetas = set() if fields.get("rope_theta") is None else {fields.positive("rope_theta")}
    scalings = []
    for name in ("rope_parameters", "rope_scaling"):
        parameters = fields.get(name)
        if parameters is None:
            continue
        if not isinstance(parameters, dict):
            raise fields.wrong(name, "an object")
        inner = _Fields(parameters, f"{fields.where}: {name}")
        if inner.get("rope_theta") is not None:
            thetas.add(inner.positive("rope_theta"))
        scalings.append(_rope_scaling(inner))
    if len(thetas) > 1 or (len(scalings) == 2 and scalings[0] != scalings[1]):
        raise fields.contradiction("rope_theta, rope_parameters and rope_scaling differ")
    return (thetas.pop() if thetas else _DEFAULT_ROPE_THETA), (scalings[0] if scalings else None)


def _rope_scaling(fields: _Fields) -> dict[str, Any] | None:
    _refuse_partial_rope(fields)
    kinds = {fields.text(name) for name in ("rope_type", "type") if fields.get(name) is not None} or {"default"}
    if len(kinds) > 1:
        raise fields.contradiction(f"type and rope_type differ: {', '.join(sorted(kinds))}")
    kind = kinds.pop()
    if kind not in _ROPE_NUMBERS:
        raise _unknown_rope(fields, f"the rope type {kind!r}")
    scaling: dict[str, Any] = {"type": kind}
    for name in _ROPE_NUMBERS[kind]:
        # llama3's original context length is a number of tokens, all others are ratios
        is_length = name == "original_max_position_embeddings"
        scaling[name] = fields.count(name) if is_length else fields.positive(name)
    known = {"rope_type", "type", "rope_theta", "partial_rotary_factor", *scaling}
    if strangers := sorted(name for name in fields.config if name not in known and fields.get(name) is not None):
        raise _unknown_rope(fields, f"{', '.join(strangers)} for the rope type {kind}")
    if kind == "llama3" and scaling["low_freq_factor"] >= scaling["high_freq_factor"]:
        raise fields.contradiction("low_freq_factor must be below high_freq_factor")
    return None if kind == "default" else scaling


def _refuse_partial_rope(fields: _Fields) -> None:
    factor = fields.get("partial_rotary_factor")
    if factor not in (None, 1):
        raise _unknown_rope(fields, f"partial_rotary_factor {factor!r}")


def _unknown_rope(fields: _Fields, what: str) -> SourceError:
    return SourceError(
        f"a rotary embedding with {what} is not supported",
        where=fields.where,
        why=f"supported rope types: {', '.join(_ROPE_NUMBERS)}",
        code="UNSUPPORTED_ROPE",
    )


def _token(fields: _Fields, name: str, vocab_size: int) -> int | None:
    """A token id, or None. The first Llama configs say -1 where there is no such token."""
    value = fields.get(name)
    if value is None or value == -1:
        return None
    if not _is_token(value, vocab_size):
        raise fields.wrong(name, f"a token id from 0 to {vocab_size - 1}")
    return int(value)


def _eos_tokens(fields: _Fields, vocab_size: int) -> tuple[int, ...]:
    value = fields.get("eos_token_id")
    if not isinstance(value, list):
        token = _token(fields, "eos_token_id", vocab_size)
        return () if token is None else (token,)
    if not all(_is_token(token, vocab_size) for token in value):
        raise fields.wrong("eos_token_id", f"a list of token ids from 0 to {vocab_size - 1}")
    return tuple(value)


def _is_token(value: Any, vocab_size: int) -> bool:
    return type(value) is int and 0 <= value < vocab_size
