"""Rules on mixtures of experts: how experts are spread over tensor ranks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from builder.model.spec import Experts, ModelSpec
from builder.plan.findings import Problem, rule
from builder.plan.rules.parallelism import distinct_layers, divisors
from builder.plan.unit import Unit

_EXPERT = ("parallelism", "expert")
_EXPERT_TENSOR = ("parallelism", "expert_tensor")


@lru_cache(maxsize=4096)
def kinds_of_experts(spec: ModelSpec) -> tuple[Experts, ...]:
    return tuple(layer.experts for layer in distinct_layers(spec) if layer.experts)


@lru_cache(maxsize=4096)
def legal_pairs(spec: ModelSpec, tp: int) -> tuple[tuple[int, int], ...]:
    """(moe_tp_size, moe_ep_size) whose product is tp, that divide the width and the number of experts."""
    return tuple(
        (tp // expert, expert)
        for expert in divisors(tp)
        if all(
            kind.count % expert == 0 and kind.intermediate_size % (tp // expert) == 0 for kind in kinds_of_experts(spec)
        )
    )


def _pairs(unit: Unit) -> list[list[int]]:
    return [list(pair) for pair in legal_pairs(unit.spec, unit.parallelism.tensor)]


def _suggestion(unit: Unit) -> str:
    pairs = legal_pairs(unit.spec, unit.parallelism.tensor)
    if not pairs:
        return "use another tensor parallel size"
    return "use " + "; ".join(f"expert: {expert} with expert_tensor: {tensor}" for tensor, expert in pairs)


@rule("MOE_PARALLEL_PRODUCT", "refuse")
def expert_sizes_multiply_to_tensor(unit: Unit) -> Iterator[Problem]:
    """moe_tp_size * moe_ep_size = tp_size."""
    split = unit.parallelism
    if (split.expert is None and split.expert_tensor is None) or not kinds_of_experts(unit.spec):
        return
    if unit.moe_expert * unit.moe_tensor != split.tensor:
        given = split.expert and split.expert_tensor
        yield Problem(
            f"moe_tp_size {unit.moe_tensor} * moe_ep_size {unit.moe_expert} is {unit.moe_tensor * unit.moe_expert}, "
            f"not the tensor parallel size {split.tensor}"
            + ("" if given else f": {split.expert or split.expert_tensor} doesn't divide it"),
            _EXPERT if split.expert else _EXPERT_TENSOR,
            _suggestion(unit),
            {"legal_pairs": _pairs(unit)},
        )


@rule("MOE_EXPERTS", "refuse")
def experts_divide_evenly(unit: Unit) -> Iterator[Problem]:
    """moe_ep_size divides the number of experts: each rank holds whole ones."""
    size = unit.parallelism.expert or 1
    if size == 1 and unit.parallelism.expert_tensor is None:
        return
    size = unit.moe_expert
    for kind in kinds_of_experts(unit.spec):
        if kind.count % size:
            yield Problem(
                f"{kind.count} experts can't be spread over moe_ep_size {size} ranks",
                _EXPERT,
                _suggestion(unit),
                {"experts": kind.count, "legal_pairs": _pairs(unit)},
            )
            return


@rule("MOE_WIDTH", "refuse")
def expert_width_divides_evenly(unit: Unit) -> Iterator[Problem]:
    """moe_tp_size divides the width of an expert. Without expert sizes it is the tensor parallel size."""
    if unit.parallelism.tensor == 1:
        return
    size = unit.moe_tensor
    for kind in kinds_of_experts(unit.spec):
        if kind.intermediate_size % size:
            yield Problem(
                f"experts of width {kind.intermediate_size} can't be split over moe_tp_size {size} ranks",
                _EXPERT_TENSOR,
                _suggestion(unit),
                {"width": kind.intermediate_size, "legal_pairs": _pairs(unit)},
            )
            return


@rule("EXPERTS_IN_DENSE_MODEL", "warn")
def dense_model_has_no_expert_sizes(unit: Unit) -> Iterator[Problem]:
    """Expert parallelism of a model without experts has no effect."""
    split = unit.parallelism
    if (split.expert or split.expert_tensor) and not kinds_of_experts(unit.spec):
        yield Problem(
            f"{unit.spec.architecture} has no experts: expert parallelism has no effect",
            _EXPERT if split.expert else _EXPERT_TENSOR,
            "remove parallelism.expert and parallelism.expert_tensor",
        )


@rule("EXPERT_WITH_CONTEXT", "refuse")
def expert_and_context_parallelism_exclude_each_other(unit: Unit) -> Iterator[Problem]:
    """TensorRT-LLM has no expert parallelism together with context parallelism."""
    split = unit.parallelism
    if split.context > 1 and unit.moe_expert > 1:
        yield Problem(
            f"expert parallelism (moe_ep_size {unit.moe_expert}) doesn't go with context parallelism ({split.context})",
            _EXPERT if split.expert else ("parallelism", "context"),
            "use one of them",
        )
