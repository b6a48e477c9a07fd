"""Checkpoints of the real model, quantised, proved and verified through the command line, without a GPU."""

from __future__ import annotations

import importlib.resources
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.command import engine_builder
from tests.integration.smollm2 import SmolLM2

ROOT = Path(__file__).parents[2]

RECIPE = """\
schema: 1
name: smollm2
version: 1.0.0
model: {source: ./model, license: apache-2.0}
toolchain: trtllm-1.2.1
precision: {weights: int8-wo}
limits: {max_batch_size: 4, max_input_len: 512, max_seq_len: 1024, max_num_tokens: 1024}
qualify:
  perplexity: {text: file:text.txt, max_increase: 0.1, window: 128, windows: 10}
  agreement: {min: 0.8}
  logits: {max_difference: 0.01}
package: {base: none}
"""


@pytest.fixture
def folder(smollm2: SmolLM2, tmp_path: Path) -> Path:
    """A folder for recipes, with the model in it and a text in English."""
    (tmp_path / "recipes").mkdir()
    shutil.copytree(smollm2.folder, tmp_path / "recipes/model", copy_function=lambda a, b: Path(b).hardlink_to(a))
    (tmp_path / "recipes/text.txt").write_text((ROOT / "docs/architecture.md").read_text())
    return tmp_path / "recipes"


def run(folder: Path, *arguments: str) -> tuple[int, Any, str]:
    done = engine_builder(*arguments, "--recipe", folder, "--format", "json", store=folder.parent / "store")
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


def facts(folder: Path, unit: str, stage: str) -> dict[str, Any]:
    status, explained, errors = run(folder, "explain", unit)
    assert status == 0, errors
    known: dict[str, Any] = explained["units"][0]["stages"][stage]["facts"]
    return known


def test_checkpoints_for_gpus_are_proved_on_a_machine_without_one(folder: Path) -> None:
    """Weight-only INT8 on three ranks for an H100, and BF16 in float32 beside transformers."""
    gpu, cpu = "smollm2/int8-wo-tp3/h100-sxm-80gb", "smollm2/bf16-tp1/cpu"
    targets = "targets:\n  - {sku: h100-sxm-80gb, parallelism: {tensor: 3}}\n"
    targets += "  - {sku: cpu, precision: {weights: bf16}}\n"
    (folder / "smollm2.yaml").write_text(RECIPE + targets)
    status, built, errors = run(folder, "build", "--until", "qualify")
    assert status == 0, errors
    assert {unit["id"]: unit["built"] for unit in built["units"]} == {
        gpu: ["checkpoint", "qualify"],
        cpu: ["checkpoint", "qualify"],
    }
    report = facts(folder, gpu, "qualify")["report"]
    assert report["verdict"] == "pass"
    assert report["comparison"]["tokens"] == 10 * 127
    assert 0 < report["comparison"]["increase"]["high"] < 0.1
    assert facts(folder, cpu, "qualify")["report"]["max_difference"] < 0.002
    again = run(folder, "build", "--until", "qualify")[1]
    assert [unit["built"] for unit in again["units"]] == [[], []]

    status, verified, errors = run(folder, "verify")
    assert status == 0, errors
    assert [unit["faults"] for unit in verified["units"]] == [[], []]
    assert facts(folder, gpu, "checkpoint")["verification"]["faults"] == []


