"""Rules on quantised weights that are split over ranks: whole groups of scales, and whole tiles of the kernels.

The dimensions that matter are the inputs of row-parallel linears: groups and tiles run along them. The widths are also
the outputs of the column-parallel linears before them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from builder.model.families import families
from builder.model.spec import ModelSpec
from builder.plan.findings import Problem, rule
from builder.plan.rules.alternatives import listed
from builder.plan.rules.parallelism import legal_tensor_parallel
from builder.plan.unit import Unit

_TENSOR = ("parallelism", "tensor")

TILE, TILE_W4A8 = 64, 128
"""Rows and columns of INT8 and INT4 weights come in tiles of this many.

Source: TensorRT-LLM tensorrt_llm/quantization/layers.py: WeightOnlyQuantRowLinear and
WeightOnlyGroupwiseQuantRowLinear pad to a multiple of it times tp.
"""


@dataclass(frozen=True)
class Dimension:
    """A size that is split over the tensor ranks, or over moe_tp_size ranks if it is an expert's.

    `weights`: how many weights one more of it would be, in all layers that have it.
    """

    name: str
    size: int
    expert: bool
    weights: int


@lru_cache(maxsize=4096)
def split_dimensions(spec: ModelSpec) -> tuple[Dimension, ...]:
    """The distinct sizes of a model that are split."""
    linears = 3 if families()[spec.model_type].gated else 2
    found: Counter[tuple[str, int, bool]] = Counter()
    for layer, layers in Counter(spec.layers).items():
        if attention := layer.attention:
            head = attention.mla.v_head_dim if attention.mla else attention.head_dim
            found["num_attention_heads * head_dim", attention.heads * head, False] += layers
        if layer.intermediate_size:
            found["intermediate_size", layer.intermediate_size, False] += linears * layers
        if experts := layer.experts:
            found["the experts' width", experts.intermediate_size, True] += linears * layers * experts.count
            if experts.shared_intermediate_size:
                found["the shared experts' width", experts.shared_intermediate_size, False] += linears * layers
    return tuple(Dimension(*key, weights=count * spec.hidden_size) for key, count in found.items())


def _split(unit: Unit) -> Iterator[tuple[Dimension, int]]:
    """The dimensions that divide evenly, each with its number of ranks; the others have findings of their own."""
    for dimension in split_dimensions(unit.spec):
        ranks = unit.moe_tensor if dimension.expert else unit.parallelism.tensor
        if dimension.size % ranks == 0:
            yield dimension, ranks


def _legal(unit: Unit, multiple: int) -> list[int]:
    """The tensor parallel sizes under which every rank has multiples of `multiple` of each dimension."""
    experts = unit.moe_expert
    return [
        tp
        for tp in legal_tensor_parallel(unit.spec)
        if all(
            dimension.size % (multiple * (max(1, tp // experts) if dimension.expert else tp)) == 0
            for dimension in split_dimensions(unit.spec)
        )
    ]


def _group(unit: Unit) -> int | None:
    """Inputs that share a scale: a group, or the side of a block."""
    found = unit.spec.quantization
    return unit.group_size or (found.block[1] if unit.as_published and found and found.block else None)


@rule("TP_GROUP_SIZE", "refuse")
def ranks_hold_whole_groups(unit: Unit) -> Iterator[Problem]:
    """With grouped scales each rank must hold whole groups: (size / tp) is a multiple of the group size.

    No source says whether FP8 blocks may be cut: that can be waived.
    """
    if unit.parallelism.tensor == 1 or unit.precision.group_size is None or (group := _group(unit)) is None:
        return
    for dimension, ranks in _split(unit):
        share = dimension.size // ranks
        if share % group:
            legal = _legal(unit, group)
            yield Problem(
                f"{dimension.name} {dimension.size} over {ranks} ranks is {share}, not a multiple of the group size "
                f"{group}: {dimension.size / group:g} groups can't be shared out whole",
                _TENSOR,
                f"use a tensor parallel size of {listed(legal)}"
                if legal
                else "use a precision without groups, such as fp8",
                {
                    "groups": dimension.size // group,
                    "group_size": group,
                    "valid_tp": legal,
                    "valid_pow2_tp": [tp for tp in legal if tp & (tp - 1) == 0],
                },
                severity="refuse-waivable" if unit.precision.scheme == "fp8" else None,
            )
            return


@rule("TP_QUANT_ALIGN", "warn")
def ranks_hold_whole_tiles(unit: Unit) -> Iterator[Problem]:
    """INT8 and INT4 weights come in tiles of 64 (W4A8: 128); a share that isn't a multiple is padded, or refused.

    The layers of weight-only precisions pad by themselves, which costs memory. Grouped checkpoints of ModelOpt can't be
    padded: TensorRT-LLM raises while it builds.
    """
    scheme = unit.precision.scheme
    if scheme not in ("weight-only", "grouped"):
        return
    tile = TILE_W4A8 if unit.precision.name == "w4a8-awq" else TILE
    for dimension, ranks in _split(unit):
        if dimension.size // ranks % tile:
            yield (_padded if scheme == "weight-only" else _refused)(unit, dimension, ranks, tile)
            return


def _padded(unit: Unit, dimension: Dimension, ranks: int, tile: int) -> Problem:
    aligned = _legal(unit, tile)
    becomes = -(-dimension.size // (tile * ranks)) * tile * ranks
    extra = (becomes - dimension.size) * dimension.weights * unit.precision.bits // 8
    return Problem(
        f"{_not_whole(dimension, ranks, tile)}: it will become {becomes}, {extra:,} bytes of zeros over all ranks",
        _TENSOR,
        f"tensor: {listed(aligned)} needs no padding" if aligned else "it works as it is; fp8 needs no padding",
        {"becomes": becomes, "padding_bytes": extra} | _values(dimension, ranks, tile, aligned),
    )


def _refused(unit: Unit, dimension: Dimension, ranks: int, tile: int) -> Problem:
    aligned = _legal(unit, tile)
    return Problem(
        f"{_not_whole(dimension, ranks, tile)}: kernels of {unit.precision.name} can't take it, and it can't be padded",
        _TENSOR,
        f"use a tensor parallel size of {listed(aligned)}" if aligned else "use int8-wo, which is padded, or fp8",
        _values(dimension, ranks, tile, aligned),
        severity="refuse",
    )


def _not_whole(dimension: Dimension, ranks: int, tile: int) -> str:
    share = dimension.size // ranks
    return f"{dimension.name} {dimension.size} over {ranks} ranks is {share}, not a multiple of {tile}"


def _values(dimension: Dimension, ranks: int, tile: int, aligned: list[int]) -> dict[str, object]:
    """The numbers of this split, and of the largest smaller one that is aligned."""
    share = dimension.size // ranks
    values: dict[str, object] = {"cols_per_rank": share, f"remainder_{tile}": share % tile, "aligned_tp": aligned}
    if nearest := max((tp for tp in aligned if tp < ranks), default=None):
        columns = dimension.size // nearest
        values |= {f"tp{nearest}_cols": columns, f"tp{nearest}_remainder_{tile}": columns % tile}
    return values
