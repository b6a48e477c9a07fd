"""config.json of a checkpoint: every value that TensorRT-LLM needs of a model, and nothing that it doesn't know."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builder.checkpoint.config import checkpoint_config, float_quantization
from builder.model.layout import Split
from builder.model.spec import ModelSpec
from builder.store import Workspace
from tests.unit.checkpoint.families import LLAMA3, LONGROPE, save_model
from tests.unit.model.published import published_spec

Convert = Callable[..., Workspace]

COMMON: dict[str, Any] = {
    "dtype": "bfloat16",
    "logits_dtype": "float32",
    "num_hidden_layers": 4,
    "hidden_size": 48,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_size": 16,
    "intermediate_size": 96,
    "vocab_size": 97,
    "max_position_embeddings": 256,
    "position_embedding_type": "rope_gpt_neox",
    "rotary_base": 10000.0,
    "rotary_scaling": None,
    "norm_epsilon": 1e-6,
    "hidden_act": "silu",
    "attn_bias": False,
    "mlp_bias": False,
    "qk_layernorm": False,
    "tie_word_embeddings": False,
    "use_parallel_embedding": False,
    "embedding_sharding_dim": 0,
    "mapping": {"world_size": 3, "tp_size": 3, "pp_size": 1},
    "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
}
"""On three ranks; what a family has of its own is laid over it."""

MAPPED_EXPERTS = {"mapping": COMMON["mapping"] | {"moe_tp_size": 3, "moe_ep_size": 1}, "hidden_act": "swiglu"}
QWEN3_MOE = {
    "architecture": "Qwen3MoeForCausalLM",
    "qwen_type": "qwen3_moe",
    "qk_layernorm": True,
    "moe_intermediate_size": 24,
    "decoder_sparse_step": 1,
    **MAPPED_EXPERTS,
}
GEMMA = {"hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True, "use_parallel_embedding": True}
PHI = {"architecture": "Phi3ForCausalLM", "hidden_size": 96, "hidden_act": "swiglu", "norm_epsilon": 1e-5}

EXPECTED: dict[str, dict[str, Any]] = {
    "llama": {"architecture": "LlamaForCausalLM"},
    "llama with biases": {"architecture": "LlamaForCausalLM", "attn_bias": True, "mlp_bias": True},
    "llama, tied": {"architecture": "LlamaForCausalLM", "tie_word_embeddings": True},
    "llama 3.1": {"architecture": "LlamaForCausalLM", "rotary_scaling": {"type": "llama3", **LLAMA3}},
    "mistral with a window": {
        "architecture": "MistralForCausalLM",
        "runtime_defaults": {"max_attention_window": [16, 16, 16, 16]},
    },
    "mistral-nemo": {"architecture": "MistralForCausalLM", "head_size": 4},
    "mixtral": {
        "architecture": "MixtralForCausalLM",
        "rotary_base": 1000000.0,
        "norm_epsilon": 1e-5,
        "moe": {"num_experts": 6, "top_k": 2, "normalization_mode": 1},
        **MAPPED_EXPERTS,
    },
    "qwen2": {"architecture": "Qwen2ForCausalLM", "qwen_type": "qwen2", "attn_bias": True},
    "qwen3": {"architecture": "Qwen3ForCausalLM", "qwen_type": "qwen3", "qk_layernorm": True},
    "qwen3-moe": {
        **QWEN3_MOE,
        "intermediate_size": 24,  # no layer is dense
        "moe": {"num_experts": 6, "top_k": 2, "normalization_mode": 1},
        "mlp_only_layers": [],
    },
    "qwen3-moe with dense layers": {
        **QWEN3_MOE,
        "moe": {"num_experts": 6, "top_k": 2, "normalization_mode": 0},
        "mlp_only_layers": [0, 2],
    },
    "gemma": {"architecture": "GemmaForCausalLM", "inter_layernorms": False, **GEMMA},
    "gemma-2": {
        "architecture": "Gemma2ForCausalLM",
        "inter_layernorms": True,
        "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "runtime_defaults": {"max_attention_window": [16, 256, 16, 256]},
        **GEMMA,
    },
    "gemma-3": {
        "architecture": "Gemma3ForCausalLM",
        "inter_layernorms": True,
        "qk_layernorm": True,
        "query_pre_attn_scalar": 24,
        "final_logit_softcapping": None,
        "rotary_base": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "sliding_window": 16,
        "_sliding_window_pattern": 2,
        "runtime_defaults": {"max_attention_window": [16, 256, 16, 256]},
        **GEMMA,
    },
    "phi-3-mini": {**PHI, "num_key_value_heads": 6, "rotary_pct": 1.0},
    "phi-4": {**PHI, "rotary_pct": 1.0},
    "phi-4-mini": {**PHI, "rotary_pct": 0.75, "tie_word_embeddings": True},
    "phi-3-128k": {
        **PHI,
        "rotary_pct": 1.0,
        "position_embedding_type": "long_rope",
        "rotary_scaling": {"type": "longrope", **LONGROPE},
        "original_max_position_embeddings": 64,
        "longrope_scaling_short_factors": LONGROPE["short_factor"],
        "longrope_scaling_long_factors": LONGROPE["long_factor"],
    },
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_familys_values_are_all_there_and_no_others(checkpoint: Convert, tmp_path: Path, name: str) -> None:
    out = checkpoint(save_model(tmp_path / "source", name), tp=3)
    assert json.loads((out.path / "config.json").read_text()) == COMMON | EXPECTED[name]


def test_dense_layers_are_named_however_the_model_says_which(checkpoint: Convert, tmp_path: Path) -> None:
    """Every second layer has experts: layers 0 and 2 have none. transformers' mlp_only_layers says the same."""
    source = save_model(tmp_path / "source", "qwen3-moe", decoder_sparse_step=2, norm_topk_prob=False)
    config = json.loads((checkpoint(source, tp=3).path / "config.json").read_text())
    assert config == COMMON | EXPECTED["qwen3-moe with dense layers"]


