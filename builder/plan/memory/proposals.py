"""What would fit instead: the smallest number of GPUs, the largest limits that leave room, and other precisions.

A proposal counts as working where even the cautious end of the estimate holds a full sequence, so that following it
doesn't lead to the next failure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder import catalog
from builder.catalog import Precision
from builder.plan.memory.estimate import Demand, memory
from builder.plan.memory.of_unit import demand_of, is_legal
from builder.plan.memory.weights import Split

if TYPE_CHECKING:
    from builder.plan.unit import Unit

_MOST_TENSOR_RANKS = 64
_TOKENS_STEP = 256

MOST_NUM_TOKENS = 16_384
"""Above it trtllm-build warns: larger passes aren't faster."""


@dataclass(frozen=True)
class Proposals:
    """None, or nothing, where no value works.

    tensor: the smallest tensor-parallel size. max_batch_size: the largest of which all sequences have max_seq_len.
    max_num_tokens: the largest that leaves a full sequence, up to 16,384. precisions: those that the toolchain runs on
    the GPU and that can be made of the source, and that fit with the split as it is, the largest first.
    """

    tensor: int | None
    max_batch_size: int | None
    max_num_tokens: int | None
    precisions: tuple[str, ...]


def proposals(unit: Unit) -> Proposals:
    """For a unit; everything is None for a GPU whose memory isn't known."""
    demand = demand_of(unit)
    if demand.gpu_bytes is None:
        return Proposals(None, None, None, ())
    legal = is_legal(demand.spec, demand.split)
    return Proposals(
        smallest_tensor(demand),
        largest_batch(demand) if legal else None,
        largest_num_tokens(demand) if legal else None,
        tuple(fitting_precisions(demand, _can_be_made(unit))) if legal else (),
    )


def _can_be_made(unit: Unit) -> list[Precision]:
    """The precisions to choose from: run by the toolchain on the GPU, not denied to the model. None for a quantised
    source, of which no others can be made."""
    if unit.spec.quantization is not None:
        return []
    release, flow = unit.toolchain, unit.flow
    return [
        one
        for one in catalog.precisions().values()
        if not one.published_only
        and release.runs(one.name, unit.gpu, flow)
        and release.supports(unit.spec.architecture, one.name, flow) is not False
    ]


def holds_a_sequence(demand: Demand) -> bool:
    """Whether one full sequence fits, even at the cautious end."""
    found = memory(demand).sequences
    return found is not None and found.low > 0


def smallest_tensor(demand: Demand) -> int | None:
    """The smallest legal tensor-parallel size that works; the experts stay whole or split as they are."""
    for tp in range(1, _MOST_TENSOR_RANKS + 1):
        split = _with_tensor(demand.split, tp)
        if is_legal(demand.spec, split) and holds_a_sequence(replace(demand, split=split)):
            return tp
    return None


def largest_batch(demand: Demand) -> int | None:
    """The largest max_batch_size of which every sequence can be max_seq_len long at once."""
    one = memory(replace(demand, max_batch_size=1)).sequences
    if one is None or one.low == 0:
        return None

    def fits(batch: int) -> bool:
        found = memory(replace(demand, max_batch_size=batch)).sequences
        return found is not None and found.low >= batch

    return _largest(1, one.low, fits)


def largest_num_tokens(demand: Demand) -> int | None:
    """The largest max_num_tokens, in steps of 256, that leaves room for a full sequence."""
    most = min(MOST_NUM_TOKENS, demand.max_batch_size * demand.max_seq_len)

    def fits(steps: int) -> bool:
        return holds_a_sequence(replace(demand, max_num_tokens=min(most, steps * _TOKENS_STEP)))

    if not fits(1):
        return None
    return min(most, _largest(1, -(-most // _TOKENS_STEP), fits) * _TOKENS_STEP)


def fitting_precisions(demand: Demand, candidates: Sequence[Precision]) -> list[str]:
    """Those of the candidates with which the weights leave room for a sequence, the largest first.

    A precision's own dtype counts; quantised ones keep that of the demand for the rest.
    """
    fitting = []
    for precision in candidates:
        storage = replace(
            demand.storage,
            precision=precision,
            dtype=precision.dtype or _sixteen_bit(demand.storage.dtype),
            group_size=None,
        )
        if holds_a_sequence(replace(demand, storage=storage)):
            fitting.append(precision)
    return [one.name for one in sorted(fitting, key=lambda one: -one.bits)]


def _with_tensor(split: Split, tp: int) -> Split:
    if split.moe_expert > 1 and split.moe_tensor == 1:  # experts stay whole
        return replace(split, tensor=tp, moe_expert=tp)
    return replace(split, tensor=tp, moe_tensor=max(1, tp // split.moe_expert))


def _sixteen_bit(dtype: str) -> str:
    return "float16" if dtype == "float32" else dtype


def _largest(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """The largest number from `low`, which fits, to `high`; what is above one that doesn't fit doesn't either."""
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
