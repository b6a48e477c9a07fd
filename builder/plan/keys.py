"""Keys: what the output of a stage is *for*.

A stage's `inputs` are words and pinned facts alone: its parameters, the digests of the files that it uses, and our own
version number of the stage. The *derivation key* adds the derivation keys of the stages below, so it needs nothing
built. The *content key* puts in their place the digests of what they really made: a stage that is derived anew from
the same bytes finds its earlier output.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel

from builder.recipe import Limits, Parallelism, Serving

STAGE_VERSIONS: Mapping[str, int] = {"checkpoint": 2, "qualify": 1, "engine": 1, "repository": 2, "image": 1}
"""Raised when the output of a stage would change for the same inputs."""


@dataclass(frozen=True)
class StagePlan:
    """One stage of one unit: what goes in, the stages below it, and its derivation key."""

    stage: str
    inputs: Mapping[str, Any]
    below: tuple[str, ...]
    derivation: str


def plan_stage(
    stage: str, parameters: Mapping[str, Any], files: Mapping[str, str], below: Mapping[str, StagePlan]
) -> StagePlan:
    inputs = {"version": STAGE_VERSIONS[stage], "parameters": parameters, "files": files}
    derivation = key(stage, inputs, {name: plan.derivation for name, plan in below.items()})
    return StagePlan(stage, inputs, tuple(below), derivation)


def key(stage: str, inputs: Mapping[str, Any], below: Mapping[str, str]) -> str:
    """SHA-256 of the canonical JSON of a stage's inputs and what lies below it."""
    return hashlib.sha256(_canonical({"stage": stage, "inputs": inputs, "below": below}).encode()).hexdigest()


_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What changed between two inputs of one stage, in words: "limits.max_batch_size 64 → 128"."""
    old, new = _flat(before), _flat(now)
    changes = []
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            changes.append(f"{_label(name)} {_short(old.get(name))} → {_short(new.get(name))}")
    return changes


def _label(name: str) -> str:
    """As the recipe says it: "parameters.max_batch_size" is its limits.max_batch_size."""
    word = name.removeprefix("parameters.").removeprefix("files.")
    return _recipe_words().get(word, word)


@cache
def _recipe_words() -> Mapping[str, str]:
    sections: dict[str, type[BaseModel]] = {"limits": Limits, "parallelism": Parallelism, "serving": Serving}
    words = {field: f"{section}.{field}" for section, model in sections.items() for field in model.model_fields}
    return words | {"precision": "precision.weights", "kv_cache": "precision.kv_cache"}


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {prefix: list(value) if isinstance(value, tuple) else value}
    result: dict[str, Any] = {}
    for name, inner in value.items():
        result |= _flat(inner, f"{prefix}.{name}" if prefix else name)
    return result


def _short(value: Any) -> str:
    if isinstance(value, str) and len(value) == 64:
        return value[:12]
    return "absent" if value is None else str(value)
