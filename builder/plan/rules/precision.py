"""Rules on number formats: what a card can do at all, what a release does on it, and for which models.

Support is a set of compute capabilities (SM) per precision and release, never a minimum: the sets are in the catalog.
"""

from __future__ import annotations

from collections.abc import Iterator

from builder import catalog
from builder.catalog import Precision
from builder.plan.findings import Problem, rule
from builder.plan.rules.alternatives import described, knows_gpu, listed, newest_with, offer, runnable, sm, usable
from builder.plan.unit import Unit

_WEIGHTS = ("precision", "weights")
_KV_CACHE = ("precision", "kv_cache")

_LABELS = {
    "bf16": "BF16",
    "fp8": "FP8",
    "fp8-rowwise": "FP8 with a scale per row",
    "int8-sq": "INT8 SmoothQuant",
    "int4-awq": "INT4 AWQ",
    "w4a8-awq": "W4A8 AWQ, whose activations are FP8,",
    "int4-gptq": "INT4 GPTQ",
    "int8-gptq": "INT8 GPTQ",
    "nvfp4": "NVFP4",
    "mxfp4": "MXFP4",
    "mixed": "a checkpoint of mixed precisions",
}


def _too_old(unit: Unit, precision: Precision) -> bool:
    """Whether the card is older than any that can run the precision."""
    capability = unit.gpu.compute_capability
    if unit.precision.name != precision.name or capability is None or capability in precision.hardware:
        return False
    return sm(capability) < min(map(sm, precision.hardware))


def _needs(precision: Precision) -> str:
    """The SMs in words: "SM 8.9 or newer" where every newer one is in the set."""
    every = {capability for known in catalog.precisions().values() for capability in known.hardware}
    lowest = min(precision.hardware, key=sm)
    newer = {capability for capability in every if sm(capability) >= sm(lowest)}
    return f"SM {lowest} or newer" if newer <= {*precision.hardware} else f"SM {listed(precision.hardware)}"


def _card_too_old(precision: Precision) -> None:
    """Register the rule of one precision: cards older than the first that has its arithmetic."""
    label = _LABELS.get(precision.name, precision.name)

    def card_is_new_enough(unit: Unit) -> Iterator[Problem]:
        if _too_old(unit, precision):
            yield Problem(
                f"{described(unit.gpu)} can't run {precision.name} weights: {label} needs {_needs(precision)}",
                _WEIGHTS,
                offer(unit),
                {
                    "sku_sm": unit.gpu.compute_capability,
                    "min_sm": min(precision.hardware, key=sm),
                    "valid_precisions": runnable(unit),
                },
            )

    card_is_new_enough.__doc__ = f"Weights in {precision.name} need a card of {_needs(precision)}."
    rule(f"SM_TOO_OLD_FOR_{precision.name.upper().replace('-', '_')}", "refuse")(card_is_new_enough)


_OLDEST = min(sm(capability) for known in catalog.precisions().values() for capability in known.hardware)
for _precision in catalog.precisions().values():
    if _precision.name != "fp8-block" and min(map(sm, _precision.hardware)) > _OLDEST:
        _card_too_old(_precision)


@rule("SM_TOO_OLD_FOR_FP8_BLOCK", "refuse")
def card_has_block_scaled_fp8(unit: Unit) -> Iterator[Problem]:
    """FP8 with a scale per 128x128 block is another ability than per-tensor FP8, and newer."""
    precision = catalog.precisions()["fp8-block"]
    if not _too_old(unit, precision):
        return
    per_tensor = unit.gpu.compute_capability in catalog.precisions()["fp8"].hardware
    yield Problem(
        f"{described(unit.gpu)} can't run FP8 with a scale per block of 128x128 weights: that needs {_needs(precision)}"
        + ("; FP8 with one scale per tensor, which this card can do, is another format" if per_tensor else ""),
        _WEIGHTS,
        ("quantise the bf16 model to per-tensor fp8, or use it as bf16; " if per_tensor else "use the bf16 model; ")
        + offer(unit),
        {
            "sku_sm": unit.gpu.compute_capability,
            "min_sm": min(precision.hardware, key=sm),
            "block_scale_sms": list(precision.hardware),
            "per_tensor_fp8_ok": per_tensor,
            "valid_precisions": runnable(unit),
        },
    )


