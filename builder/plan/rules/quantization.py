"""Rules on making a quantised checkpoint: groups, calibration, and what only published checkpoints have."""

from __future__ import annotations

from collections.abc import Iterator

from builder import catalog
from builder.model.weights import weights
from builder.plan.findings import Problem, rule
from builder.plan.rules.alternatives import listed, offer
from builder.plan.unit import Unit

_WEIGHTS = ("precision", "weights")

GROUPED_SIZES = (64, 128)
"""Inputs that share a scale in the kernels of INT4 weights. Source: TensorRT-LLM issue 988."""

GROUPED_SIZES_W4A8 = (128,)
"""Of INT4 weights with FP8 activations. Source: TensorRT-LLM tensorrt_llm/quantization/layers.py, 1.x: 64 raises."""


def supported_group_sizes(unit: Unit) -> tuple[int, ...]:
    """The group sizes that have kernels; empty for a precision without groups."""
    precision = unit.precision
    if precision.scheme == "grouped":
        return GROUPED_SIZES_W4A8 if precision.name == "w4a8-awq" else GROUPED_SIZES
    return (precision.group_size,) if precision.group_size else ()


@rule("GROUP_SIZE_UNSUPPORTED", "refuse")
def group_size_has_kernels(unit: Unit) -> Iterator[Problem]:
    """Kernels of grouped weights exist for a few group sizes only."""
    if unit.precision.group_size is None:
        return
    supported, size = supported_group_sizes(unit), unit.group_size
    if size in supported or (size is None and not unit.precision.name.endswith("-gptq")):
        return
    found = f"{size} weights share a scale" if size else "one scale per channel"
    yield Problem(
        f"{unit.precision.name} with group size {size or -1} ({found}) has no kernels: they take {listed(supported)}",
        ("precision", "group_size") if not unit.as_published else _WEIGHTS,
        f"publish the checkpoint with group size {listed(supported)}, or quantise the unquantised model here"
        if unit.as_published
        else f"use {listed(supported)}",
        {"group_size": size, "supported": list(supported)},
    )


@rule("GROUP_SIZE_MISFIT", "refuse")
def groups_fill_the_inputs(unit: Unit) -> Iterator[Problem]:
    """Weights that share a scale are neighbours along the inputs: no linear may have a part of a group left over.

    Source: ModelOpt's quantizers and exports raise for block sizes that don't divide the inputs.
    """
    size = unit.group_size
    if not unit.quantized_here or unit.precision.scheme not in ("grouped", "fp4") or size is None:
        return
    inputs = sorted({weight.shape[1] for weight in weights(unit.spec) if weight.quantized})
    if not (misfits := [number for number in inputs if number % size]):
        return
    fitting = [other for other in supported_group_sizes(unit) if not any(number % other for number in inputs)]
    yield Problem(
        f"linears of {listed(map(str, misfits), 'and')} inputs can't be cut into groups of {size} weights",
        ("precision", "group_size"),
        f"write precision.group_size: {listed(fitting)}" if fitting else "use fp8 or int8-sq, which have no groups",
        {"group_size": size, "inputs": inputs, "misfits": misfits, "fitting": fitting},
    )


@rule("GPTQ_DESC_ACT", "refuse")
def gptq_keeps_the_order_of_inputs(unit: Unit) -> Iterator[Problem]:
    """GPTQ with `desc_act` reorders the inputs; TensorRT-LLM's converters refuse it."""
    found = unit.spec.quantization
    if found is not None and found.desc_act:
        yield Problem(
            f"the checkpoint is {found.method} with desc_act: true: its inputs are reordered, which no converter reads",
            _WEIGHTS,
            "use a checkpoint that was made with desc_act: false, or the unquantised model",
            {"desc_act": True, "method": found.method},
        )


@rule("PRECISION_PUBLISHED_ONLY", "refuse")
def toolchain_can_make_the_precision(unit: Unit) -> Iterator[Problem]:
    """Some formats are made by their authors' own tools: they can be used as published, not made here."""
    if not unit.precision.published_only or unit.as_published or unit.spec.quantization is not None:
        return
    made = [name for name, known in catalog.precisions().items() if not known.published_only]
    yield Problem(
        f"{unit.precision.name} can't be made here, and the source is {unit.spec.dtype}",
        _WEIGHTS,
        f"name a source that is published so, with precision.weights: {catalog.AS_PUBLISHED}; "
        f"here can be made: {listed(made, 'and')}; {offer(unit)}",
    )


@rule("MODELOPT_RECIPE_UNUSED", "refuse")
def modelopt_recipe_is_read(unit: Unit) -> Iterator[Problem]:
    """A recipe of ModelOpt is read where the library itself quantises on the machine that builds.

    Source: TensorRT-LLM's quantize.py has no option for one.
    """
    if unit.settings.precision.modelopt_recipe is None or unit.maker == "modelopt":
        return
    if unit.quantized_here and unit.precision.scheme != "weight-only":
        yield Problem(
            "the release's own quantize.py takes no recipe of ModelOpt",
            ("precision", "modelopt_recipe"),
            "write precision.quantizer: host, or leave the recipe out",
        )
    else:
        yield Problem(
            f"nothing is quantised by ModelOpt for {unit.precision.name} weights: its recipe is not read",
            ("precision", "modelopt_recipe"),
            "write precision.modelopt_recipe: null in this target",
        )


@rule("CALIBRATION_REQUIRED", "refuse")
def calibration_data_is_named(unit: Unit) -> Iterator[Problem]:
    """Quantisation that measures needs text. The tool's default is downloaded when it runs: nothing would pin it."""
    if unit.settings.calibration is None and unit.calibrated_here:
        what = unit.precision.name if unit.precision.calibrated else f"the {unit.kv_precision.name} KV cache"
        yield Problem(
            f"{what} is measured on text, and the recipe names none; the tool's own, cnn_dailymail, would be "
            "downloaded while it runs, and no lock would hold it",
            _WEIGHTS if unit.precision.calibrated else ("precision", "kv_cache"),
            "name calibration.dataset, for example file:calibration/chat.jsonl: a few hundred texts like those that "
            "will be served",
        )


@rule("CALIBRATION_UNUSED", "warn")
def calibration_data_is_used(unit: Unit) -> Iterator[Problem]:
    """Calibration data that no target of the recipe measures anything with."""
    if unit.settings.calibration is None or unit.calibrated_here:
        return
    own = "calibration" in unit.recipe.document.data["targets"][unit.target]
    if own or (unit.target == 0 and not any(_may_measure(unit, index) for index in _targets(unit))):
        yield Problem(
            f"nothing of {unit.precision.name} weights with a {unit.kv_precision.name} KV cache is measured: "
            "the calibration data is not read",
            ("calibration",),
            "remove calibration, or choose a precision that is measured: "
            + listed(name for name, known in catalog.precisions().items() if known.calibrated),
        )


def _targets(unit: Unit) -> range:
    return range(len(unit.recipe.content.targets))


def _may_measure(unit: Unit, target: int) -> bool:
    asked = unit.recipe.settings(target).precision
    weights, cache = catalog.precisions().get(asked.weights), catalog.kv_precisions().get(asked.kv_cache)
    return (weights is not None and weights.calibrated) or (cache is not None and cache.quant_algo is not None)
