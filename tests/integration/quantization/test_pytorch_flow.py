"""The folder in Hugging Face's format, for the PyTorch flow."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import modelopt.torch.quantization as mtq
import pytest

from builder.checkpoint.convert import convert
from builder.checkpoint.modelopt.configs import quantization_config
from builder.checkpoint.quantize import Quantization
from builder.model.layout import Split
from builder.store import Workspace
from tests.integration.quantization.support import (
    BLOCK,
    UNSEEN,
    by_transformers,
    divergence,
    loss_in_modelopt,
    run,
    spec_of,
)


def test_the_folder_for_the_pytorch_flow_is_complete(tiny: Path, out: Workspace) -> None:
    """And its config.json is the published one: transformers 4, which TensorRT-LLM has, doesn't know how transformers 5
    writes it."""
    edit = {"rope_theta": 123456.0, "rope_parameters": None}
    source = out.path.parent / "source"
    shutil.copytree(tiny, source)
    config = json.loads((source / "config.json").read_text())
    config.pop("rope_parameters")
    config.pop("dtype")  # published configs of transformers 4 say torch_dtype
    (source / "config.json").write_text(
        json.dumps(config | {"rope_theta": edit["rope_theta"], "torch_dtype": "float32"})
    )
    run(source, out, export_format="hf")
    made = json.loads((out.path / "config.json").read_text())
    assert made.pop("quantization_config")["quant_algo"] == "FP8"
    assert made.pop("torch_dtype") == "bfloat16"
    assert made == config | {"rope_theta": 123456.0}
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (out.path / name).read_bytes() == (source / name).read_bytes()
    told = json.loads((out.path / "hf_quant_config.json").read_text())["quantization"]
    assert (told["quant_algo"], told["kv_cache_quant_algo"]) == ("FP8", None)


@pytest.mark.parametrize(
    ("family", "changes", "precision"),
    [
        ("gemma-2", {}, "int8-sq"),
        ("gemma-3", {"layer_types": ["sliding_attention", "full_attention"] * 2}, "int8-sq"),
        ("mixtral", {}, "fp8"),
        ("qwen3-moe", {"moe_intermediate_size": 64}, "fp8"),
        ("llama", {}, "int4-awq"),
    ],
    ids=["gemma-2", "gemma-3", "mixtral", "qwen3-moe", "llama"],
)
def test_what_is_made_for_the_pytorch_flow_loses_no_more_than_the_library_says(
    make_tiny: Callable[..., Path], out: Workspace, tmp_path: Path, family: str, changes: dict[str, Any], precision: str
) -> None:
    """Read as published weights are, by our own converter; most of these the library doesn't export for engines.
    A limit of our own couldn't tell: a router of random weights sends a token to other experts for a small difference
    already."""
    source = make_tiny(family, num_hidden_layers=4, **changes)
    settings = {"group_size": BLOCK} if precision == "int4-awq" else {}
    run(source, out, precision, export_format="hf", **settings)
    converted = tmp_path / "converted"
    converted.mkdir()
    convert(out.path, spec_of(out.path), Workspace(converted), Split(2))
    ids = list(UNSEEN.encode()[:100])
    expected = by_transformers(source, ids)
    job = Quantization(precision, "bfloat16", **settings)
    config = quantization_config(mtq, asdict(job) | {"model_type": spec_of(source).model_type})
    assert divergence(expected, converted, ids) < 1.1 * loss_in_modelopt(source, config, expected, ids)
