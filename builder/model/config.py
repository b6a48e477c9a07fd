"""config.json becomes a `ModelSpec`. What we don't know is refused, never guessed.

Refusals are SourceErrors with one of these codes:

    CONFIG_MISSING         no config.json              UNSUPPORTED_ARCHITECTURE   no family that we know
    CONFIG_JSON            it isn't JSON               UNSUPPORTED_LAYER          an unknown kind of layer
    CONFIG_FIELD           a field is absent or bad    UNSUPPORTED_ROPE           an unknown rotary embedding
    CONFIG_CONTRADICTION   two fields disagree         UNSUPPORTED_ACTIVATION     an unknown activation
    QUANT_CONTRADICTION    two files disagree          UNSUPPORTED_QUANTIZATION   unknown numbers in the KV cache

How weights are quantised, whether the model brings its own code, and whether a tool converts its architecture, is
recorded, not judged: that depends on the recipe.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from builder.errors import SourceError
from builder.model.attention import head_count
from builder.model.dtype import read_dtype
from builder.model.families import Family, families, family_of
from builder.model.fields import Fields, json_safe
from builder.model.files import read_json
from builder.model.quantization import read_quantization
from builder.model.quantized_modules import MOST_STEPS, steps
from builder.model.rope import tensorrt_llm_scaling
from builder.model.spec import Attention, ModelSpec, SourceQuantization, shared
from builder.model.structure import read_layers
from builder.model.tokens import read_end_tokens, read_token

__all__ = ["json_safe", "load_config", "load_generation_config", "load_hf_quant_config", "read_spec"]

_ACTIVATIONS = ("silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu2")

_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "vocab_size",
    "max_position_embeddings",
    "rms_norm_eps",
    "hidden_act",
)

_TOWERS = ("vision_config", "audio_config", "speech_config")


def load_config(folder: Path) -> dict[str, Any]:
    """config.json of a model folder, read strictly: a key given twice is an error with its place.

    NaN and Infinity, which some published files hold, become text: what we make of the result is always JSON, and a
    field that we need is refused by its name.
    """
    path = folder / "config.json"
    if not os.path.lexists(path):
        raise SourceError(
            "the model has no config.json",
            where=folder,
            hint="the source must be a Hugging Face model folder",
            code="CONFIG_MISSING",
        )
    return _load(path)


def load_generation_config(folder: Path) -> dict[str, Any]:
    """generation_config.json of a model folder, read in the same way; empty where there is none."""
    path = folder / "generation_config.json"
    return _load(path) if os.path.lexists(path) else {}


def load_hf_quant_config(folder: Path) -> dict[str, Any] | None:
    """hf_quant_config.json, ModelOpt's description of quantised weights; None where there is none."""
    path = folder / "hf_quant_config.json"
    return _load(path) if os.path.lexists(path) else None


def read_spec(
    config: Mapping[str, Any],
    where: str | Path,
    generation_config: Mapping[str, Any] | None = None,
    hf_quant_config: Mapping[str, Any] | None = None,
    stored_dtype: str | None = None,
) -> ModelSpec:
    """The model that a Hugging Face config.json describes; `where` names it in errors.

    Chat models may name some of their end tokens in generation_config.json alone: those of both files count.
    `hf_quant_config` is the content of ModelOpt's file of this name. `stored_dtype` is what most tensors of the
    weight files have that aren't quantised, as safetensors spells it; it counts where the config doesn't say.
    """
    top = Fields(config, where)
    architecture, family = _family(top)
    fields = _text_fields(top, family)
    _refuse_other_structures(fields, family)
    fields.require(_required(family))
    vocab_size = fields.count("vocab_size")
    layers = read_layers(fields, family)
    attentions = [layer.attention for layer in layers if layer.attention is not None]
    widths = [layer.intermediate_size for layer in layers if layer.intermediate_size is not None]
    experts = [layer.experts.intermediate_size for layer in layers if layer.experts is not None]
    rope = next((part.rope for part in _widest_view_first(attentions) if part.rope is not None), None)
    quantization = _quantization(top, fields, hf_quant_config, len(layers))
    return shared(
        ModelSpec(
            architecture=architecture,
            num_hidden_layers=len(layers),
            hidden_size=fields.count("hidden_size"),
            num_attention_heads=head_count(fields),
            num_key_value_heads=max((part.kv_heads for part in attentions), default=head_count(fields)),
            head_dim=max((part.head_dim for part in attentions), default=0),
            intermediate_size=max(widths or experts, default=0),
            vocab_size=vocab_size,
            max_position_embeddings=fields.count("max_position_embeddings"),
            rms_norm_eps=fields.positive("rms_norm_eps"),
            hidden_act=_activation(fields),
            rope_theta=0.0 if rope is None else rope.theta,
            rope_scaling=tensorrt_llm_scaling(rope),
            tie_word_embeddings=_tied(top, fields),
            attention_bias=_switch(fields, family.attention_bias),
            mlp_bias=_switch(fields, family.mlp_bias),
            dtype=read_dtype(top, fields, quantization, stored_dtype),
            bos_token_id=read_token(top, fields, "bos_token_id", vocab_size),
            eos_token_ids=read_end_tokens((fields, top, Fields(generation_config or {}, where)), vocab_size),
            pad_token_id=read_token(top, fields, "pad_token_id", vocab_size),
            model_type=family.model_type,
            layers=layers,
            qk_norm=family.qk_norm != "none" and fields.get("use_qk_norm") is not False,
            quantization=quantization,
            transformers_version=_version(top),
            custom_code=bool(top.get("auto_map") or fields.get("auto_map")),
            next_token_layers=_next_token_layers(fields, family),
            assumed=dict(fields.assumed),
            towers=tuple(name for name in _TOWERS if top.get(name) is not None),
            **_scales(fields, family),
        )
    )


