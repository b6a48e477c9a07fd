"""Rules on the model itself: whether the toolchain knows it, and what becomes of its numbers."""

from __future__ import annotations

from collections.abc import Iterator

from builder import catalog
from builder.model.inventory import parameter_count
from builder.model.layout import not_covered
from builder.model.stored import stored_bytes
from builder.plan.findings import Problem, rule
from builder.plan.rules.alternatives import listed, newest_with, usable
from builder.plan.unit import Unit

_SOURCE = ("model", "source")
_WEIGHTS = ("precision", "weights")


@rule("ARCHITECTURE_UNSUPPORTED", "refuse")
def toolchain_knows_the_architecture(unit: Unit) -> Iterator[Problem]:
    """The flow has a class for the model's architecture; the reference model is for those that we convert ourselves."""
    name, release = unit.spec.architecture, unit.toolchain
    known = release.architectures.get(unit.flow, ())
    if name in known:
        if unit.gpu.is_cpu and (reason := not_covered(unit.spec)) is not None:
            yield Problem(
                f"the reference model, which stands for an engine on cpu, can't run it: {reason}",
                _SOURCE,
                "leave the target cpu out",
            )
        return
    if not usable(unit):
        return
    yield Problem(
        f"the {unit.flow} flow of {release.name} doesn't know the architecture {name}",
        _SOURCE,
        "leave the target cpu out" if unit.gpu.is_cpu else _elsewhere(unit),
        {"architecture": name, "model_type": unit.spec.model_type},
    )


def _elsewhere(unit: Unit) -> str:
    """Another flow of the release, or another release."""
    name, release = unit.spec.architecture, unit.toolchain
    other = "pytorch" if unit.flow == "engine" else "engine"
    if name in release.architectures.get(other, ()):
        return f"use flow: {other}, which knows it"
    found = [(flow, newest_with(flow, name)) for flow in (unit.flow, other)]
    places = [f"toolchain: {newer.name} with flow: {flow}" for flow, newer in found if newer]
    if places:
        return f"use {listed(places)}"
    close = catalog.did_you_mean(name, release.architectures.get(unit.flow, ()))
    return f"no release in the catalog knows it; {close[:200]}"


@rule("TEXT_TOWER_ONLY", "warn")
def whole_model_is_built(unit: Unit) -> Iterator[Problem]:
    """Of a multimodal model only the part that reads and writes text is planned."""
    if unit.spec.towers:
        yield Problem(
            f"{unit.spec.architecture} also has {listed(unit.spec.towers, 'and')}: sizes, memory and limits here are "
            "those of its text part",
            _SOURCE,
            "leave room for the rest, or use a model for text only",
            {"towers": list(unit.spec.towers)},
        )


@rule("CLASS_DEFAULT", "warn")
def numbers_are_those_of_the_file(unit: Unit) -> Iterator[Problem]:
    """config.json leaves numbers to the defaults of its class in transformers: other readers may take others."""
    taken = unit.spec.assumed
    if taken:
        yield Problem(
            f"config.json doesn't say {listed((f'{key} {value:.15g}' for key, value in taken.items()), 'and')}: "
            f"taken from the defaults of {unit.spec.model_type} in transformers",
            _SOURCE,
            "nothing needs to be done if the model was made so; else write the values into its config.json",
            {"defaults": dict(taken)},
        )


@rule("NO_END_TOKEN", "refuse")
def answers_can_end(unit: Unit) -> Iterator[Problem]:
    """The model names a token that ends an answer."""
    if not unit.spec.eos_token_ids:
        yield Problem(
            "neither config.json nor generation_config.json names an eos_token_id: answers would never end",
            _SOURCE,
            "add eos_token_id to the model's config.json",
        )


@rule("FP32_SOURCE", "warn")
def source_is_not_float32(unit: Unit) -> Iterator[Problem]:
    """A float32 source is downloaded at twice the size, and rounded unless the recipe keeps it, at twice the memory."""
    spec = unit.spec
    if spec.dtype != "float32" or (unit.gpu.is_cpu and unit.dtype == "float32"):
        return
    download, half = stored_bytes(spec) or 4 * parameter_count(spec), 2 * parameter_count(spec)
    kept = unit.dtype == "float32"
    yield Problem(
        f"the weights are stored as float32 ({download:,} bytes) and "
        + (
            f"stay so: twice the memory of 16 bits ({half:,} bytes)"
            if kept
            else f"will be rounded to {unit.dtype} ({half:,} bytes in 16 bits)"
        ),
        _WEIGHTS,
        "write precision.weights: bf16, which has the range of float32, or fp16"
        if kept or unit.dtype == "float16"
        else "nothing needs to be done if this is meant",
        {"download_bytes": download, "engine_bytes_fp16": half, "dtype": unit.dtype, "source": spec.dtype},
    )


@rule("DTYPE_CHANGE", "warn")
def values_keep_their_format(unit: Unit) -> Iterator[Problem]:
    """The recipe asks for another 16-bit format than the source has: range or precision is lost."""
    source, dtype = unit.spec.dtype, unit.dtype
    if dtype == source or source == "float32":
        return
    lost = {
        "float16": "bfloat16 reaches 3.4e38, float16 only 65,504: larger values become infinite",
        "bfloat16": "float16 has 11 significant bits, bfloat16 only 8",
    }
    yield Problem(
        f"the weights are stored as {source} and will be converted to {dtype}: "
        + lost.get(dtype, "that takes twice the memory and adds nothing"),
        _WEIGHTS,
        f"keep {source} unless this is meant",
        {"source": source, "dtype": dtype},
    )
