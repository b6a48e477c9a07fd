"""The tensors of the five models and the wiring of the ensemble, read from `tensors.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml


@dataclass(frozen=True)
class Tensor:
    """An input or output of a model. `type` and `dims` in Triton's words, without the batch dimension."""

    name: str
    type: str
    dims: tuple[int, ...]
    reshape: tuple[int, ...] | None = None
    optional: bool = False
    ragged: bool = False


@dataclass(frozen=True)
class ModelTensors:
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


@dataclass(frozen=True)
class EnsembleStep:
    """One step; the maps go from the model's tensor to the ensemble's."""

    model: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


def model_tensors(model: str) -> ModelTensors:
    document = _document()[model]
    return ModelTensors(_expand(document["inputs"]), _expand(document["outputs"]))


def ensemble_steps() -> tuple[EnsembleStep, ...]:
    return tuple(
        EnsembleStep(
            step["model"],
            step["inputs"] | {name: name for name in step.get("same_inputs", ())},
            step["outputs"] | {name: name for name in step.get("same_outputs", ())},
        )
        for step in _document()["ensemble_steps"]
    )


@cache
def _document() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("tensors.yaml").read_text())
    return document


def _expand(groups: list[dict[str, Any]]) -> tuple[Tensor, ...]:
    return tuple(
        Tensor(
            name,
            group["type"],
            tuple(group["dims"]),
            tuple(group["reshape"]) if "reshape" in group else None,
            group.get("optional", False),
            group.get("ragged", False),
        )
        for group in groups
        for name in group["names"]
    )