def _load(path: Path) -> dict[str, Any]:
    config = read_json(path, code="CONFIG_JSON", finite=False)
    if not isinstance(config, dict):
        raise SourceError(f"{path.name} must hold an object", where=path, code="CONFIG_JSON")
    return config


def _family(top: Fields) -> tuple[str, Family]:
    architectures = top.texts("architectures")
    model_type = top.get("model_type")
    if model_type is not None and not isinstance(model_type, str):
        raise top.wrong("model_type", "text")
    family = family_of(architectures[0], model_type) if len(architectures) == 1 else None
    if family is None:
        known = families().get(model_type or "")
        raise SourceError(
            f"the architecture {', '.join(architectures) or 'that is not named'} (model_type {model_type}) "
            "is not supported",
            where=top.where,
            why=f"model_type {model_type} is known with {known.architectures[0]}"
            if known
            else f"known model types: {', '.join(sorted(families()))}",
            code="UNSUPPORTED_ARCHITECTURE",
        )
    return architectures[0], family


def _text_fields(top: Fields, family: Family) -> Fields:
    """The object that describes the language model: text_config, where the family nests it."""
    if not family.nested:
        return Fields(top.config, top.where, defaults=family.defaults, names=family.keys)
    inner = top.inner("text_config")
    if inner is None:
        raise top.wrong("text_config", "an object")
    if inner.get("model_type") not in (None, *family.nested):
        raise top.contradiction(
            f"text_config has the model_type {inner.get('model_type')}, "
            f"{family.model_type} goes with {' or '.join(family.nested)}"
        )
    return Fields(inner.config, inner.where, defaults=family.defaults, names=family.keys)


def _refuse_other_structures(fields: Fields, family: Family) -> None:
    """Values that would give the model other tensors than those we know."""
    for name, values in family.only.items():
        value = fields.config.get(name, fields.defaults.get(name))
        if value is not None and value not in values:
            raise SourceError(
                f"{name} {value!r} is not supported for the model_type {family.model_type}",
                where=fields.where,
                why=f"known: {', '.join(map(repr, values))}",
                code="UNSUPPORTED_ARCHITECTURE",
            )


def _required(family: Family) -> list[str]:
    """What a config of this family must say."""
    elsewhere = {"num_hidden_layers"} if family.hybrid == "pattern" else set()
    if family.hybrid in ("pattern", "blocks") or family.default_mlp_ratio or family.experts:
        elsewhere.add("intermediate_size")
    return [name for name in _SIZES if name not in elsewhere]


def _widest_view_first(attentions: list[Attention]) -> list[Attention]:
    return sorted(dict.fromkeys(attentions), key=lambda attention: attention.window is not None)


def _activation(fields: Fields) -> str:
    activation = fields.text("hidden_act")
    if activation not in _ACTIVATIONS:
        raise SourceError(
            f"the activation {activation!r} is not supported",
            where=fields.where,
            why=f"known: {', '.join(_ACTIVATIONS)}",
            code="UNSUPPORTED_ACTIVATION",
        )
    return activation


def _switch(fields: Fields, rule: str) -> bool:
    return rule == "always" or (rule != "never" and fields.flag(rule))


def _tied(top: Fields, fields: Fields) -> bool:
    """The whole model's word counts where its language model says nothing."""
    if fields.given("tie_word_embeddings") or not top.given("tie_word_embeddings"):
        tied = fields.flag("tie_word_embeddings")
    else:
        tied = top.flag("tie_word_embeddings")
    if top.given("tie_word_embeddings") and top.flag("tie_word_embeddings") != tied:
        raise top.contradiction("tie_word_embeddings differs from that of text_config")
    return tied


def _quantization(
    top: Fields, fields: Fields, hf_quant_config: Mapping[str, Any] | None, layer_count: int
) -> SourceQuantization | None:
    config = top.inner("quantization_config") or fields.inner("quantization_config")
    other = None if hf_quant_config is None else Fields(hf_quant_config, f"{top.where}: hf_quant_config.json")
    found = read_quantization(config, other)
    if found is not None and steps(found.excluded) * layer_count > MOST_STEPS:
        raise SourceError(
            "the patterns of modules that aren't quantised take too long to match",
            where=top.where,
            why=f"there are {len(found.excluded)}, for {layer_count} layers",
            hint="publish the checkpoint with simpler patterns",
            code="CONFIG_FIELD",
        )
    return found


def _next_token_layers(fields: Fields, family: Family) -> int:
    return 0 if family.next_token is None else fields.optional_count(family.next_token.count, most=100) or 0


def _scales(fields: Fields, family: Family) -> dict[str, Any]:
    """The numbers of a family that scale or cap what is computed; null where there is no such thing."""
    scales: dict[str, Any] = {
        name: None if fields.get(name) is None else fields.positive(name) for name in family.scales
    }
    if family.experts is not None and family.experts.normalized is not None:
        scales["norm_topk_prob"] = fields.flag(family.experts.normalized)
    return scales


def _version(top: Fields) -> str | None:
    version = top.get("transformers_version")
    return version if isinstance(version, str) else None
