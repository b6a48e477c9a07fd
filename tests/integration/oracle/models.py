"""The models that both sides convert, and what ModelOpt is asked to do with them.

Sizes are small and awkward: the vocabulary is a multiple of nothing, heads are not hidden_size / heads wide, and some
models have fewer KV heads than ranks. There are four layers, so that three stages are uneven.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ODD_VOCABULARY = 97

SIZES: dict[str, Any] = {
    "vocab_size": ODD_VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
QUANTIZED_SIZES = SIZES | {
    "vocab_size": 128,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
}
"""Multiples of the blocks of 64, on two ranks too."""


def _quantization(config: str, kv_cache: str | None = None, block_size: int | None = None) -> dict[str, Any]:
    return {"config": config, "kv_cache": kv_cache, "block_size": block_size}


QUANTIZATIONS = {
    "fp8": _quantization("FP8_DEFAULT_CFG"),
    "fp8-kv": _quantization("FP8_DEFAULT_CFG", kv_cache="FP8_KV_CFG"),
    "fp8-rowwise": _quantization("FP8_PER_CHANNEL_PER_TOKEN_CFG"),
    "nvfp4": _quantization("NVFP4_DEFAULT_CFG"),
    "int8-sq": _quantization("INT8_SMOOTHQUANT_CFG"),
    "int4-awq": _quantization("INT4_AWQ_CFG", block_size=64),
    "w4a8-awq": _quantization("W4A8_AWQ_BETA_CFG", block_size=64),
}


@dataclass(frozen=True)
class Model:
    """A model of a family, and its exports: each of `tp` with each of `pp`.

    `decoder` is ModelOpt's name of the kind; where `config` is false, it leaves config.json to TensorRT-LLM.
    `exported_dtype` differs from `dtype` where the conversion is to round. `alike`: see export.py. `older`: exported in
    the second environment (conftest.py).
    """

    name: str
    family: str | None
    decoder: str
    values: dict[str, Any] = field(default_factory=dict)
    tp: tuple[int, ...] = (1, 3, 6)
    pp: tuple[int, ...] = (1, 2, 4)
    dtype: str = "bfloat16"
    exported_dtype: str | None = None
    config: bool = True
    quantization: str | None = None
    alike: bool = False
    older: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def splits(self) -> list[tuple[int, int]]:
        return [(tp, pp) for tp in self.tp for pp in self.pp]

    def checkpoint(self, folder: Path, tp: int, pp: int) -> Path:
        return folder / self.name / f"tp{tp}-pp{pp}"

    def published(self, folder: Path) -> Path:
        """The Hugging Face model that our converter reads."""
        return folder / self.name / ("published" if self.quantization else "source")

    def job(self, folder: Path) -> dict[str, Any]:
        """What export.py is told."""
        values = (QUANTIZED_SIZES if self.quantization else SIZES) | self.values
        dtype = self.exported_dtype or self.dtype
        return {
            "name": self.name,
            "source": str(folder / self.name / "source"),
            "family": self.family,
            "values": {name: value for name, value in values.items() if value is not None},
            "dtype": self.dtype,
            "alike": self.alike,
            "decoder": self.decoder,
            "config": self.config,
            "quantization": QUANTIZATIONS[self.quantization] if self.quantization else None,
            "published": str(self.published(folder)),
            "splits": [(tp, pp, dtype, str(self.checkpoint(folder, tp, pp))) for tp, pp in self.splits],
        }


SMOLLM2 = Model("smollm2", None, "llama", tp=(1, 3), pp=(1, 2))
"""The real one: thirty layers, nine heads and three KV heads, a tied head."""

DENSE = (
    Model("llama", "Llama", "llama"),
    Model(
        "llama with biases",
        "Llama",
        "llama",
        {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 6},
        tp=(1, 2, 3, 6),
    ),
    Model("llama, tied", "Llama", "llama", {"tie_word_embeddings": True}),
    Model("llama in float16", "Llama", "llama", exported_dtype="float16"),
    Model("llama from float32", "Llama", "llama", dtype="float32", exported_dtype="bfloat16"),
    Model("mistral", "Mistral", "llama", {"sliding_window": 16}),
    Model("qwen2", "Qwen2", "qwen"),
    Model("qwen2 with one KV head", "Qwen2", "qwen", {"num_key_value_heads": 1}, tp=(1, 2, 3, 6)),
    Model("qwen3", "Qwen3", "qwen"),
    Model("gemma", "Gemma", "gemma"),
    Model("gemma from float32", "Gemma", "gemma", dtype="float32", exported_dtype="bfloat16"),
    Model("gemma-2", "Gemma2", "gemma2", {"sliding_window": 16}, config=False),
    Model(
        "gemma-3",
        "Gemma3Text",
        "gemma3",
        {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"] * 2},
        config=False,
    ),
    Model("phi-3", "Phi3", "phi3", {"hidden_size": 96, "head_dim": None}, pp=(1,), config=False),
)


def _quantized(name: str, family: str, decoder: str, quantization: str, values: dict[str, Any] | None = None) -> Model:
    """Four ranks share two KV heads, which ModelOpt does where a head has no scales of its own."""
    tp = (1, 2, 4) if quantization in ("fp8", "fp8-kv", "nvfp4") else (1, 2)
    return Model(f"{name} {quantization}", family, decoder, values or {}, tp, (1, 2), quantization=quantization)


def _alike(model: Model) -> Model:
    """In float32, so that no quotient is rounded before it is quantised."""
    return replace(model, name=f"alike {model.name}", dtype="float32", exported_dtype="bfloat16", alike=True)


QUANTIZED = (
    *(_quantized("llama", "Llama", "llama", name) for name in QUANTIZATIONS),
    *(_alike(_quantized("llama", "Llama", "llama", name)) for name in ("fp8", "fp8-kv", "int4-awq", "w4a8-awq")),
    replace(
        _alike(_quantized("llama", "Llama", "llama", "int4-awq", {"vocab_size": ODD_VOCABULARY})),
        name="alike llama with an odd vocabulary int4-awq",
    ),
    _quantized("qwen2", "Qwen2", "qwen", "int8-sq"),
    _quantized("gemma", "Gemma", "gemma", "int4-awq"),
    _alike(_quantized("gemma", "Gemma", "gemma", "int4-awq")),
)

_MIXTRAL = {"num_local_experts": 6, "num_experts_per_tok": 2}
_QWEN = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "norm_topk_prob": True}
_MIXTRAL_FP8 = {**_MIXTRAL, "num_local_experts": 4}
_QWEN_FP8 = {**_QWEN, "num_experts": 4, "moe_intermediate_size": 64}
"""As many experts as a multiple of the ranks: else ModelOpt pads the rows of mlp.proj as if they were experts."""

EXPERTS = (
    Model("mixtral", "Mixtral", "llama", {**_MIXTRAL, "num_key_value_heads": 6}, tp=(1, 2, 3, 6), older=True),
    Model("qwen3-moe", "Qwen3Moe", "qwen", _QWEN, config=False, older=True),
    Model(
        "qwen3-moe with dense layers",
        "Qwen3Moe",
        "qwen",
        {**_QWEN, "mlp_only_layers": [0, 3]},
        config=False,
        older=True,
    ),
)
QUANTIZED_EXPERTS = tuple(
    replace(model, older=True)
    for model in (
        _quantized("mixtral", "Mixtral", "llama", "fp8", _MIXTRAL_FP8),
        _alike(_quantized("mixtral", "Mixtral", "llama", "fp8", _MIXTRAL_FP8)),
        replace(_alike(_quantized("qwen3-moe", "Qwen3Moe", "qwen", "fp8", _QWEN_FP8)), config=False),
    )
)


def _rope(name: str, **scaling: Any) -> Model:
    """In the words of transformers 4."""
    values = {"rope_theta": 500000.0, "rope_scaling": {"rope_type": name, **scaling}}
    return Model(f"llama, {name} rope", "Llama", "llama", values, tp=(1,), pp=(1,), older=True)


ROPES = (
    Model("llama with its own base", "Llama", "llama", {"rope_theta": 123456.0}, tp=(1,), pp=(1,), older=True),
    _rope("linear", factor=4.0),
    _rope("dynamic", factor=4.0),
    _rope("yarn", factor=4.0, original_max_position_embeddings=64),
    _rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64),
)

MODELS = (SMOLLM2, *DENSE, *QUANTIZED, *EXPERTS, *QUANTIZED_EXPERTS, *ROPES)