@rule("GPU_UNSUPPORTED", "refuse")
def toolchain_has_kernels_for_the_gpu(unit: Unit) -> Iterator[Problem]:
    """A release is compiled for a set of GPU architectures; on others nothing runs (Volta and Turing are gone)."""
    if knows_gpu(unit) or not usable(unit):
        return
    release = unit.toolchain
    places = {place for places in release.precisions.get(unit.flow, {}).values() for place in places}
    known = sorted(places, key=_place_order)
    yield Problem(
        f"{release.name} runs nothing on {described(unit.gpu)} in the {unit.flow} flow",
        ("sku",),
        f"use a card of SM {listed(known)}",
        {"sku_sm": unit.gpu.compute_capability, "supported_sms": known},
    )


def _place_order(place: str) -> tuple[int, ...]:
    return () if place == "cpu" else sm(place)


@rule("SM_UNSUPPORTED_PRECISION", "refuse")
def toolchain_runs_the_precision_on_the_gpu(unit: Unit) -> Iterator[Problem]:
    """The release runs the precision, but not on this architecture: its builder raises, or it has no kernels.

    Examples are INT8 and INT4 weights on SM 10.x, or FP8 rowwise on anything but SM 9.0.
    """
    name, release = unit.precision.name, unit.toolchain
    if release.runs(name, unit.gpu, unit.flow) is not False or not usable(unit) or not knows_gpu(unit):
        return
    stated = release.precisions.get(unit.flow, {}).get(name, ())
    places = (*stated, *release.unknown.get(unit.flow, {}).get(name, ()))
    if not places or _too_old(unit, unit.precision):
        return
    yield Problem(
        f"the {unit.flow} flow of {release.name} doesn't run {name} on {described(unit.gpu)}: "
        f"it {'does' if stated else 'may'} on SM {listed(stated or places, 'and')} only",
        _WEIGHTS,
        offer(unit),
        {"sku_sm": unit.gpu.compute_capability, "supported_sms": list(stated), "valid_precisions": runnable(unit)},
    )


@rule("PRECISION_UNSUPPORTED", "refuse")
def toolchain_has_the_precision(unit: Unit) -> Iterator[Problem]:
    """The flow has no such weight precision on any GPU."""
    name, release, flow = unit.precision.name, unit.toolchain, unit.flow
    if release.precisions.get(flow, {}).get(name) or release.unknown.get(flow, {}).get(name) or not usable(unit):
        return
    other = "pytorch" if flow == "engine" else "engine"
    found = newest_with(other)
    instead = name in found.precisions.get(other, {}) and found.runs(name, unit.gpu, other) if found else None
    yield Problem(
        f"the {flow} flow of {release.name} has no {name} weights",
        _WEIGHTS,
        (f"the {other} flow of {found.name} has; or: " if instead and found and not unit.gpu.is_cpu else "")
        + offer(unit),
        {"valid_precisions": runnable(unit)},
    )


@rule("PRECISION_UNCONFIRMED", "refuse-waivable")
def precision_is_known_to_run(unit: Unit) -> Iterator[Problem]:
    """No source says whether the release runs the precision on this GPU: it isn't guessed."""
    if unit.toolchain.runs(unit.precision.name, unit.gpu, unit.flow) is None and usable(unit):
        yield Problem(
            f"no source says whether the {unit.flow} flow of {unit.toolchain.name} runs {unit.precision.name} "
            f"on {described(unit.gpu)}",
            _WEIGHTS,
            f"if you have seen it work, waive PRECISION_UNCONFIRMED with the reason; {offer(unit)}",
            {"sku_sm": unit.gpu.compute_capability, "valid_precisions": runnable(unit)},
        )


