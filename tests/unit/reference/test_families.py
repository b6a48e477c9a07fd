"""Every family, at the splits that it allows, against transformers in float32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from builder.reference.model import ReferenceModel
from tests.unit.reference.sharding import write_checkpoint
from tests.unit.reference.tiny import FAMILIES, WINDOW, tiny

PROMPT = 5 * WINDOW + 3
"""Longer than the windows, by more than one."""

SPLITS: dict[str, list[dict[str, int]]] = {
    "llama": [{"tp": 3, "embedding": 0}, {"tp": 3, "embedding": 1, "pp": 2}, {"tp": 6, "embedding": 0}],
    "mistral": [{}, {"tp": 3, "pp": 2}],
    "mixtral": [{}, {"tp": 3}, {"tp": 6, "moe_ep": 2, "pp": 3}],
    "qwen2": [{}, {"tp": 6}, {"pp": 3}, {"tp": 3, "cp": 2}],
    "qwen3": [{}, {"tp": 6, "pp": 2}],
    "qwen3_moe": [{}, {"tp": 3, "moe_ep": 3}, {"tp": 6, "moe_ep": 3, "pp": 2, "embedding": 1}],
    "gemma": [{}, {"tp": 3, "embedding": 0}],
    "gemma2": [{}, {"tp": 3, "embedding": 0, "pp": 2}, {"pp": 3}],
    "gemma3": [{}, {"tp": 3, "embedding": 0, "pp": 2}, {"pp": 3}],
    "phi3": [{}, {"tp": 3}, {"tp": 6, "embedding": 1}],
}
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "without-grouping": ("qwen2", {"num_key_value_heads": 6}),
    "one-kv-head": ("gemma", {"num_key_value_heads": 1}),
    "dense-layer": ("qwen3_moe", {"mlp_only_layers": [1]}),
    "dense-steps": ("qwen3_moe", {"decoder_sparse_step": 2}),
    "not-normalised": ("qwen3_moe", {"norm_topk_prob": False}),
    "without-caps": ("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
    "logit-cap": ("gemma3", {"final_logit_softcapping": 3.0}),
    "untied": ("gemma", {"tie_word_embeddings": False}),
    "tied": ("phi3", {"tie_word_embeddings": True}),
    "partial-rope": (
        "phi3",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.5}},
    ),
}


def random_tokens(count: int, seed: int = 7) -> np.ndarray:
    return np.random.default_rng(seed).integers(3, 97, count)


def expected_logits(model: PreTrainedModel, tokens: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model(torch.from_numpy(tokens)[None]).logits[0].numpy()


def assert_same(logits: np.ndarray, expected: np.ndarray) -> None:
    """Both sides compute in float32 and differ in the order of their sums: some 1e-6 of the largest logit."""
    assert_allclose(logits, expected, rtol=1e-4, atol=3e-5 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("family", "split"),
    [
        pytest.param(family, split, id="-".join([family, *(f"{name}{size}" for name, size in split.items())]))
        for family, splits in SPLITS.items()
        for split in splits
    ],
)
def test_logits_equal_those_of_transformers(family: str, split: dict[str, int], tmp_path: Path) -> None:
    model = tiny(family)
    tokens = random_tokens(PROMPT)
    reference = ReferenceModel.load(write_checkpoint(model, tmp_path, **split))
    logits = reference.prefill(tokens, reference.new_cache(PROMPT), all_positions=True)
    assert_same(logits, expected_logits(model, tokens))


@pytest.mark.parametrize("name", OPTIONS)
def test_a_family_may_differ_from_its_usual_form(name: str, tmp_path: Path) -> None:
    family, options = OPTIONS[name]
    model = tiny(family, **options)
    tokens = random_tokens(PROMPT)
    reference = ReferenceModel.load(write_checkpoint(model, tmp_path))
    logits = reference.prefill(tokens, reference.new_cache(PROMPT), all_positions=True)
    assert_same(logits, expected_logits(model, tokens))


@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_in_parts_and_decoding_give_the_same_logits(family: str, tmp_path: Path) -> None:
    model = tiny(family)
    tokens = random_tokens(PROMPT)
    reference = ReferenceModel.load(write_checkpoint(model, tmp_path))
    cache = reference.new_cache(PROMPT)
    parts = [tokens[: WINDOW - 5], tokens[WINDOW - 5 : 3 * WINDOW]]
    logits = [reference.prefill(part, cache, all_positions=True) for part in parts]
    logits += [reference.decode([token], [cache]) for token in tokens[3 * WINDOW :]]
    assert_same(np.concatenate(logits), expected_logits(model, tokens))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sequence_gets_the_same_bits_alone_and_in_a_batch(family: str, tmp_path: Path) -> None:
    reference = ReferenceModel.load(write_checkpoint(tiny(family), tmp_path))
    prompts = [random_tokens(5 + 7 * number, seed=number) for number in range(6)]
    together, alone = ([reference.new_cache(64) for _ in prompts] for _ in range(2))
    for prompt, *caches in zip(prompts, together, alone, strict=True):
        for cache in caches:
            reference.prefill(prompt, cache)
    for step in range(3):
        tokens = random_tokens(len(prompts), seed=50 + step)
        single = [reference.decode(tokens[i : i + 1], [alone[i]])[0] for i in range(len(prompts))]
        assert_array_equal(reference.decode(tokens, together), np.stack(single))


def change_config(folder: Path, *, drop: tuple[str, ...] = (), **changes: Any) -> Path:
    path = folder / "config.json"
    table = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in table.items() if key not in drop}))
    return folder


def logits_of(folder: Path, tokens: np.ndarray) -> np.ndarray:
    reference = ReferenceModel.load(folder)
    return reference.prefill(tokens, reference.new_cache(len(tokens)), all_positions=True)


@pytest.mark.parametrize("length", [WINDOW - 1, WINDOW, WINDOW + 1, WINDOW + 2])
def test_a_window_begins_to_count_with_the_first_token_that_leaves_it(length: int, tmp_path: Path) -> None:
    model, tokens = tiny("mistral"), random_tokens(length)
    assert_same(logits_of(write_checkpoint(model, tmp_path), tokens), expected_logits(model, tokens))


def test_gemma3_knows_its_windows_without_the_runtimes_defaults(tmp_path: Path) -> None:
    model, tokens = tiny("gemma3"), random_tokens(PROMPT)
    folder = change_config(write_checkpoint(model, tmp_path), drop=("runtime_defaults",))
    assert_same(logits_of(folder, tokens), expected_logits(model, tokens))


def test_a_short_list_of_windows_is_repeated_for_all_layers(tmp_path: Path) -> None:
    model = tiny("gemma2", num_hidden_layers=4)  # sliding, full, sliding, full
    tokens = random_tokens(PROMPT)
    folder = change_config(write_checkpoint(model, tmp_path), runtime_defaults={"max_attention_window": [WINDOW, 512]})
    assert_same(logits_of(folder, tokens), expected_logits(model, tokens))


def test_a_local_layer_keeps_its_rope_even_if_its_window_is_as_wide_as_the_model(tmp_path: Path) -> None:
    model, tokens = tiny("gemma3", sliding_window=512), random_tokens(PROMPT)
    assert_same(logits_of(write_checkpoint(model, tmp_path), tokens), expected_logits(model, tokens))


def test_gemmas_embedding_is_split_whatever_the_config_says(tmp_path: Path) -> None:
    model, tokens = tiny("gemma"), random_tokens(20)
    folder = change_config(write_checkpoint(model, tmp_path, tp=3, embedding=0), drop=("use_parallel_embedding",))
    assert_same(logits_of(folder, tokens), expected_logits(model, tokens))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gemmas_embedding_is_scaled_by_the_root_of_its_width_in_the_models_type(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    model, tokens = tiny("gemma", hidden_size=44), random_tokens(20)  # √44 = 6.6332…: 6.625 in bfloat16
    folder = write_checkpoint(model, tmp_path, dtype=dtype)
    for name, parameter in model.named_parameters():
        # what is stored of a norm is 1 + weight
        offset = 1 if "norm" in name else 0
        parameter.data = (parameter.data + offset).to(dtype).to(torch.float32) - offset
    scale = model.model.embed_tokens.embed_scale
    scale.copy_(scale.to(dtype).to(torch.float32))
    assert_same(logits_of(folder, tokens), expected_logits(model, tokens))


def test_modelopts_name_for_all_qwens_is_known(tmp_path: Path) -> None:
    model, tokens = tiny("qwen2"), random_tokens(PROMPT)
    folder = write_checkpoint(model, tmp_path)
    change_config(folder, drop=("qwen_type", "attn_bias"), architecture="QWenForCausalLM", bias=False)
    assert_same(logits_of(folder, tokens), expected_logits(model, tokens))


def test_tied_heads_may_be_absent_where_the_embedding_is_split_like_them(tmp_path: Path) -> None:
    model, tokens = tiny("gemma"), random_tokens(20)
    folder = write_checkpoint(model, tmp_path, tp=3, embedding=0)
    for path in folder.glob("*.safetensors"):
        tensors = load_file(path)
        del tensors["lm_head.weight"]
        save_file(tensors, path)
    assert_same(logits_of(folder, tokens), expected_logits(model, tokens))