def test_one_changed_bit_of_a_checkpoint_is_found(folder: Path) -> None:
    (folder / "smollm2.yaml").write_text(RECIPE + "targets:\n  - {sku: cpu, precision: {weights: bf16}}\n")
    status, built, errors = run(folder, "build", "--until", "checkpoint")
    assert status == 0, errors
    file = Path(built["units"][0]["artifact"]) / "files/rank0.safetensors"
    file.chmod(0o644)
    with open(file, "r+b") as rank:
        rank.seek(file.stat().st_size // 2)
        (byte,) = rank.read(1)
        rank.seek(file.stat().st_size // 2)
        rank.write(bytes([byte ^ 1]))
    status, verified, _ = run(folder, "verify")
    assert status == 7
    (fault,) = verified["units"][0]["faults"]
    assert "rank0.safetensors" in fault
    assert len(facts(folder, "smollm2/bf16-tp1/cpu", "checkpoint")["verification"]["faults"]) == 1

    # the same folder, by itself: the tensor is named
    out = engine_builder(
        "verify", "--checkpoint", file.parent, "--source", folder / "model", store=folder.parent / "store"
    )
    assert out.returncode == 7
    assert "transformer.layers." in out.stdout


def test_a_gate_that_is_not_passed_stops_the_build_and_leaves_no_proof(folder: Path) -> None:
    strict = RECIPE.replace("max_increase: 0.1", "max_increase: 0").replace("int8-wo", "int4-wo")
    (folder / "smollm2.yaml").write_text(strict + "targets: [{sku: cpu}]\n")
    status, built, errors = run(folder, "build")
    assert status == 7
    assert built["units"] == []
    assert "QUALIFY_FAILED" in errors
    assert "perplexity" in errors
    store = folder.parent / "store"
    assert sorted(path.name for path in (store / "artifacts").iterdir()) == ["checkpoint"]
    assert not list((store / "work").iterdir())


def test_a_checkpoint_that_is_not_there_can_not_be_verified(folder: Path) -> None:
    (folder / "smollm2.yaml").write_text(RECIPE + "targets: [{sku: cpu}]\n")
    assert engine_builder("lock", "--recipe", folder, store=folder.parent / "store").returncode == 0
    status, _, errors = run(folder, "verify")
    assert status == 3
    assert "--until checkpoint" in errors


def test_an_fp8_model_with_an_fp8_cache_goes_the_whole_way(folder: Path) -> None:
    """ModelOpt measures on texts of which it draws some; the image serves what was proved."""
    paragraphs = [text for text in (ROOT / "README.md").read_text().split("\n\n") if len(text) > 80]
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in paragraphs))
    more = "calibration: {dataset: file:texts.jsonl, samples: 8, max_length: 128}\ntargets: [{sku: cpu}]\n"
    recipe = RECIPE.replace("weights: int8-wo", "weights: fp8, kv_cache: fp8") + more
    (folder / "smollm2.yaml").write_text(recipe)
    status, built, errors = run(folder, "build")
    assert status == 0, errors
    assert built["units"][0]["built"] == ["checkpoint", "qualify", "engine", "repository", "image"]
    unit = "smollm2/fp8-tp1/cpu"
    assert facts(folder, unit, "checkpoint")["quantization"]["modelopt"] == "0.47.0"
    assert facts(folder, unit, "qualify")["report"]["verdict"] == "pass"
    assert run(folder, "verify")[0] == 0


def test_a_recipe_of_modelopt_is_pinned_and_followed(folder: Path) -> None:
    """One that leaves the layers' attention as it is; the lock holds it, and another one makes another checkpoint."""
    [published] = importlib.resources.files("modelopt_recipes").joinpath("general/ptq").glob("fp8_default-kv_fp8.yaml")
    text = Path(str(published)).read_text()
    (folder / "modelopt").mkdir()
    (folder / "modelopt/own.yaml").write_text(text)
    (folder / "texts.txt").write_text("One text.\n\nAnother text.\n")
    more = "calibration: {dataset: file:texts.txt, samples: 2, max_length: 32}\ntargets: [{sku: cpu}]\n"
    precision = "weights: fp8, kv_cache: fp8, modelopt_recipe: file:modelopt/own.yaml"
    (folder / "smollm2.yaml").write_text(RECIPE.replace("weights: int8-wo", precision) + more)
    status, built, errors = run(folder, "build", "--until", "checkpoint")
    assert status == 0, errors
    first = built["units"][0]["artifact"]

    attention_off = "    - quantizer_name: '*self_attn*_proj*'\n      enable: false\n"
    assert text.count("  quant_cfg:\n") == 1
    (folder / "modelopt/own.yaml").write_text(text.rstrip() + "\n" + attention_off)
    assert engine_builder("lock", "--upgrade", "--recipe", folder, store=folder.parent / "store").returncode == 0
    status, built, errors = run(folder, "build", "--until", "checkpoint")
    assert status == 0, errors
    assert built["units"][0]["artifact"] != first
    excluded = [
        json.loads((Path(artifact) / "files/config.json").read_text())["quantization"]["exclude_modules"]
        for artifact in (first, built["units"][0]["artifact"])
    ]
    assert "transformer.layers.0.attention.qkv" not in excluded[0]
    assert "transformer.layers.0.attention.qkv" in excluded[1]
