"""A right checkpoint is verified, and every kind of damage is found and named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from builder.checkpoint.config import float_quantization
from builder.checkpoint.convert import convert
from builder.checkpoint.verification import Report, verify, verify_structure
from builder.model.config import load_config, load_hf_quant_config
from builder.model.layout import Split
from builder.model.spec import ModelSpec
from builder.store import Workspace
from tests.unit.checkpoint.test_convert_gptq import gptq_model
from tests.unit.checkpoint.test_logits import MODELS, SPLITS, legal, published

Tensors = dict[str, torch.Tensor]
LAYER = "transformer.layers.0."


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def spec_of(folder: Path) -> ModelSpec:
    return ModelSpec.from_config(load_config(folder), folder, None, load_hf_quant_config(folder))


def converted(source: Path, out: Path, split: Split, **options: Any) -> Path:
    out.mkdir(parents=True)
    convert(source, spec_of(source), Workspace(out), split, **options)
    return out


def faults(report: Report) -> list[str]:
    return [str(mismatch) for mismatch in (*report.structure, *report.exactness)]


@pytest.mark.parametrize("name", MODELS)
def test_every_family_is_verified_however_it_is_split(name: str, root: Path, tmp_path: Path) -> None:
    source, _ = published(name, root)
    for words, split in SPLITS.items():
        if legal(spec_of(source), split):
            report = verify(converted(source, tmp_path / words, split), source, spec_of(source))
            assert faults(report) == [], words
            assert report.compared_bytes > 0


@pytest.mark.parametrize("name", ["llama with biases, tied", "gemma", "mixtral"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_another_dtype_is_rounded_to_nearest(name: str, dtype: str, root: Path, tmp_path: Path) -> None:
    source, _ = published(name, root)
    out = converted(source, tmp_path / "out", Split(3), dtype=dtype)
    assert faults(verify(out, source, spec_of(source), dtype=dtype)) == []
    assert "isn't what the recipe asks for" in faults(verify(out, source, spec_of(source), dtype="float32"))[0]


def test_weights_that_are_quantised_later_are_compared_as_floats(root: Path, tmp_path: Path) -> None:
    source, _ = published("qwen2", root)
    out = converted(source, tmp_path / "out", Split(3), quantization=float_quantization("W8A16"))
    assert faults(verify(out, source, spec_of(source))) == []


def edited(out: Path, rank: int, change: Callable[[Tensors], None]) -> None:
    file = out / f"rank{rank}.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


def reconfigured(out: Path, **values: Any) -> None:
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps({**config, **values}))


def exchanged(first: str, second: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[first], tensors[second] = tensors[second], tensors[first]

    return change


def changed(name: str, value: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[name] = value(tensors[name]).contiguous()

    return change


def last_bit(tensor: torch.Tensor) -> torch.Tensor:
    tensor.view(torch.int32).view(-1)[-1] ^= 1
    return tensor


WRONG: dict[str, tuple[Callable[[Path], None], str]] = {
    "fc and gate exchanged": (
        lambda out: edited(out, 0, exchanged(f"{LAYER}mlp.fc.weight", f"{LAYER}mlp.gate.weight")),
        "mlp.fc.weight differs",
    ),
    "a bit of a weight": (lambda out: edited(out, 1, changed(f"{LAYER}attention.dense.weight", last_bit)), "rank1"),
    "a bit of a norm": (lambda out: edited(out, 2, changed(f"{LAYER}post_layernorm.weight", last_bit)), "rank2"),
    "a bit of a bias": (lambda out: edited(out, 5, changed(f"{LAYER}attention.qkv.bias", last_bit)), "rank5"),
    "a square weight transposed": (
        lambda out: edited(out, 0, changed("transformer.vocab_embedding.weight", lambda t: t.flip(0))),
        "vocab_embedding",
    ),
    "keys and values exchanged": (
        lambda out: edited(
            out, 0, changed(f"{LAYER}attention.qkv.weight", lambda t: torch.cat([t[:16], t[32:], t[16:32]]))
        ),
        "attention.qkv.weight",
    ),
    "padding that isn't zero": (
        lambda out: edited(out, 5, changed("lm_head.weight", lambda t: t + 1)),
        "padding",
    ),
    "a tensor is missing": (lambda out: edited(out, 3, lambda t: t.pop(f"{LAYER}mlp.fc.weight")), "is missing"),
    "a tensor too many": (
        lambda out: edited(out, 3, lambda t: t.update({"extra.weight": torch.zeros(2)})),
        "isn't part of the model",
    ),
    "a tensor of another shape": (
        lambda out: edited(out, 3, changed(f"{LAYER}mlp.fc.weight", lambda t: t[:-1])),
        "another shape",
    ),
    "a tensor of another type": (
        lambda out: edited(out, 3, changed(f"{LAYER}mlp.fc.weight", lambda t: t.half())),
        "another type",
    ),
    "ranks exchanged": (lambda out: swap(out / "rank0.safetensors", out / "rank1.safetensors"), "rank0"),
    "a rank is missing": (lambda out: (out / "rank4.safetensors").unlink(), "rank4.safetensors is missing"),
    "a rank too many": (lambda out: shutil.copy(out / "rank0.safetensors", out / "rank6.safetensors"), "no rank"),
    "a rank is cut off": (lambda out: cut(out / "rank4.safetensors"), "can't be read"),
    "another theta": (lambda out: reconfigured(out, rotary_base=500000.0), "rotary_base"),
    "rope scaling dropped": (lambda out: reconfigured(out, rotary_scaling=None), "rotary_scaling"),
    "another epsilon": (lambda out: reconfigured(out, norm_epsilon=1e-5), "norm_epsilon"),
    "a head more": (lambda out: reconfigured(out, num_attention_heads=7), "config.json"),
    "no architecture": (lambda out: reconfigured(out, architecture=None), "config.json"),
}


def swap(first: Path, second: Path) -> None:
    other = first.with_suffix(".other")
    first.rename(other)
    second.rename(first)
    other.rename(second)


def cut(file: Path) -> None:
    with open(file, "r+b") as opened:
        opened.truncate(file.stat().st_size - 5)


@pytest.fixture(scope="module")
def right(root: Path) -> tuple[Path, Path]:
    """A model with biases, scaled rope and an odd vocabulary, and its checkpoint for six ranks."""
    name = "llama 3.1"
    family, changes = MODELS[name]
    MODELS["verified"] = (family, {**changes, "attention_bias": True, "mlp_bias": True, "vocab_size": 101})
    try:
        source, _ = published("verified", root)
    finally:
        del MODELS["verified"]
    return source, converted(source, root / "right", Split(6))


@pytest.mark.parametrize("fault", WRONG)
def test_every_fault_is_found_and_named(right: tuple[Path, Path], tmp_path: Path, fault: str) -> None:
    source, checkpoint = right
    out = tmp_path / "out"
    shutil.copytree(checkpoint, out)
    damage, words = WRONG[fault]
    damage(out)
    report = verify(out, source, spec_of(source))
    assert not report.ok
    assert any(words in line for line in faults(report)), faults(report)


def test_a_copy_of_a_kv_head_that_differs_is_found(right: tuple[Path, Path], tmp_path: Path) -> None:
    source, checkpoint = right
    out = tmp_path / "out"
    shutil.copytree(checkpoint, out)
    edited(out, 1, changed(f"{LAYER}attention.qkv.weight", last_bit))  # its last row is a value that rank 0 has too
    (fault,) = faults(verify(out, source, spec_of(source)))
    assert "rank1.safetensors: transformer.layers.0.attention.qkv.weight" in fault
    assert "v_proj" in fault


def test_experts_in_another_order_are_found(root: Path, tmp_path: Path) -> None:
    source, _ = published("mixtral", root)
    out = converted(source, tmp_path / "out", Split())
    edited(out, 0, changed(f"{LAYER}mlp.proj.weight", lambda t: t[[1, 0, 2, 3]]))
    found = faults(verify(out, source, spec_of(source)))
    assert len(found) == 2
    assert all("expert" in fault for fault in found)


def test_a_norm_of_gemma_without_its_1_is_found(root: Path, tmp_path: Path) -> None:
    source, _ = published("gemma", root)
    out = converted(source, tmp_path / "out", Split())
    edited(out, 0, changed("transformer.ln_f.weight", lambda t: t - 1))
    assert "ln_f" in faults(verify(out, source, spec_of(source)))[0]


def test_truncation_in_place_of_rounding_is_found(root: Path, tmp_path: Path) -> None:
    source, _ = published("llama", root)
    out = converted(source, tmp_path / "out", Split(), dtype="bfloat16")
    exact = load_file(source / "model.safetensors")["model.layers.0.mlp.down_proj.weight"]
    truncated = (exact.view(torch.int32) & -65536).view(torch.float32).bfloat16()
    edited(out, 0, changed(f"{LAYER}mlp.proj.weight", lambda _: truncated))
    assert "mlp.proj.weight" in faults(verify(out, source, spec_of(source)))[0]


def test_structure_needs_no_source(right: tuple[Path, Path], tmp_path: Path) -> None:
    _, checkpoint = right
    assert verify_structure(checkpoint) == ()
    assert "config.json" in str(verify_structure(tmp_path)[0])


# quantised


def fp8_checkpoint(source: Path, out: Path, worse: float = 1.0) -> Path:
    """As ModelOpt stores FP8, by torch: one scale per linear. `worse`: weights are multiplied with it first."""
    converted(source, out, Split(3))
    reconfigured(out, quantization={"quant_algo": "FP8", "kv_cache_quant_algo": None, "exclude_modules": ["lm_head"]})
    for rank in range(3):
        tensors = load_file(out / f"rank{rank}.safetensors")
        result: Tensors = {}
        for name, tensor in tensors.items():
            if tensor.ndim < 2 or "embedding" in name or name == "lm_head.weight":
                result[name] = tensor.clone()
                continue
            linear, scale = name.removesuffix(".weight"), tensor.abs().max() / 448
            result[name] = (tensor * worse / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
            result[f"{linear}.weights_scaling_factor"] = scale.reshape(1)
            result[f"{linear}.activation_scaling_factor"] = torch.tensor([0.1])
        save_file(result, out / f"rank{rank}.safetensors", metadata={"format": "pt"})
    return out


def test_fp8_weights_are_within_half_a_step(root: Path, tmp_path: Path) -> None:
    source, _ = published("llama", root)
    report = verify(fp8_checkpoint(source, tmp_path / "out"), source, spec_of(source))
    assert faults(report) == []
    assert 0.9 < report.bound_use["FP8"] <= 1


def test_fp8_weights_that_are_further_away_are_found(root: Path, tmp_path: Path) -> None:
    source, _ = published("llama", root)
    report = verify(fp8_checkpoint(source, tmp_path / "out", worse=0.9), source, spec_of(source))
    assert len(report.exactness) >= 4 * 4 * 3
    assert "than FP8 allows" in faults(report)[0]


@pytest.mark.parametrize("scale", [0.0, float("nan"), -1.0])
def test_a_scale_that_is_none_is_found(root: Path, tmp_path: Path, scale: float) -> None:
    source, _ = published("llama", root)
    out = fp8_checkpoint(source, tmp_path / "out")
    edited(out, 1, changed(f"{LAYER}mlp.fc.activation_scaling_factor", lambda t: t * 0 + scale))
    (fault,) = faults(verify(out, source, spec_of(source)))
    assert "rank1.safetensors: transformer.layers.0.mlp.fc.activation_scaling_factor" in fault


def test_weights_as_published_are_the_same_numbers(tmp_path: Path) -> None:
    gptq_model(tmp_path / "source")
    out = converted(tmp_path / "source", tmp_path / "out", Split(2))
    assert faults(verify(out, tmp_path / "source", spec_of(tmp_path / "source"))) == []
    edited(out, 1, changed(f"{LAYER}mlp.proj.weight", lambda t: t ^ 1))
    (fault,) = faults(verify(out, tmp_path / "source", spec_of(tmp_path / "source")))
    assert "down_proj" in fault


def test_what_was_verified_is_what_transformers_loads(root: Path) -> None:
    """The models of these tests are real ones: transformers reads them from the same folder."""
    source, _ = published("llama", root)
    assert AutoModelForCausalLM.from_pretrained(source).num_parameters() > 100_000
