"""The ranks of a TensorRT-LLM checkpoint, made of the tensors of one tensor rank and all layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from builder.checkpoint.modelopt.failure import Failure

if TYPE_CHECKING:
    import torch

Tensors = dict[str, "torch.Tensor"]

EMBEDDING = "transformer.vocab_embedding.weight"
_LAYERS = "transformer.layers."
_LINEARS = ("qkv", "dense", "fc", "gate", "proj", "router", "lm_head")
_WEIGHT_SCALES = ("weights_scaling_factor", "per_channel_scale")


def share(weight: torch.Tensor, tp: int, rank: int, dtype: torch.dtype) -> torch.Tensor:
    """Rank's rows of a (V, H) weight, padded with zeros so that all ranks have equally many."""
    import torch

    rows = -(-weight.shape[0] // tp)
    own = weight[rank * rows : (rank + 1) * rows].detach().to("cpu", dtype)
    share = torch.zeros(rows, weight.shape[1], dtype=dtype)
    share[: len(own)] = own
    return share


def staged(tensors: Tensors, stages: Sequence[Sequence[int]]) -> Iterator[Tensors]:
    """The tensors of each pipeline stage, its layers numbered from 0."""
    for stage, (first, stop) in enumerate(stages):
        own: Tensors = {}
        for name, tensor in tensors.items():
            if name.startswith(_LAYERS):
                number, _, rest = name.removeprefix(_LAYERS).partition(".")
                if first <= int(number) < stop:
                    own[f"{_LAYERS}{int(number) - first}.{rest}"] = tensor
            elif stage == (0 if name == EMBEDDING else len(stages) - 1):
                own[name] = tensor
        yield own


def linears(tensors: Tensors) -> dict[str, bool]:
    """Every linear, and whether it is quantised."""
    names = (name.removesuffix(".weight") for name in tensors if name.endswith(".weight"))
    return {
        name: any(f"{name}.{scale}" in tensors for scale in _WEIGHT_SCALES)
        for name in names
        if name.rsplit(".", 1)[-1] in _LINEARS
    }


def add_missing_prequant(tensors: Tensors, dtype: torch.dtype) -> None:
    """INT4 without a pre-quantisation scale, which recipes can make, is exported under the same name as AWQ."""
    import torch

    for name, quantized in linears(tensors).items():
        if quantized:
            inputs = tensors[f"{name}.weight"].shape[-1]
            tensors.setdefault(f"{name}.prequant_scaling_factor", torch.ones(inputs, dtype=dtype))


def excluded(stages: Sequence[Tensors]) -> list[str]:
    """The linears that stay floats, by name. The library's own patterns count layers over all stages."""
    found = [linears(own) for own in stages]
    union = {name for own in found for name, quantized in own.items() if not quantized}
    for own in found:
        if any(quantized and name in union for name, quantized in own.items()):
            raise Failure("STAGES", "layers are numbered from 0 on every stage, and one config.json stands for all")
    return sorted(union)
