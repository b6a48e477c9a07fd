"""Plans from text: a recipe, and a lock with the configuration of SmolLM2-135M as its authors publish it."""

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from builder.lock import Lock
from builder.model.snapshot import Snapshot, SnapshotFile, classify
from builder.plan import Finding, PlannedUnit, Unit, check, plan_units, resolve_units
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
MakeUnits = Callable[..., list[Unit]]


@pytest.fixture
def make_units(tmp_path: Path) -> MakeUnits:
    """Units from a recipe's text, a config.json laid over that of SmolLM2, and facts of a lock by their names there.

    `without` names keys of config.json that are left out.
    """

    def make(
        text: str = RECIPE,
        config: dict[str, Any] | None = None,
        files: dict[str, str] | None = None,
        without: tuple[str, ...] = (),
        **facts: Any,
    ) -> list[Unit]:
        file = tmp_path / "tiny.yaml"
        file.write_text(text)
        pinned = tuple(
            SnapshotFile(path, 10, digest, classify(path)) for path, digest in (FILES | (files or {})).items()
        )
        merged = {key: value for key, value in (SMOLLM2 | (config or {})).items() if key not in without}
        lock = Lock({}, Snapshot("./model", "sha256:0", pinned), merged, **facts)
        return resolve_units(load_recipe(file), lock)

    return make


@pytest.fixture
def make_plan(make_units: MakeUnits) -> MakePlan:
    """The same, planned; `runtime` stands for the digest of the runtime layer."""

    def make(*args: Any, runtime: str = "r", **facts: Any) -> list[PlannedUnit]:
        return plan_units(make_units(*args, **facts), lambda python: f"{runtime}-{python}")

    return make


def findings(units: list[Unit], unit: int = -1) -> dict[str, Finding]:
    """What the rules say of one unit, the last if not said otherwise, by code."""
    return {finding.code: finding for finding in check(units[unit])}


def recipe(
    sku: str = "h100-sxm-80gb",
    weights: str = "bf16",
    *,
    kv_cache: str = "auto",
    toolchain: str = "trtllm-1.2.1",
    flow: str = "engine",
    extra: str = "",
    target: str = "",
) -> str:
    """A recipe with one target. `extra`: further lines; `target`: further keys of the target, with a leading comma."""
    return dedent(f"""\
        schema: 1
        name: tiny
        version: 1.0.0
        model: {{source: ./model}}
        toolchain: {toolchain}
        flow: {flow}
        precision: {{weights: {weights}, kv_cache: {kv_cache}}}
        limits: {{max_batch_size: 4, max_seq_len: 1024, max_num_tokens: 4096}}
        targets:
          - {{sku: {sku}{target}}}
        """) + "\n".join([*(["serving: {family: llmapi}"] if flow == "pytorch" else []), dedent(extra)])
