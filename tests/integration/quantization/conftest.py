"""A small model of any family with a byte-level tokenizer, and where its checkpoint goes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from builder.store import Workspace
from tests.integration.quantization.support import SIZES
from tests.tiny_model import tiny_tokenizer
from tests.unit.checkpoint.families import edit_weights, save_model


@pytest.fixture(scope="session")
def make_tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A small model of a family with a byte-level tokenizer."""

    def make(family: str = "llama", **changes: Any) -> Path:
        folder = tmp_path_factory.mktemp("source") / "model"
        save_model(folder, family, **{**SIZES, **changes})
        edit_weights(folder, lambda tensors: _tame(tensors, 0 if family.startswith("gemma") else 1))
        (folder / "tokenizer.json").write_text(json.dumps(tiny_tokenizer()))
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "pad_token": "</s>"}
        (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": "{{ messages }}"}))
        return folder

    return make


def _tame(tensors: dict[str, torch.Tensor], norm: float) -> None:
    """Weights like those of a trained model: products of a layer are about as large as what goes in. `norm`: the
    weight of a norm that changes nothing, which Gemma's add 1 to."""
    for name, tensor in tensors.items():
        if tensor.ndim > 1:
            tensors[name] = tensor * 0.1
        elif "norm" in name:
            tensors[name] = tensor * 0.1 + norm


@pytest.fixture(scope="session")
def tiny(make_tiny: Callable[..., Path]) -> Path:
    return make_tiny()


@pytest.fixture
def out(tmp_path: Path) -> Iterator[Workspace]:
    """Where a checkpoint goes."""
    path = tmp_path / "checkpoint"
    path.mkdir()
    yield Workspace(path)
    shutil.rmtree(path, ignore_errors=True)  # pytest would keep those of the last sessions
