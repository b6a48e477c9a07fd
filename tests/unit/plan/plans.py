"""Plans from text: a recipe, and a lock with the configuration of SmolLM2-135M as its authors publish it."""

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from builder.lock import Lock, Unresolved
from builder.model.snapshot import Snapshot, SnapshotFile, classify
from builder.plan import PlannedUnit, plan_units, resolve_units
from builder.recipe import load_recipe

SMOLLM2 = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "num_hidden_layers": 30,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-05,
    "rope_theta": 100000,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}

RECIPE = dedent("""\
    schema: 1
    name: tiny
    version: 1.0.0
    model: {source: ./model}
    toolchain: trtllm-1.2.1
    precision: {weights: bf16}
    limits: {max_batch_size: 4, max_seq_len: 1024, max_num_tokens: 4096}
    targets:
      - sku: cpu
      - sku: l40s-48gb
    """)

FILES = {
    "config.json": "1" * 64,
    "model.safetensors": "2" * 64,
    "tokenizer.json": "3" * 64,
    "README.md": "4" * 64,
}

MakePlan = Callable[..., list[PlannedUnit]]


@pytest.fixture
def make_plan(tmp_path: Path) -> MakePlan:
    def make(
        text: str = RECIPE,
        config: dict[str, Any] | None = None,
        files: dict[str, str] | None = None,
        bases: dict[str, Any] | None = None,
        unresolved: tuple[Unresolved, ...] = (),
        runtime: str = "r",
    ) -> list[PlannedUnit]:
        file = tmp_path / "tiny.yaml"
        file.write_text(text)
        pinned = tuple(
            SnapshotFile(path, 10, digest, classify(path)) for path, digest in (FILES | (files or {})).items()
        )
        snapshot = Snapshot("./model", "sha256:0", pinned)
        lock = Lock({}, snapshot, SMOLLM2 | (config or {}), {}, bases or {}, unresolved)
        return plan_units(resolve_units(load_recipe(file), lock), lambda python: f"{runtime}-{python}")

    return make
