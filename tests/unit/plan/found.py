"""The findings of one unit: a recipe as nested values, for Llama-3.1-8B on one H100 unless a test says otherwise."""

from collections.abc import Mapping
from typing import Any

import yaml

from builder.plan import Finding, Unit, check
from tests.unit.plan.plans import MakeUnits

LLAMA_8B: dict[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "tie_word_embeddings": False,
    "bos_token_id": 128000,
    "eos_token_id": 128009,
    "pad_token_id": None,
}
"""meta-llama/Llama-3.1-8B's config.json, without what SmolLM2's has too."""

LLAMA_70B: dict[str, Any] = LLAMA_8B | {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_attention_heads": 64,
    "num_hidden_layers": 80,
}

LLAMA_2_70B: dict[str, Any] = LLAMA_70B | {
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "torch_dtype": "float16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}

_RECIPE: dict[str, Any] = {
    "schema": 1,
    "name": "tiny",
    "version": "1.0.0",
    "model": {"source": "./model"},
    "toolchain": "trtllm-1.2.1",
    "precision": {"weights": "bf16"},
    "limits": {"max_batch_size": 8, "max_seq_len": 8192, "max_num_tokens": 8192},
}


def unit_of(
    make_units: MakeUnits, config: Mapping[str, Any] = LLAMA_8B, facts: Mapping[str, Any] | None = None, **recipe: Any
) -> Unit:
    """Keyword arguments are sections of the recipe, laid over those of `_RECIPE`; `sku` and `gpus` are the target's.

    A value of None takes a key out.
    """
    target = {key: recipe.pop(key) for key in ("sku", "gpus") if key in recipe}
    content = _laid_over(_RECIPE, recipe) | {"targets": [{"sku": "h100-sxm-80gb"} | target]}
    return make_units(yaml.safe_dump(content, sort_keys=False), dict(config), **(facts or {}))[0]


def found(
    make_units: MakeUnits, config: Mapping[str, Any] = LLAMA_8B, facts: Mapping[str, Any] | None = None, **recipe: Any
) -> dict[str, Finding]:
    """The findings by code; of several with one code the last."""
    return {finding.code: finding for finding in check(unit_of(make_units, config, facts, **recipe))}


def _laid_over(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in over.items():
        before = result.get(key)
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict) and isinstance(before, dict):
            result[key] = _laid_over(before, value)
        else:
            result[key] = value
    return result
