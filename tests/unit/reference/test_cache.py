"""A quantised KV cache: keys and values are what torch makes of them when they are stored and read again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from safetensors.torch import load_file, save_file

from builder.reference.dequantize import rounded_cache
from builder.reference.errors import ReferenceModelError
from builder.reference.folder import ModelFolder
from builder.reference.model import ReferenceModel
from tests.unit.reference.sharding import write_checkpoint
from tests.unit.reference.test_families import assert_same, change_config, random_tokens
from tests.unit.reference.tiny import tiny

TOKENS = random_tokens(30)


def stored_and_read(values: torch.Tensor, scale: float, algo: str) -> torch.Tensor:
    scaled = values * (1 / torch.tensor(scale))
    if algo == "FP8":
        return scaled.clamp(-448, 448).to(torch.float8_e4m3fn).to(torch.float32) * scale
    return scaled.round().clamp(-128, 127).to(torch.int8).to(torch.float32) * scale


@pytest.mark.parametrize("scale", [1.0, 0.037, 1e-3])
@pytest.mark.parametrize("algo", ["FP8", "INT8"])
def test_values_are_rounded_as_torch_rounds_them(algo: str, scale: float) -> None:
    values = np.random.default_rng(2).normal(0, 3, 20_000).astype(np.float32)
    expected = stored_and_read(torch.from_numpy(values), scale, algo).numpy()
    assert_array_equal(rounded_cache(values, np.float32(scale), algo), expected)


def with_cache_scales(folder: Path, algo: str, **scales: float) -> Path:
    """Layer n has n + 1 times the scales."""
    change_config(folder, quantization={"quant_algo": None, "kv_cache_quant_algo": algo})
    for path in folder.glob("*.safetensors"):
        tensors = load_file(path)
        for name in [name for name in tensors if name.endswith("attention.qkv.weight")]:
            layer = int(name.split(".")[2])
            for kind, scale in scales.items():
                tensors[name.replace("qkv.weight", f"{kind}_cache_scaling_factor")] = torch.tensor(
                    [scale * (layer + 1)]
                )
        save_file(tensors, path)
    return folder


@pytest.mark.parametrize("algo", ["FP8", "INT8"])
def test_all_keys_and_values_that_are_read_have_been_rounded(algo: str, tmp_path: Path) -> None:
    model = tiny("llama", num_hidden_layers=2)
    quantized = with_cache_scales(write_checkpoint(model, tmp_path, tp=3), algo, kv=0.05)
    reference = ReferenceModel.load(quantized)
    cache = reference.new_cache(30)
    reference.prefill(TOKENS[:20], cache)
    for token in TOKENS[20:]:
        reference.decode([token], [cache])
    for rank in range(3):
        for layer in range(2):
            for held in (cache.keys[rank][layer], cache.values[rank][layer]):
                rounded = stored_and_read(torch.from_numpy(held), 0.05 * (layer + 1), algo).numpy()
                np.testing.assert_allclose(held, rounded, rtol=1e-6)


@pytest.mark.parametrize("algo", ["FP8", "INT8"])
def test_logits_are_those_of_a_model_that_rounds_keys_and_values(algo: str, tmp_path: Path) -> None:
    """In transformers, keys and values are rounded by what stands between them and attention: its cache."""
    from transformers import DynamicCache

    model = tiny("llama", num_hidden_layers=2)

    class RoundingCache(DynamicCache):
        def update(self, keys, values, layer, *args, **kwargs):  # type: ignore[no-untyped-def]
            keys, values = (stored_and_read(part, 0.05 * (layer + 1), algo) for part in (keys, values))
            return super().update(keys, values, layer, *args, **kwargs)

    with torch.no_grad():
        expected = model(torch.from_numpy(TOKENS)[None], cache=RoundingCache()).logits[0].numpy()
        unrounded = model(torch.from_numpy(TOKENS)[None]).logits[0].numpy()
    reference = ReferenceModel.load(with_cache_scales(write_checkpoint(model, tmp_path), algo, kv=0.05))
    logits = reference.prefill(TOKENS, reference.new_cache(30), all_positions=True)
    # A key that lies between two codes may fall to either side: that is worth what rounding is worth.
    close = np.abs(logits - expected).max(axis=1) < 1e-3 * np.abs(expected).max()
    assert close.mean() > 0.9
    assert np.abs(logits - expected).mean() < 0.1 * np.abs(logits - unrounded).mean()


def test_the_larger_of_two_scales_stands_for_both(tmp_path: Path) -> None:
    """TensorRT-LLM has one scale, and takes the larger of ModelOpt's two, whatever the third says."""
    model = tiny("llama", num_hidden_layers=1)
    one = with_cache_scales(write_checkpoint(model, tmp_path / "one"), "FP8", kv=0.06)
    three = with_cache_scales(write_checkpoint(model, tmp_path / "three"), "FP8", kv=0.01, k=0.03, v=0.06)
    logits = []
    for folder in (one, three):
        reference = ReferenceModel.load(folder)
        logits.append(reference.prefill(TOKENS, reference.new_cache(30), all_positions=True))
    assert_array_equal(*logits)


def test_scales_belong_to_a_quantised_cache(tmp_path: Path) -> None:
    folder = with_cache_scales(write_checkpoint(tiny("llama"), tmp_path), "FP8", kv=0.05)
    change_config(folder, quantization={"quant_algo": None, "kv_cache_quant_algo": None})
    with pytest.raises(ReferenceModelError, match=r"tensors not known: .*kv_cache_scaling_factor"):
        ModelFolder.open(folder)
    folder = write_checkpoint(tiny("llama"), tmp_path / "without")
    change_config(folder, quantization={"quant_algo": None, "kv_cache_quant_algo": "INT8"})
    with pytest.raises(ReferenceModelError, match=r"tensors missing: .*kv_cache_scaling_factor"):
        ModelFolder.open(folder)


def test_windows_and_a_quantised_cache_go_together(tmp_path: Path) -> None:
    model = tiny("gemma2")
    reference = ReferenceModel.load(with_cache_scales(write_checkpoint(model, tmp_path), "FP8", kv=0.05))
    tokens = random_tokens(60)
    whole = reference.prefill(tokens, reference.new_cache(60), all_positions=True)
    cache = reference.new_cache(60)
    steps = [reference.prefill(tokens[:5], cache, all_positions=True)]
    steps += [reference.decode([token], [cache]) for token in tokens[5:]]
    # the same codes but for keys that lie between two of them
    assert np.median(np.abs(np.concatenate(steps) - whole)) < 1e-5
    assert_same(np.concatenate(steps)[:5], whole[:5])