@pytest.mark.parametrize(
    ("split", "mapping"),
    [
        (Split(), {"world_size": 1, "tp_size": 1, "pp_size": 1}),
        (Split(3, 2), {"world_size": 6, "tp_size": 3, "pp_size": 2}),
        (Split(3, 2, cp=2), {"world_size": 12, "tp_size": 3, "pp_size": 2, "cp_size": 2}),
    ],
)
def test_the_mapping_has_the_sizes_and_no_rank(split: Split, mapping: dict[str, int]) -> None:
    assert checkpoint_config(published_spec("HuggingFaceTB--SmolLM2-135M"), split)["mapping"] == mapping


@pytest.mark.parametrize(
    ("split", "sizes"),
    [
        (Split(8), {"moe_tp_size": 8, "moe_ep_size": 1}),
        (Split(8, moe_ep=8), {"moe_tp_size": 1, "moe_ep_size": 8}),
        (Split(8, 2, moe_ep=2), {"moe_tp_size": 4, "moe_ep_size": 2}),
    ],
)
def test_the_mapping_of_experts_is_theirs(split: Split, sizes: dict[str, int]) -> None:
    mapping = checkpoint_config(published_spec("mistralai--Mixtral-8x7B-v0.1"), split)["mapping"]
    assert mapping == {"world_size": split.world_size, "tp_size": split.tp, "pp_size": split.pp, **sizes}


@pytest.mark.parametrize("dim", [0, 1])
def test_a_split_embedding_is_told(dim: int) -> None:
    split = Split(3, use_parallel_embedding=True, embedding_sharding_dim=dim)
    config = checkpoint_config(published_spec("HuggingFaceTB--SmolLM2-135M"), split)
    assert (config["use_parallel_embedding"], config["embedding_sharding_dim"]) == (True, dim)


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "dynamic", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        {"rope_type": "llama3", **LLAMA3},
    ],
    ids=lambda scaling: scaling["rope_type"],
)
def test_no_scaling_of_the_rotary_embedding_is_lost(
    checkpoint: Convert, tmp_path: Path, scaling: dict[str, Any]
) -> None:
    source = save_model(tmp_path / "source", "llama", rope_parameters={"rope_theta": 500000.0, **scaling})
    config = json.loads((checkpoint(source).path / "config.json").read_text())
    numbers = {key: value for key, value in scaling.items() if key != "rope_type"}
    assert config["rotary_scaling"] == {"type": scaling["rope_type"], **numbers}
    assert config["rotary_base"] == 500000.0


def test_windows_of_published_models() -> None:
    """Gemma-3-1B: five layers of 512 tokens for each that sees all; Phi-3's 2,047; Qwen2's are switched off."""
    gemma = checkpoint_config(published_spec("google--gemma-3-1b-it"), Split())
    assert gemma["_sliding_window_pattern"] == 6
    assert gemma["runtime_defaults"]["max_attention_window"] == ([512] * 5 + [32768]) * 4 + [512] * 2
    assert "runtime_defaults" not in checkpoint_config(published_spec("Qwen--Qwen2-7B"), Split())
    phi = checkpoint_config(published_spec("microsoft--Phi-3-mini-4k-instruct"), Split())
    assert phi["runtime_defaults"]["max_attention_window"] == [2047] * 32


@pytest.mark.parametrize("algorithm", ["W8A16", "W4A16"])
def test_weights_that_are_quantised_when_the_engine_is_built_are_plain_until_then(
    checkpoint: Convert, tmp_path: Path, algorithm: str
) -> None:
    source = save_model(tmp_path / "source", "llama")
    plain = checkpoint(source, "plain", tp=3)
    told = checkpoint(source, "told", tp=3, quantization=float_quantization(algorithm))
    assert json.loads((told.path / "config.json").read_text())["quantization"] == {
        "quant_algo": algorithm,
        "kv_cache_quant_algo": None,
        "exclude_modules": ["lm_head", "*vocab_embedding", "*router"],
    }
    assert {**told.digests, "config.json": None} == {**plain.digests, "config.json": None}


def test_the_config_describes_what_is_written_not_what_was_read(
    checkpoint: Convert, tmp_path: Path, spec_of: Callable[[Path], ModelSpec]
) -> None:
    source = save_model(tmp_path / "source", "gemma-2")
    out = checkpoint(source, dtype="float16")
    config = json.loads((out.path / "config.json").read_text())
    assert config["dtype"] == "float16"
    assert {**config, "dtype": "bfloat16"} == checkpoint_config(spec_of(source), Split())
