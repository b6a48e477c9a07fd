"""What would work instead: the legal values that findings suggest, and the conditions that rules share."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from builder import catalog
from builder.catalog import Gpu, Toolchain
from builder.plan.unit import Unit


def usable(unit: Unit) -> bool:
    """Whether the toolchain can be asked what it does for this unit: it is in use, has the flow and is for the SKU.

    Where it isn't, one finding says so, and what the toolchain would do with the rest doesn't matter.
    """
    toolchain = unit.toolchain
    return (
        toolchain.retired is None
        and unit.settings.flow in toolchain.flows
        and (not toolchain.skus or unit.gpu.name in toolchain.skus)
    )


def knows_gpu(unit: Unit) -> bool:
    """Whether some precision of the toolchain runs on the GPU, or might."""
    return _knows_gpu(unit.toolchain.name, unit.settings.flow, unit.gpu.compute_capability or unit.gpu.name)


@lru_cache(maxsize=1024)
def _knows_gpu(toolchain: str, flow: str, where: str) -> bool:
    release = catalog.toolchains()[toolchain]
    tables = (release.precisions.get(flow, {}), release.unknown.get(flow, {}))
    return any(where in places for table in tables for places in table.values())


def runnable(unit: Unit) -> list[str]:
    """The weight precisions that the toolchain runs on the unit's GPU, and doesn't deny the unit's model."""
    return list(_runnable(unit.toolchain.name, unit.settings.flow, unit.gpu.name, unit.spec.architecture))


@lru_cache(maxsize=4096)
def _runnable(toolchain: str, flow: str, sku: str, architecture: str) -> tuple[str, ...]:
    release, gpu = catalog.toolchains()[toolchain], catalog.gpus()[sku]
    return tuple(
        name
        for name in catalog.precisions()
        if release.runs(name, gpu, flow) and release.supports(architecture, name, flow) is not False
    )


def offer(unit: Unit) -> str:
    """A sentence with the precisions that would run; those that are only ever taken as published are marked."""
    if unit.toolchain.retired is not None:
        return "choose a toolchain in use first"
    names = runnable(unit)
    if not names:
        return f"{unit.toolchain.name} runs nothing on {unit.gpu.name}: use another SKU or toolchain"
    published = [name for name in names if catalog.precisions()[name].published_only]
    made = [name for name in names if name not in published]
    text = f"on {unit.gpu.name} {unit.toolchain.name} runs {listed(made)}"
    return text + (f", and of published checkpoints also {listed(published)}" if published else "")


@lru_cache(maxsize=256)
def newest_with(flow: str, architecture: str | None = None) -> Toolchain | None:
    """The newest toolchain in use that has a flow, and knows an architecture in it; a stable one if there is one."""
    found = [
        release
        for release in catalog.toolchains().values()
        if flow in release.flows and not release.retired and not release.skus
        if architecture is None or architecture in release.architectures.get(flow, ())
    ]
    stable = [release for release in found if not catalog.parse_version(release.version).is_prerelease]
    return next(reversed(stable or found), None)


def described(gpu: Gpu) -> str:
    """The card by its product name and SM, as a reader of its data sheet knows it."""
    return f"{gpu.product} (SM {gpu.compute_capability})" if gpu.compute_capability else gpu.product


@lru_cache(maxsize=64)
def sm(capability: str) -> tuple[int, ...]:
    """A compute capability, comparable: 10.0 is above 9.0."""
    return tuple(int(part) for part in capability.split("."))


def listed(items: Iterable[object], last: str = "or") -> str:
    """`a, b or c`."""
    words = [str(item) for item in items]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}" if words else "none"
