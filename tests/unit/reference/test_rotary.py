"""Rotary embeddings against transformers' own, in numbers and in logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from builder.reference.errors import ReferenceModelError
from builder.reference.fields import Fields
from builder.reference.model import ReferenceModel
from builder.reference.rotary import read_rope
from tests.unit.reference.sharding import write_checkpoint
from tests.unit.reference.test_families import (
    assert_same,
    change_config,
    expected_logits,
    logits_of,
    random_tokens,
)
from tests.unit.reference.tiny import tiny

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    # the four wavelengths of a head of 8 are 6, 53, 445 and 3739 tokens: kept, interpolated, divided, divided
    "original_max_position_embeddings": 64,
}
ROPES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": LLAMA3,
    "yarn": YARN,
    "yarn-not-truncated": YARN | {"truncate": False},
    "yarn-betas": YARN | {"beta_fast": 4.0, "beta_slow": 2.0},
    "yarn-attention-factor": YARN | {"attention_factor": 0.7},
    "yarn-mscales": YARN | {"mscale": 1.5, "mscale_all_dim": 0.5},
    "yarn-one-mscale": YARN | {"mscale": 1.5},
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 5000.0,
    "short_factor": [1.0, 1.1, 1.3, 1.6],
    "long_factor": [2.0, 3.0, 5.0, 8.0],
    "original_max_position_embeddings": 40,
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 5000.0, "factor": 4.0}


@pytest.mark.parametrize("name", ROPES)
def test_logits_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    model, tokens = tiny("llama", rope_parameters={"rope_theta": 5000.0, **ROPES[name]}), random_tokens(120)
    assert_same(logits_of(write_checkpoint(model, tmp_path), tokens), expected_logits(model, tokens))


PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    # of the models' own config.json, with max_position_embeddings
    "Llama-3.1": (LLAMA3 | {"rope_theta": 500000.0, "original_max_position_embeddings": 8192}, 131072),
    "Qwen2.5-yarn": (YARN | {"rope_theta": 1e6, "original_max_position_embeddings": 32768}, 32768),
    "linear": ({"rope_type": "linear", "rope_theta": 1e4, "factor": 8.0}, 32768),
    "dynamic": ({"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}, 4096),
    "longrope": (
        {
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "short_factor": [1 + number / 50 for number in range(64)],
            "long_factor": [1 + number for number in range(64)],
            "original_max_position_embeddings": 4096,
        },
        131072,
    ),
}


@pytest.mark.parametrize("length", [100, 4096, 4097, 50000])
@pytest.mark.parametrize("name", PUBLISHED)
def test_frequencies_and_amplitudes_of_published_sizes_equal_transformers(name: str, length: int) -> None:
    parameters, positions = PUBLISHED[name]
    config = LlamaConfig(
        hidden_size=256,
        num_attention_heads=2,
        head_dim=128,
        max_position_embeddings=positions,
        rope_parameters=dict(parameters),
    )
    kind = parameters["rope_type"]
    frequencies, amplitude = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=length)
    scaling = {key: value for key, value in parameters.items() if key not in ("rope_type", "rope_theta")}
    table = {
        "position_embedding_type": "rope_gpt_neox",
        "max_position_embeddings": positions,
        "rotary_scaling": {"type": kind, **scaling},
    }
    rope = read_rope(Fields(table, "config.json"), parameters["rope_theta"], 128)
    assert_allclose(rope.frequencies(length), frequencies.numpy(), rtol=2e-6)
    assert rope.scaling.amplitude == pytest.approx(amplitude, rel=1e-6)


def phi(**rope: Any) -> Any:
    return tiny("phi3", rope_parameters=LONGROPE | rope, sliding_window=None, original_max_position_embeddings=40)


@pytest.mark.parametrize("length", [40, 41, 90])
@pytest.mark.parametrize("rope", [{}, {"factor": 3.0}, {"attention_factor": 0.8}], ids=["plain", "factor", "amplitude"])
def test_longrope_has_other_factors_beyond_the_original_context(
    rope: dict[str, Any], length: int, tmp_path: Path
) -> None:
    model, tokens = phi(**rope), random_tokens(length)
    assert_same(logits_of(write_checkpoint(model, tmp_path), tokens), expected_logits(model, tokens))


def test_longrope_may_be_said_in_tensorrt_llms_keys_alone(tmp_path: Path) -> None:
    model, tokens = phi(), random_tokens(60)
    folder = change_config(write_checkpoint(model, tmp_path), drop=("rotary_scaling",))
    assert_same(logits_of(folder, tokens), expected_logits(model, tokens))


@pytest.mark.parametrize(
    "changes",
    [
        {"longrope_scaling_long_factors": [2.0, 3.0, 5.0, 9.0]},
        {"longrope_scaling_short_factors": [1.0, 1.0, 1.0, 1.0]},
        {"original_max_position_embeddings": 41},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_longrope_must_not_contradict_itself(changes: dict[str, Any], tmp_path: Path) -> None:
    folder = change_config(write_checkpoint(phi(), tmp_path), **changes)
    with pytest.raises(ReferenceModelError, match=f"{next(iter(changes))} contradicts rotary_scaling"):
        ReferenceModel.load(folder)


@pytest.mark.parametrize("length", [30, 32, 33, 100])
def test_dynamic_scaling_begins_beyond_the_models_positions(length: int, tmp_path: Path) -> None:
    model = tiny("llama", max_position_embeddings=32, rope_parameters=dict(DYNAMIC))
    tokens = random_tokens(length)
    assert_same(logits_of(write_checkpoint(model, tmp_path), tokens), expected_logits(model, tokens))


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
def test_a_growing_sequence_is_turned_as_transformers_turns_it(kind: str, tmp_path: Path) -> None:
    """Keys keep what they were turned by; tokens behind the original context are turned by the new frequencies."""
    model = phi() if kind == "longrope" else tiny("llama", max_position_embeddings=40, rope_parameters=dict(DYNAMIC))
    reference = ReferenceModel.load(write_checkpoint(model, tmp_path))
    tokens = random_tokens(60)
    theirs, expected = None, []
    with torch.no_grad():
        for part in (tokens[:35], *tokens[35:, None]):
            output = model(torch.from_numpy(part)[None], cache=theirs, use_cache=True)
            theirs = output.cache
            expected.append(output.logits[0, -1].numpy())
    cache, neighbour = reference.new_cache(60), reference.new_cache(60)
    logits = [reference.prefill(tokens[:35], cache)]
    reference.prefill(tokens[:5], neighbour)  # stays short, and is turned as before
    logits += [reference.decode([token, 3], [cache, neighbour])[0] for token in tokens[35:]]
    assert_same(np.stack(logits), np.stack(expected))


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
def test_all_chunks_of_a_prompt_are_turned_alike(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builder.reference.model._CHUNK_ROWS", 16)
    model = phi() if kind == "longrope" else tiny("llama", max_position_embeddings=40, rope_parameters=dict(DYNAMIC))
    tokens = random_tokens(90)
    assert_same(logits_of(write_checkpoint(model, tmp_path), tokens), expected_logits(model, tokens))


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"type": "su", "factor": 2.0}, "type 'su' is not implemented"),
        ({"factor": 2.0}, "type None is not implemented"),
        ({"type": "linear", "rope_type": "llama3"}, "is not implemented"),
        ({"type": ["linear"]}, "is not implemented"),
        ({"type": "linear"}, "factor is missing"),
        ({"type": "linear", "factor": 2.0, "beta": 1}, "the keys beta are not known"),
        ({"type": "linear", "factor": 0}, "factor must be a positive number"),
        ({"type": "llama3", **LLAMA3, "rope_type": "llama3", "low_freq_factor": 4.0}, "must be below high_freq_factor"),
        ({"type": "yarn", "factor": 2.0, "truncate": "no"}, "truncate must be true or false"),
        ({"type": "longrope", "short_factor": [1.0], "long_factor": [1.0] * 4}, "original_max_position_embeddings is"),
        (
            {"type": "longrope", "short_factor": [1.0] * 3, "long_factor": [1.0] * 4}
            | {"original_max_position_embeddings": 40},
            "short_factor must have 4 numbers",
        ),
        (
            {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [1.0, 1.0, 1.0, -1.0]}
            | {"original_max_position_embeddings": 40},
            "long_factor must be a list of positive numbers",
        ),
    ],
)
def test_scalings_that_are_not_understood_are_refused(scaling: dict[str, Any], message: str) -> None:
    table = {
        "position_embedding_type": "rope_gpt_neox",
        "max_position_embeddings": 512,
        "rotary_scaling": scaling,
    }
    with pytest.raises(ReferenceModelError, match=message):
        read_rope(Fields(table, "config.json"), 10000.0, 8)
