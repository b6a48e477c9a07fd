"""The configs of published models in tests/configs, and their specs."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from builder.model.spec import ModelSpec

CONFIGS = Path(__file__).parents[2] / "configs"


def published_names() -> list[str]:
    return sorted(path.stem for path in CONFIGS.glob("*.json") if not path.stem.endswith(".hf_quant_config"))


def published_config(name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text())
    return config


def published_quant_config(name: str) -> dict[str, Any] | None:
    path = CONFIGS / f"{name}.hf_quant_config.json"
    return json.loads(path.read_text()) if path.exists() else None


@cache
def published_spec(name: str, stored_dtype: str | None = None) -> ModelSpec:
    return ModelSpec.from_config(
        published_config(name),
        f"{name}/config.json",
        hf_quant_config=published_quant_config(name),
        stored_dtype=stored_dtype,
    )
