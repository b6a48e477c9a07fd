"""What the library's own export can't do, or does otherwise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from builder.store import Workspace
from tests.integration.quantization.support import (
    APART,
    BLOCK,
    TEXTS,
    UNSEEN,
    by_transformers,
    divergence,
    run,
)


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 3)])
@pytest.mark.parametrize(
    ("family", "precision", "settings", "limit"),
    [
        ("llama with biases", "int4-awq", {"group_size": BLOCK}, 0.1),
        ("llama, tied", "int8-sq", {"kv_cache": "int8"}, 0.05),
        ("gemma", "int4-awq", {"group_size": BLOCK}, 0.1),
        ("gemma", "fp8", {}, 0.05),
    ],
    ids=["llama-int4", "tied-int8", "gemma-int4", "gemma-fp8"],
)
def test_any_vocabulary_and_any_stages_are_exported(
    make_tiny: Callable[..., Path],
    out: Workspace,
    family: str,
    precision: str,
    settings: dict[str, Any],
    limit: float,
    tp: int,
    pp: int,
) -> None:
    """260 tokens, four layers on three stages, and heads that are tied: the library's own export pads the first,
    refuses the second, and leaves out the third."""
    source = make_tiny(family, num_hidden_layers=4)
    run(source, out, precision, tp=tp, pp=pp, **settings)
    published = load_file(source / "model.safetensors")
    embedding = published["model.embed_tokens.weight"]
    ranks = [load_file(out.path / f"rank{rank}.safetensors") for rank in range(tp * pp)]
    for name, stage, weight in (
        ("transformer.vocab_embedding.weight", 0, embedding),
        ("lm_head.weight", pp - 1, published.get("lm_head.weight", embedding)),
    ):
        assert torch.equal(torch.cat([ranks[stage * tp + rank][name] for rank in range(tp)]), weight)
    config = json.loads((out.path / "config.json").read_text())
    assert (config["vocab_size"], config["num_hidden_layers"]) == (260, 4)
    ids = list(UNSEEN.encode()[:100])
    assert divergence(by_transformers(source, ids), out.path, ids) < limit


def test_the_head_is_quantised_when_asked_for(make_tiny: Callable[..., Path], out: Workspace) -> None:
    run(make_tiny(), out, quantize_lm_head=True, tp=2)
    ranks = [load_file(out.path / f"rank{rank}.safetensors") for rank in range(2)]
    assert [rank["lm_head.weight"].dtype for rank in ranks] == [torch.float8_e4m3fn] * 2
    assert json.loads((out.path / "config.json").read_text())["quantization"]["exclude_modules"] == []


def test_a_kv_cache_is_quantised_alone(tiny: Path, out: Workspace) -> None:
    """INT8: the largest key or value of a layer is 127 steps."""
    run(tiny, out, "bf16", kv_cache="int8")
    tensors, published = load_file(out.path / "rank0.safetensors"), load_file(tiny / "model.safetensors")
    assert torch.equal(tensors["transformer.layers.1.mlp.fc.weight"], published["model.layers.1.mlp.gate_proj.weight"])
    scale = tensors["transformer.layers.0.attention.kv_cache_scaling_factor"]
    apart = [tensors[f"transformer.layers.0.attention.{name}"] for name in APART]
    assert torch.equal(scale, torch.maximum(*apart))
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.bfloat16)
    largest = torch.zeros(1)
    tokenizer = AutoTokenizer.from_pretrained(tiny, padding_side="left")
    with torch.no_grad():
        for first in range(0, len(TEXTS), 2):
            batch = tokenizer(
                TEXTS[first : first + 2], return_tensors="pt", padding=True, max_length=64, truncation=True
            )
            cache = model(batch["input_ids"], attention_mask=batch["attention_mask"]).past_key_values
            largest = torch.maximum(largest, cache.layers[0].values.abs().amax().float())
    assert apart[1].item() == pytest.approx(largest.item() / 127, rel=1e-6)


def test_float16_is_kept(tiny: Path, out: Workspace) -> None:
    run(tiny, out, dtype="float16")
    tensors = load_file(out.path / "rank0.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float16, torch.float32, torch.float8_e4m3fn}


@pytest.mark.parametrize("export_format", ["tensorrt_llm", "hf"])
def test_the_same_job_gives_the_same_bytes(tiny: Path, tmp_path: Path, export_format: str) -> None:
    """However many threads there are, and whatever order sets come in."""
    made = []
    for threads in ("1", "2"):
        out = Workspace(tmp_path / threads)
        out.path.mkdir()
        done = subprocess.run(
            [sys.executable, "-c", AGAIN, str(tiny), str(out.path), export_format],
            env={**os.environ, "OMP_NUM_THREADS": threads, "PYTHONPATH": str(Path(__file__).parents[3])},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        made.append(json.loads(done.stdout))
    assert made[0] == made[1]
    assert len(made[0]) > 1


AGAIN = """
import json, sys
from pathlib import Path
from builder.store import Workspace
from tests.integration.quantization.support import run_apart
out = Workspace(Path(sys.argv[2]))
run_apart(Path(sys.argv[1]), out, "int4-awq", group_size=64, kv_cache="fp8", export_format=sys.argv[3])
print(json.dumps({name: digest.sha256 for name, digest in out.digests.items()}))
"""
