"""Checkpoints side by side: ours, and ModelOpt's of the same model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from builder.checkpoint.convert import convert
from builder.model.config import load_config, load_hf_quant_config
from builder.model.layout import Split
from builder.model.spec import ModelSpec
from builder.store import Workspace

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Checkpoint:
    """config.json, and the tensors of each rank; `config` is empty where there is none."""

    config: dict[str, Any]
    ranks: list[Tensors]

    @classmethod
    def load(cls, folder: Path) -> Checkpoint:
        count = len(list(folder.glob("rank*.safetensors")))
        config = folder / "config.json"
        return cls(
            json.loads(config.read_text()) if config.exists() else {},
            [load_file(folder / f"rank{rank}.safetensors") for rank in range(count)],
        )


def spec_of(folder: Path) -> ModelSpec:
    return ModelSpec.from_config(load_config(folder), folder, hf_quant_config=load_hf_quant_config(folder))


def converted(source: Path, out: Path, split: Split, dtype: str | None = None) -> Checkpoint:
    """Ours. It doesn't stay in `out`: a session makes some gigabytes."""
    out.mkdir()
    convert(source, spec_of(source), Workspace(out), split, dtype=dtype)
    checkpoint = Checkpoint.load(out)
    shutil.rmtree(out)
    return checkpoint


def staged(ranks: list[Tensors], pp: int) -> list[Tensors]:
    """The ranks of one stage as those of `pp` stages, for a number of layers that ModelOpt can't split so.

    TensorRT-LLM's Mapping.pp_layers (tensorrt_llm/mapping.py) is torch.tensor_split over the layers.
    """
    count = 1 + max(int(name.split(".")[2]) for name in ranks[0] if name.startswith("transformer.layers."))
    stages = [part.tolist() for part in torch.tensor_split(torch.arange(count), pp)]
    first, last = ("transformer.vocab_embedding.",), ("transformer.ln_f.", "lm_head.")
    result = []
    for stage, layers in enumerate(stages):
        names = {f"transformer.layers.{layer}.": f"transformer.layers.{n}." for n, layer in enumerate(layers)}
        names |= {name: name for name in (first if stage == 0 else ()) + (last if stage == pp - 1 else ())}
        for tensors in ranks:
            result.append(
                {
                    name.replace(theirs, ours, 1): tensor
                    for theirs, ours in names.items()
                    for name, tensor in tensors.items()
                    if name.startswith(theirs)
                }
            )
    return result


def differences(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> list[str]:
    """What isn't the same in names, dtypes, shapes or bytes."""
    found = [f"{name}: only ours has it" for name in ours.keys() - theirs.keys()]
    found += [f"{name}: only theirs has it" for name in theirs.keys() - ours.keys()]
    for name in ours.keys() & theirs.keys():
        one, other = ours[name], theirs[name]
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            found.append(f"{name}: {one.dtype} {list(one.shape)}, theirs {other.dtype} {list(other.shape)}")
        elif not same_bytes(one, other):
            count = int((one.float() != other.float()).sum())
            found.append(f"{name}: {count} of {one.numel()} values differ")
    return sorted(found)


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Of the same dtype and shape; zeros of either sign are two values here."""
    return (one.dtype, one.shape) == (other.dtype, other.shape) and torch.equal(bits(one), bits(other))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
