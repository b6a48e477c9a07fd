"""Quantised checkpoints against checkpoints that hold, as floats, the values that torch says are left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from safetensors.torch import load_file, save_file

from builder.reference.engine import write_engine
from builder.reference.errors import ReferenceModelError
from builder.reference.folder import ModelFolder
from builder.reference.model import ReferenceModel
from builder.reference.stored import dequantized, effective
from builder.reference.weights import RankWeights
from tests.unit.reference.quantizing import LINEARS, QUANTIZERS, quantization, quantize
from tests.unit.reference.sharding import write_checkpoint
from tests.unit.reference.test_engine import BUILD_CONFIG, ignore_progress
from tests.unit.reference.test_families import assert_same, change_config, logits_of, random_tokens
from tests.unit.reference.tiny import tiny

# multiples of 16 on every rank, as NVFP4 needs
SIZES: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 144,
    "num_attention_heads": 6,
    "head_dim": 16,
    "num_hidden_layers": 2,
}
TOKENS = random_tokens(30)


def checkpoint(folder: Path, family: str = "llama", **split: int) -> Path:
    return write_checkpoint(tiny(family, **SIZES), folder / "checkpoint", **split)


@pytest.mark.parametrize("split", [{}, {"tp": 3, "pp": 2}], ids=["one-rank", "tp3-pp2"])
@pytest.mark.parametrize("name", QUANTIZERS)
def test_a_quantised_checkpoint_computes_with_what_is_left_of_its_weights(
    name: str, split: dict[str, int], tmp_path: Path
) -> None:
    folder = checkpoint(tmp_path, **split)
    unquantized = logits_of(folder, TOKENS)
    left = quantize(folder, name)
    logits = logits_of(folder, TOKENS)
    assert_same(logits, logits_of(left, TOKENS))
    assert np.abs(logits - unquantized).max() > 100 * np.abs(logits - logits_of(left, TOKENS)).max()


@pytest.mark.parametrize("name", QUANTIZERS)
def test_linears_are_dequantised_to_the_values_that_torch_gives(name: str, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, tp=3)
    left = quantize(folder, name)
    opened = ModelFolder.open(folder)
    for number, file in enumerate(opened.ranks):
        expected = load_file(left / f"rank{number}.safetensors")
        rank = RankWeights(file)
        for linear in (f"transformer.layers.1.{linear}" for linear in LINEARS):
            weight = effective(rank, linear, opened.config.quantization)
            # two products of float32 at most, taken in another order
            assert_allclose(weight, expected[f"{linear}.weight"].numpy(), rtol=3e-7, atol=0)
            stored = dequantized(rank, linear, opened.config.quantization)
            prequant = f"{linear}.prequant_scaling_factor"
            assert_allclose(stored * (rank.float32(prequant) if prequant in rank else 1), weight, rtol=3e-7)


@pytest.mark.parametrize("split", [{}, {"tp": 3, "moe_ep": 3}], ids=["one-rank", "ep3"])
@pytest.mark.parametrize("name", ["fp8", "int8-wo", "int4-wo"])
def test_experts_are_dequantised_one_by_one(name: str, split: dict[str, int], tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, "qwen3_moe", **split)
    left = quantize(folder, name)
    assert_same(logits_of(folder, TOKENS), logits_of(left, TOKENS))
    opened = ModelFolder.open(folder)
    expected = load_file(left / "rank0.safetensors")["transformer.layers.0.mlp.fc.weight"]
    rank = RankWeights(opened.ranks[0])
    for expert in range(len(expected)):
        weight = effective(rank, "transformer.layers.0.mlp.fc", opened.config.quantization, expert)
        assert_allclose(weight, expected[expert].numpy(), rtol=3e-7, atol=0)


@pytest.mark.parametrize("name", ["fp8", "int8-wo"])
def test_fused_projections_are_dequantised_before_they_are_taken_apart(name: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tiny("phi3"), tmp_path / "checkpoint", tp=3)
    left = quantize(folder, name)
    assert_same(logits_of(folder, TOKENS), logits_of(left, TOKENS))


def test_weight_only_scales_of_float16_are_rounded_to_it(tmp_path: Path) -> None:
    """A row whose largest weight is 2^-9 · 1.001 has the scale 2^-16 · 1.001 in int8, which float16 keeps 9 bits of."""
    folder = write_checkpoint(tiny("llama", num_hidden_layers=1), tmp_path / "checkpoint", dtype=torch.float16)
    path, name = folder / "rank0.safetensors", "transformer.layers.0.attention.dense"
    tensors = load_file(path)
    tensors[f"{name}.weight"] *= 2.0**-9
    save_file(tensors, path)
    change_config(folder, quantization=quantization("int8-wo"))
    opened = ModelFolder.open(folder)
    weight = tensors[f"{name}.weight"].to(torch.float32)
    scale = weight.abs().amax(1, keepdim=True) / 128
    codes = (weight / scale).round().clamp(-128, 127)
    expected = codes * scale.to(torch.float16).to(torch.float32)
    assert not torch.equal(expected, codes * scale)
    assert_allclose(
        dequantized(RankWeights(opened.ranks[0]), name, opened.config.quantization), expected.numpy(), rtol=3e-7
    )


def test_weight_only_rounds_halves_away_from_zero(tmp_path: Path) -> None:
    folder = write_checkpoint(tiny("llama", num_hidden_layers=1), tmp_path / "checkpoint")
    path, name = folder / "rank0.safetensors", "transformer.layers.0.attention.dense.weight"
    tensors = load_file(path)
    tensors[name][0] = 0
    tensors[name][0, :8] = torch.tensor([128.0, -128.0, 0.5, -0.5, 2.5, -2.5, 0.49999997, 126.5])
    tensors[name][1] = 0  # without a scale
    save_file(tensors, path)
    change_config(folder, quantization=quantization("int8-wo"))
    opened = ModelFolder.open(folder)
    left = dequantized(RankWeights(opened.ranks[0]), name.removesuffix(".weight"), opened.config.quantization)
    assert_array_equal(left[0, :8], np.array([127, -128, 1, -1, 3, -3, 0, 127], dtype=np.float32))
    assert_array_equal(left[1], np.zeros_like(left[1]))


@pytest.mark.parametrize("name", ["fp8", "nvfp4", "int4-awq"])
def test_a_head_that_is_not_excluded_is_quantised(name: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tiny("llama", **SIZES, vocab_size=98), tmp_path / "checkpoint")
    left = quantize(folder, name, also=("lm_head",), exclude_modules=[])
    assert_same(logits_of(folder, TOKENS), logits_of(left, TOKENS))


@pytest.mark.parametrize("excluded", [None, ["*lm_head"], ["lm*"]], ids=repr)
def test_a_head_is_excluded_by_default_or_by_pattern(excluded: list[str] | None, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path)
    left = quantize(folder, "fp8", exclude_modules=excluded)
    assert_same(logits_of(folder, TOKENS), logits_of(left, TOKENS))


@pytest.mark.parametrize("name", ["fp8-rowwise", "int8-wo", "int4-wo"])
def test_some_formats_never_have_a_quantised_head(name: str, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path)
    left = quantize(folder, name, exclude_modules=[])
    assert_same(logits_of(folder, TOKENS), logits_of(left, TOKENS))


@pytest.mark.parametrize(
    ("name", "family", "excluded", "skip"),
    [
        ("fp8", "llama", ["lm_head", "*.attention.dense"], ("attention.dense",)),
        ("fp8", "llama", ["lm_head", "transformer.layers.*.mlp*"], ("mlp.fc", "mlp.gate", "mlp.proj")),
        ("int8-wo", "llama", ["lm_head", "*qkv"], ("attention.qkv",)),
        # where TensorRT-LLM exchanges whole modules, their names count
        ("fp8-rowwise", "llama", ["*.mlp"], ("mlp.fc", "mlp.gate", "mlp.proj")),
        ("fp8", "mixtral", ["lm_head", "*.mlp"], ("mlp.fc", "mlp.proj")),
    ],
)
def test_excluded_modules_stay_floats(
    name: str, family: str, excluded: list[str], skip: tuple[str, ...], tmp_path: Path
) -> None:
    folder = checkpoint(tmp_path, family)
    left = quantize(folder, name, skip, exclude_modules=excluded)
    assert_same(logits_of(folder, TOKENS), logits_of(left, TOKENS))


@pytest.mark.parametrize(
    ("name", "family", "excluded"),
    [
        ("fp8", "llama", ["lm_head", "transformer.layers.0.mlp"]),
        ("fp8-rowwise", "llama", ["*.mlp.fc", "*.mlp.gate", "*.mlp.proj"]),
        ("fp8", "mixtral", ["lm_head", "*.mlp.fc", "*.mlp.proj"]),
    ],
)
def test_patterns_that_tensorrt_llm_would_not_match_exclude_nothing(
    name: str, family: str, excluded: list[str], tmp_path: Path
) -> None:
    folder = checkpoint(tmp_path, family)
    quantize(folder, name, skip=("mlp.fc", "mlp.gate", "mlp.proj"), exclude_modules=excluded)
    with pytest.raises(ReferenceModelError, match=r"tensors missing: transformer\.layers\.0\.mlp"):
        ModelFolder.open(folder)


@pytest.mark.parametrize("name", QUANTIZERS)
def test_an_engine_has_the_tensors_of_its_checkpoint_and_computes_the_same(name: str, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, tp=3)
    quantize(folder, name)
    engine = tmp_path / "engine"
    write_engine(folder, engine, BUILD_CONFIG | {"max_input_len": 30}, ignore_progress)
    for number in range(3):
        before, after = (
            load_file(path) for path in (folder / f"rank{number}.safetensors", engine / f"rank{number}.engine")
        )
        assert {key: tensor.dtype for key, tensor in after.items()} == {key: t.dtype for key, t in before.items()}
        assert all(
            before[key].view(torch.uint8).equal(after[key].view(torch.uint8)) for key in before if before[key].dim()
        )
    model = ReferenceModel.load(engine)
    assert_array_equal(model.prefill(TOKENS, model.new_cache(30), all_positions=True), logits_of(folder, TOKENS))


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("fp8", {"quant_algo": "MIXED_PRECISION"}, "quant_algo 'MIXED_PRECISION' is not implemented"),
        ("fp8", {"kv_cache_quant_algo": "NVFP4"}, "kv_cache_quant_algo 'NVFP4' is not implemented"),
        ("fp8", {"has_zero_point": True}, "has_zero_point true is not implemented"),
        ("fp8", {"pre_quant_scale": True}, "pre_quant_scale True is not implemented for quant_algo FP8"),
        ("fp8", {"use_meta_recipe": True}, "the key 'use_meta_recipe' is not known"),
        ("fp8", {"exclude_modules": "lm_head"}, "exclude_modules must be a list of names"),
        ("fp8", {"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}, r"per_channel_scale"),
        ("int4-awq", {"pre_quant_scale": False}, "pre_quant_scale False is not implemented for quant_algo W4A16_AWQ"),
        ("int4-awq", {"group_size": 0}, "group_size must be a positive integer"),
        ("int4-awq", {"group_size": 5}, "is not a multiple of 5, as its format needs"),
        ("int4-awq", {"group_size": 8}, r"weights_scaling_factor is F32 \[\d+, \d+\], expected F32"),
        ("int4-awq", {"quant_algo": "W4A8_AWQ"}, "weights_scaling_factor_2"),
    ],
)
def test_sections_that_do_not_fit_are_refused(name: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path)
    quantize(folder, name)
    section = json.loads((folder / "config.json").read_text())["quantization"]
    change_config(folder, quantization=section | changes)
    with pytest.raises(ReferenceModelError, match=message):
        ModelFolder.open(folder)


@pytest.mark.parametrize("name", ["nvfp4", "int4-awq", "int8-sq", "fp8-rowwise"])
def test_experts_have_few_formats(name: str, tmp_path: Path) -> None:
    folder = change_config(checkpoint(tmp_path, "mixtral"), quantization=quantization(name))
    with pytest.raises(ReferenceModelError, match="is not implemented for experts"):
        ModelFolder.open(folder)


@pytest.mark.parametrize(
    ("part", "dtype", "message"),
    [
        ("attention.qkv.weight", torch.int8, r"attention\.qkv\.weight is I8 \[192, 48\], expected F8_E4M3 \[192, 48\]"),
        ("mlp.fc.weights_scaling_factor", torch.float16, r"weights_scaling_factor is F16 \[1\], expected F32 \[1\]"),
    ],
)
def test_types_must_be_those_of_the_format(part: str, dtype: torch.dtype, message: str, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path)
    quantize(folder, "fp8")
    path = folder / "rank0.safetensors"
    tensors = load_file(path)
    name = f"transformer.layers.0.{part}"
    tensors[name] = tensors[name].to(torch.float32).to(dtype)
    save_file(tensors, path)
    with pytest.raises(ReferenceModelError, match=message):
        ModelFolder.open(folder)