@rule("KV_PRECISION_UNSUPPORTED", "refuse")
def toolchain_runs_the_kv_precision_on_the_gpu(unit: Unit) -> Iterator[Problem]:
    """The format of the KV cache doesn't run on this GPU: the builder raises for INT8 on SM 10.x, for example."""
    name, release = unit.kv_precision.name, unit.toolchain
    if release.runs_kv(name, unit.gpu, unit.flow) is not False or not usable(unit) or not knows_gpu(unit):
        return
    if _follows_weights(unit):
        return
    legal = _runnable_kv(unit)
    places = release.kv_precisions.get(unit.flow, {}).get(name, ())
    yield Problem(
        f"the {unit.flow} flow of {release.name} has no {name} KV cache on {described(unit.gpu)}"
        + (f": it has on SM {listed(places, 'and')} only" if places else ""),
        _KV_CACHE,
        f"use {listed(legal)}",
        {"sku_sm": unit.gpu.compute_capability, "supported_sms": list(places), "valid_kv_precisions": legal},
    )


@rule("KV_PRECISION_UNCONFIRMED", "refuse-waivable")
def kv_precision_is_known_to_run(unit: Unit) -> Iterator[Problem]:
    """No source says whether the release has this KV cache on this GPU."""
    name = unit.kv_precision.name
    if unit.toolchain.runs_kv(name, unit.gpu, unit.flow) is None and usable(unit) and not _follows_weights(unit):
        legal = _runnable_kv(unit)
        yield Problem(
            f"no source says whether the {unit.flow} flow of {unit.toolchain.name} has a {name} KV cache "
            f"on {described(unit.gpu)}",
            _KV_CACHE,
            f"if you have seen it work, waive KV_PRECISION_UNCONFIRMED with the reason; else use {listed(legal)}",
            {"sku_sm": unit.gpu.compute_capability, "valid_kv_precisions": legal},
        )


def _follows_weights(unit: Unit) -> bool:
    """Whether the cache has the format of unquantised weights: then the finding on the weights says it all."""
    return unit.kv_precision.quant_algo is None and unit.kv_precision.name == unit.precision.name


def _runnable_kv(unit: Unit) -> list[str]:
    return [name for name in catalog.kv_precisions() if unit.toolchain.runs_kv(name, unit.gpu, unit.flow)]


@rule("MODEL_PRECISION_UNSUPPORTED", "refuse-waivable")
def model_table_lists_the_precision(unit: Unit) -> Iterator[Problem]:
    """The release's table of models and precisions doesn't list the precision for the model's architecture."""
    name, architecture = unit.precision.name, unit.spec.architecture
    if unit.toolchain.supports(architecture, name, unit.flow) is False and usable(unit):
        row = unit.toolchain.model_precisions[unit.flow][architecture]
        yield Problem(
            f"the precision table of {unit.toolchain.name}, {unit.flow} flow, doesn't list {name} for {architecture}: "
            f"it lists {listed(row, 'and')}",
            _WEIGHTS,
            f"if you have seen it work, waive MODEL_PRECISION_UNSUPPORTED with the reason; {offer(unit)}",
            {"listed": list(row), "valid_precisions": runnable(unit)},
        )


@rule("MODEL_PRECISION_UNSTATED", "warn")
def model_table_has_a_row(unit: Unit) -> Iterator[Problem]:
    """The release's table of models and precisions says nothing of a quantised precision for this architecture."""
    if unit.precision.quant_algo is None or unit.gpu.is_cpu or not usable(unit):
        return
    name, release, architecture = unit.precision.name, unit.toolchain, unit.spec.architecture
    known = architecture in release.architectures.get(unit.flow, ())
    if known and release.supports(architecture, name, unit.flow) is None and release.runs(name, unit.gpu, unit.flow):
        yield Problem(
            f"the precision table of {release.name}, {unit.flow} flow, doesn't say if {architecture} runs as {name}",
            _WEIGHTS,
            "measure the quality of its answers before you serve them",
        )
