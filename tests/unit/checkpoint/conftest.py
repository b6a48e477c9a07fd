from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from builder.checkpoint.convert import convert
from builder.model.config import load_config
from builder.model.layout import Split
from builder.model.spec import ModelSpec
from builder.store import Workspace
from tests.unit.checkpoint.families import hub


@pytest.fixture
def tiny_llama(tmp_path: Path) -> Callable[..., Path]:
    """A folder with a small Llama of random weights: 7 layers, 6 heads of 8, as transformers saves it."""

    def make(
        dtype: torch.dtype = torch.bfloat16, folder: str = "source", max_shard_size: str = "1GB", **changes: Any
    ) -> Path:
        torch.manual_seed(7)
        values = {
            "vocab_size": 97,
            "hidden_size": 48,
            "num_hidden_layers": 7,
            "num_attention_heads": 6,
            "num_key_value_heads": 3,
            "intermediate_size": 96,
            "max_position_embeddings": 64,
        }
        model = hub.LlamaForCausalLM(hub.LlamaConfig(**{**values, **changes}))
        with torch.no_grad():
            for parameter in model.parameters():  # norms and biases would all be 1 or 0
                parameter.copy_(torch.randn_like(parameter))
        model.to(dtype).save_pretrained(tmp_path / folder, max_shard_size=max_shard_size)
        return tmp_path / folder

    return make


@pytest.fixture
def spec_of() -> Callable[[Path], ModelSpec]:
    """What a folder's config.json describes."""
    return lambda folder: ModelSpec.from_config(load_config(folder), folder / "config.json")


@pytest.fixture
def checkpoint(tmp_path: Path, spec_of: Callable[[Path], ModelSpec]) -> Callable[..., Workspace]:
    """Converts the model of a folder into a workspace of the given name."""

    def make(
        source: Path, name: str = "checkpoint", tp: int = 1, pp: int = 1, split: Split | None = None, **options: Any
    ) -> Workspace:
        out = Workspace(tmp_path / name)
        out.path.mkdir()
        convert(source, spec_of(source), out, split or Split(tp, pp), **options)
        return out

    return make
