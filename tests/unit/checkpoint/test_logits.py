"""Small random models of every family, converted for every kind of split, give the logits that transformers gives."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedConfig

from builder.checkpoint.convert import convert
from builder.errors import PlanRefused
from builder.model.config import load_config
from builder.model.layout import Split
from builder.model.spec import ModelSpec
from builder.reference.model import ReferenceModel
from builder.store import Workspace
from tests.unit.checkpoint import families
from tests.unit.checkpoint.families import rope

SIZES = {**families.SIZES, "initializer_range": 0.3}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
PHI = {"hidden_size": 96, "head_dim": None}
ORIGINAL = {"original_max_position_embeddings": 64}
FACTORS = {"short_factor": [1 + i / 10 for i in range(8)], "long_factor": [2 + i / 5 for i in range(8)]}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama with biases, tied": ("Llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "llama of one KV head": ("Llama", {"num_key_value_heads": 1}),
    "llama, odd vocabulary": ("Llama", {"vocab_size": 101}),
    "llama 3.1": ("Llama", rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, **ORIGINAL)),
    "llama, linear rope": ("Llama", rope("linear", factor=4.0)),
    "llama, yarn": ("Llama", rope("yarn", factor=4.0, **ORIGINAL)),
    "llama, dynamic rope": ("Llama", {"max_position_embeddings": 32, **rope("dynamic", factor=4.0)}),
    "mistral with a window": ("Mistral", {"sliding_window": 16}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2": ("Qwen2", {}),
    "qwen2, windows in the last layers": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2},
    ),
    "qwen3": ("Qwen3", {}),
    "qwen3-moe": ("Qwen3Moe", {**EXPERTS, "num_experts": 4, "norm_topk_prob": True}),
    "qwen3-moe, not normalised, one dense layer": (
        "Qwen3Moe",
        {**EXPERTS, "num_experts": 4, "norm_topk_prob": False, "mlp_only_layers": [1]},
    ),
    "gemma": ("Gemma", {}),
    "gemma of one KV head": ("Gemma", {"num_key_value_heads": 1}),
    "gemma-2": ("Gemma2", {"sliding_window": 16, "query_pre_attn_scalar": 24}),
    "gemma-3": (
        "Gemma3Text",
        {
            "sliding_window": 16,
            "query_pre_attn_scalar": 24,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
    ),
    "phi-3": ("Phi3", {**PHI, "num_key_value_heads": 6}),
    "phi-4-mini": (
        "Phi3",
        {**PHI, "tie_word_embeddings": True, "partial_rotary_factor": 0.75}
        | rope("default", partial_rotary_factor=0.75),
    ),
    "phi-3-128k": ("Phi3", {**PHI, **ORIGINAL, **rope("longrope", **FACTORS, **ORIGINAL)}),
}

SPLITS = {
    "one rank": Split(),
    "tp 3": Split(3),
    "pp 3, unevenly": Split(1, 3),
    "tp 3, pp 2": Split(3, 2),
    "tp 6, KV heads twice": Split(6),
    "tp 2": Split(2),
    "vocabulary split": Split(3, use_parallel_embedding=True),
    "hidden size split": Split(3, use_parallel_embedding=True, embedding_sharding_dim=1),
    "cp 2": Split(3, cp=2),
    "experts apart": Split(2, moe_ep=2),
    "experts apart and cut": Split(6, moe_tp=3, moe_ep=2),
}

IDS = np.random.default_rng(0).integers(3, 97, 100)
WHOLE = ("llama, dynamic rope", "phi-3-128k")  # how they turn depends on how long the sequence is


@cache
def published(name: str, root: Path) -> tuple[Path, npt.NDArray[np.float32]]:
    """The model as transformers saves it, and its logits."""
    transformers.logging.disable_progress_bar()
    family, changes = MODELS[name]
    values = {key: value for key, value in {**SIZES, **changes}.items() if value is not None}
    config: PreTrainedConfig = getattr(transformers, f"{family}Config")(**values)
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter, tensor in model.named_parameters():  # transformers begins with ones and zeros
            if "norm" in parameter:
                tensor.uniform_(0.3, 1.2)
            elif parameter.endswith("bias"):
                tensor.normal_(0, 0.3)
        logits = model(torch.tensor(IDS)[None]).logits[0].numpy()
    folder = root / name.replace(" ", "-")
    model.save_pretrained(folder)
    return folder, logits


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def legal(spec: ModelSpec, split: Split) -> bool:
    try:
        split.check(spec)
    except PlanRefused:
        return False
    return split.moe_ep == 1 or spec.experts is not None


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_those_of_transformers_however_the_model_is_split(name: str, root: Path, tmp_path: Path) -> None:
    source, expected = published(name, root)
    spec = ModelSpec.from_config(load_config(source), source)
    splits = {words: split for words, split in SPLITS.items() if legal(spec, split)}
    assert len(splits) >= 5
    assert spec.experts is None or {"experts apart and cut"} <= splits.keys()
    for words, split in splits.items():
        out = Workspace(tmp_path / words)
        out.path.mkdir()
        convert(source, spec, out, split)
        model = ReferenceModel.load(out.path)
        cache = model.new_cache(128)
        first = len(IDS) if name in WHOLE else 60
        logits = [model.prefill(IDS[:first], cache, all_positions=True)]
        logits += [model.decode(IDS[place : place + 1], [cache]) for place in range(first, len(IDS))]
        difference = np.abs(np.concatenate(logits) - expected).max()
        assert difference < 5e-5 * np.abs(expected).max(), words


def test_a_longrope_turns_short_sequences_with_its_short_factors(root: Path, tmp_path: Path) -> None:
    source, _ = published("phi-3-128k", root)
    short = AutoModelForCausalLM.from_pretrained(source, attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        expected = short(torch.tensor(IDS[:50])[None]).logits[0].numpy()
    convert(source, ModelSpec.from_config(load_config(source), source), Workspace(tmp_path))
    model = ReferenceModel.load(tmp_path)
    logits = model.prefill(IDS[:50], model.new_cache(64), all_positions=True)
    assert np.abs(logits - expected).max() < 5e-5 * np.abs(expected).max()
