"""Bytes of the weights on one rank: the tensors of the model, split as TensorRT-LLM splits them, in a precision.

Splits and paddings follow TensorRT-LLM's converters and linear layers (tensorrt_llm/models/llama/convert.py@04a2cacb,
models/convert_utils.py@03961722, quantization/functional.py, docs/source/architecture/checkpoint.md). Where a
dimension doesn't divide, the largest rank counts.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from builder.catalog import Precision
from builder.model.spec import Layer, ModelSpec, stage_layers
from builder.model.stored import DTYPE_BYTES
from builder.model.weights import Weight, weights

_FLOAT32 = 4
_ROW_PARALLEL = ("attention_out", "row", "expert_row")


@dataclass(frozen=True)
class Split:
    """How a model lies on GPUs; `moe_tensor` · `moe_expert` is `tensor` where there are experts."""

    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    moe_tensor: int = 1
    moe_expert: int = 1

    @property
    def ranks(self) -> int:
        return self.tensor * self.pipeline * self.context


ONE_GPU = Split()


@dataclass(frozen=True)
class Storage:
    """The formats that weights are held in.

    dtype: of what isn't quantised. group_size: in place of the precision's own, -1: one per row. quantized_head: the
    output head too. parallel_embedding: the embedding is split over the tensor ranks; it is whole on each otherwise.
    tied_head_stored: the head of a tied model is a tensor of its own, as in engines. router_float32: as engines keep
    the routers.
    """

    precision: Precision
    dtype: str = "bfloat16"
    group_size: int | None = None
    quantized_head: bool = False
    parallel_embedding: bool = False
    tied_head_stored: bool = True
    router_float32: bool = True

    @property
    def dtype_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype]

    @property
    def alignment(self) -> int:
        """To what the split dimension of a quantised linear is padded on a rank: 64 · tp in all for weight-only
        formats, max(64, group) · tp for GPTQ. AWQ checkpoints can't be padded and aren't."""
        if self.precision.scheme == "weight-only":
            return 64
        if self.precision.scheme == "grouped" and self.precision.published_only:
            return max(64, self.group_size or self.precision.group_size or 0)
        return 1


@lru_cache(maxsize=4096)
def weight_bytes(spec: ModelSpec, storage: Storage, split: Split) -> tuple[int, ...]:
    """Per pipeline stage, the tensors of its fullest rank, without the rope table."""
    found = weights(spec)
    if spec.tie_word_embeddings and (storage.tied_head_stored or split.pipeline > 1):
        found = (*found, Weight("lm_head.weight", (spec.vocab_size, spec.hidden_size), "head"))
    return stage_bytes(found, spec.layers, storage, split)


def stage_bytes(found: Sequence[Weight], layers: tuple[Layer, ...], storage: Storage, split: Split) -> tuple[int, ...]:
    """The same for any list of tensors. `layers` tell how many heads the key and value projections have.

    The first stage has the embedding, the last one what else is outside the layers.
    """
    pp = split.pipeline
    starts = [stage_layers(len(layers), pp, stage).start for stage in range(pp)] + [len(layers)]
    result = [0] * pp
    for weight in found:
        one = tensor_bytes(weight, layers, storage, split)
        if not weight.layers:
            result[0 if weight.role in ("embedding", "other") else pp - 1] += one
            continue
        if pp == 1:
            result[0] += one * len(weight.layers)
            continue
        edges = [bisect_left(weight.layers, start) for start in starts]
        for stage in range(pp):
            result[stage] += one * (edges[stage + 1] - edges[stage])
    return tuple(result)


def tensor_bytes(weight: Weight, layers: tuple[Layer, ...], storage: Storage, split: Split) -> int:
    """What all tensors of one entry take on one rank, in one layer."""
    shape, count = _local(weight, layers, split, storage)
    if weight.dtype is not None or (weight.role == "router" and storage.router_float32):
        return count * math.prod(shape) * DTYPE_BYTES[weight.dtype or "float32"]
    quantized = weight.quantized or (weight.role == "head" and storage.quantized_head)
    if quantized and storage.precision.quantized and len(shape) == 2:
        return count * _linear_bytes(storage, weight.role, _padded(shape, weight.role, storage.alignment))
    return count * math.prod(shape) * storage.dtype_bytes


def _local(weight: Weight, layers: tuple[Layer, ...], split: Split, storage: Storage) -> tuple[tuple[int, ...], int]:
    """Shape and number of the tensors that a rank has of an entry."""
    out, *rest = weight.shape
    tp, role = split.tensor, weight.role
    if role in ("column", "query", "head") or (role == "embedding" and storage.parallel_embedding):
        return (_share(out, tp), *rest), weight.count
    if role == "key_value":
        attention = layers[weight.layers[0]].attention if weight.layers else None
        heads = attention.kv_heads if attention else tp
        return (out // heads * max(1, _share(heads, tp)), *rest), weight.count
    if role in ("row", "attention_out"):
        return (out, *(_share(size, tp) for size in rest)), weight.count
    experts = _share(weight.count, split.moe_expert)
    if role == "expert_column":
        return (_share(out, split.moe_tensor), *rest), experts
    if role == "expert_row":
        return (out, *(_share(size, split.moe_tensor) for size in rest)), experts
    return weight.shape, experts if "experts." in weight.name else weight.count


def _padded(shape: tuple[int, ...], role: str, alignment: int) -> tuple[int, int]:
    out, into = shape
    if role in _ROW_PARALLEL:
        return out, _share(into, alignment) * alignment
    return _share(out, alignment) * alignment, into


def _linear_bytes(storage: Storage, role: str, shape: tuple[int, int]) -> int:
    """A quantised linear with its scales.

    What is scaled per input is counted once for a fused q, k and v; SmoothQuant has it only where the input isn't a
    norm's output, which takes the scale itself.
    """
    precision, group = storage.precision, storage.group_size
    total = precision.linear_bytes(*shape, shape[1] if group is not None and group < 1 else group)
    smoothed = precision.scheme == "smoothquant" and role not in _ROW_PARALLEL
    if role == "key_value" or smoothed:
        total -= precision.scale_bytes_per_input * shape[1]
    return total


def _share(size: int, parts: int) -> int:
    return -(-size // parts)


@lru_cache(maxsize=4096)
def rope_bytes(spec: ModelSpec) -> int:
    """The table of sines and cosines that an engine holds as a constant: max_position_embeddings rows of float32, as
    wide as the part of a head that is turned; one for each kind of rotary embedding.

    Source: "Total Weights Memory" of a Llama-3-8B of 1,048,576 positions is its tensors and 536,870,912 bytes.
    """
    tables = {}
    for layer in dict.fromkeys(spec.layers):
        attention = layer.attention
        if attention is None or attention.rope is None:
            continue
        width = attention.mla.qk_rope_head_dim if attention.mla else attention.head_dim
        tables[attention.rope, width] = int(width * attention.rope.partial_factor)
    return spec.max_position_embeddings * _FLOAT32 * sum(tables.values())
