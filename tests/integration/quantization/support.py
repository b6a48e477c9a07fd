"""Small models, quantised by NVIDIA's ModelOpt itself on a CPU, and how far they are from what they were."""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import modelopt.torch.quantization as mtq
import numpy as np
import torch
from transformers import AutoModelForCausalLM

from builder.checkpoint.config import checkpoint_config
from builder.checkpoint.modelopt import __main__ as worker
from builder.checkpoint.modelopt.calibration import batches, run_batches
from builder.checkpoint.modelopt.complaints import complaint
from builder.checkpoint.modelopt.failure import failure_of
from builder.checkpoint.modelopt.loading import load_model, load_tokenizer
from builder.checkpoint.quantize import Quantization, quantize
from builder.model.config import load_config
from builder.model.layout import Split
from builder.model.spec import ModelSpec
from builder.reference.model import ReferenceModel
from builder.store import Workspace

TEXTS = [
    "The harbour was quiet that morning, and the boats lay still.",
    "To make a good soup, start with an onion and a little butter.",
    "import numpy as np\n\ndef mean(values):\n    return np.sum(values) / len(values)\n",
    "Mount Everest is the highest mountain above sea level, at 8,849 metres.",
    "She asked whether the train to Geneva had left already. It had.",
    "A prime number has exactly two divisors: 1 and itself.",
]

UNSEEN = (
    "In 1969, two astronauts walked on the Moon while a third stayed in orbit. Water boils at 100 degrees Celsius at "
    "sea level, but at lower temperatures on high mountains. Once upon a time there was a ship that crossed the ocean "
    "with a cargo of tea, silk and stories, and its captain kept a diary in which she wrote down every storm, every "
    "island and every whale that they met on the way, until the paper ran out and she began to write on the sails."
)

SIZES = {
    "vocab_size": 260,  # no multiple of 64
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 16,
}
BLOCK = 64

APART = ("k_cache_scaling_factor", "v_cache_scaling_factor")
"""Scales that the library writes besides the larger of both."""


def run(
    source: Path, out: Workspace, precision: str = "fp8", texts: list[str] = TEXTS, **settings: Any
) -> dict[str, Any]:
    """Quantise a model into `out`, with the config.json that a build writes; returns the facts. It is done in this
    process, where torch is loaded already."""
    with patch("builder.checkpoint.quantize.run", _do_here):
        return run_apart(source, out, precision, texts, **settings)


def run_apart(
    source: Path, out: Workspace, precision: str = "fp8", texts: list[str] = TEXTS, **settings: Any
) -> dict[str, Any]:
    """The same in a process of its own, as a build does it."""
    spec = spec_of(source)
    job = Quantization(**{"precision": precision, "dtype": "bfloat16", "batch_size": 2, "max_length": 64, **settings})
    split = Split(job.tp, job.pp, use_parallel_embedding=True)
    return quantize(
        source,
        spec,
        texts,
        job,
        out,
        finish=lambda made: checkpoint_config(replace(spec, dtype=job.dtype), split, made["quantization"]),
    )


def _do_here(job: Mapping[str, Any], advance: Callable[[int], None]) -> dict[str, Any]:
    doing = "load"

    def tell(**news: Any) -> None:
        nonlocal doing
        doing = news.get("doing", doing)
        advance(news.get("texts", 0))

    try:
        return worker.quantize(dict(job), tell)
    except Exception as error:
        failure = failure_of(error, doing)
        raise complaint(failure.kind, str(failure), job) from error


def spec_of(folder: Path) -> ModelSpec:
    quant = folder / "hf_quant_config.json"
    config = json.loads(quant.read_text()) if quant.exists() else None
    return ModelSpec.from_config(load_config(folder), folder / "config.json", hf_quant_config=config)


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def divergence(expected: np.ndarray, checkpoint: Path, ids: list[int]) -> float:
    """Kullback-Leibler divergence of a checkpoint's next tokens from those of `expected` logits, mean over positions,
    in nats."""
    model = ReferenceModel.load(checkpoint)
    return loss(expected, model.prefill(ids, model.new_cache(len(ids)), all_positions=True))


def loss(expected: np.ndarray, found: np.ndarray) -> float:
    """The same of logits [tokens, vocabulary]."""
    ours, theirs = log_probabilities(found), log_probabilities(expected)
    return float((np.exp(theirs) * (theirs - ours)).sum(axis=1).mean())


def by_transformers(folder: Path, ids: list[int]) -> np.ndarray:
    """Logits [tokens, vocabulary] of a model in float32."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits: np.ndarray = model(torch.tensor([ids])).logits[0].numpy()
    return logits


def same_tensors(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    """Bit for bit, NaN or not."""
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert (tensor.dtype, tensor.shape) == (theirs[name].dtype, theirs[name].shape), name
        assert torch.equal(tensor.view(-1).view(torch.uint8), theirs[name].view(-1).view(torch.uint8)), name


def loss_in_modelopt(source: Path, config: dict[str, Any], expected: np.ndarray, ids: list[int]) -> float:
    """The divergence from `expected` logits that the library itself simulates for a model quantised with `config`."""
    model = load_model(str(source), "bfloat16", "cpu")
    texts = batches(load_tokenizer(str(source)), TEXTS, 2, 64, model.config.vocab_size)
    model = mtq.quantize(model, config, forward_loop=lambda model: run_batches(model, texts, lambda count: None))
    with torch.no_grad():
        return loss(expected, model(torch.tensor([ids])).logits[0].float().numpy())


def library_recipe(name: str) -> Path:
    [path] = importlib.resources.files("modelopt_recipes").joinpath("general/ptq").glob(f"{name}.yaml")
    return Path(path)
