"""Models with the sizes of public reports and random weights, converted as `engine-builder build` converts them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from builder.checkpoint.convert import convert
from builder.model.layout import Split
from builder.model.spec import ModelSpec
from builder.store import Workspace
from tests.cases.support import config_of
from tests.cases.weight_files import decoder


def sized(name: str, **sizes: Any) -> dict[str, Any]:
    """A published config with other sizes; its special tokens are in any vocabulary."""
    return config_of(name, bos_token_id=1, eos_token_id=2, pad_token_id=0, **sizes)


def write_model(
    folder: Path, config: Mapping[str, Any], more: Mapping[str, tuple[int, ...]]
) -> dict[str, torch.Tensor]:
    """The config and weights of a model with a Llama's tensors and `more` (biases, norms), in bfloat16."""
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    shapes = decoder(
        layers=config["num_hidden_layers"],
        hidden=hidden,
        inner=config["intermediate_size"],
        heads=heads,
        kv_heads=config["num_key_value_heads"],
        head_dim=config.get("head_dim", hidden // heads),
        vocab=config["vocab_size"],
        tied=config["tie_word_embeddings"],
    )
    generator = torch.Generator().manual_seed(3)
    tensors = {
        name: torch.randint(0, 2**14, shape, generator=generator, dtype=torch.int16).view(torch.bfloat16)
        for name, shape in {**shapes, **more}.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return tensors


def converted(folder: Path, config: Mapping[str, Any], split: Split) -> Path:
    """The checkpoint of the model in `folder`, in `checkpoint` beside it."""
    out = folder.parent / "checkpoint"
    out.mkdir()
    convert(folder, ModelSpec.from_config(config, folder / "config.json"), Workspace(out), split)
    return out
