"""Rules on the TensorRT-LLM release itself: whether it is in use, has the flow, and matches the serving container."""

from __future__ import annotations

from collections.abc import Iterator

from builder import catalog
from builder.catalog import Container
from builder.plan.findings import Problem, rule
from builder.plan.rules.alternatives import listed, newest_with
from builder.plan.unit import Unit

_TOOLCHAIN = ("toolchain",)
_FLOW = ("flow",)


@rule("TOOLCHAIN_SKU", "refuse")
def toolchain_is_made_for_the_sku(unit: Unit) -> Iterator[Problem]:
    """The reference toolchain is for the SKU `cpu` only."""
    if unit.toolchain.skus and unit.gpu.name not in unit.toolchain.skus:
        yield Problem(
            f"the toolchain {unit.toolchain.name!r} is for {listed(unit.toolchain.skus, 'and')} only",
            _TOOLCHAIN,
            f"name a TensorRT-LLM release, such as toolchain: {catalog.latest_engine_toolchain().name}",
        )


@rule("TOOLCHAIN_RETIRED", "refuse")
def toolchain_is_in_use(unit: Unit) -> Iterator[Problem]:
    """Releases that are known by name only aren't built with."""
    if unit.toolchain.retired is not None:
        yield Problem(
            f"{unit.toolchain.name} isn't built with: {unit.toolchain.retired}",
            _TOOLCHAIN,
            f"use toolchain: {catalog.latest_engine_toolchain().name}",
        )


@rule("ENGINE_BACKEND_REMOVED", "refuse")
def toolchain_still_compiles_engines(unit: Unit) -> Iterator[Problem]:
    """Newer releases have no engine flow: no trtllm-build, no convert_checkpoint.py, no C++ backend for Triton."""
    if unit.flow != "engine" or "engine" in unit.toolchain.flows or unit.toolchain.skus:
        return
    last, removal = catalog.latest_engine_toolchain(), catalog.engine_removal()
    yield Problem(
        f"TensorRT-LLM {unit.toolchain.version} doesn't compile engines: {listed(removal.removed, 'and')} are gone "
        f"since {removal.since}, {listed(removal.console_scripts_left, 'and')} are left ({removal.guide})",
        _TOOLCHAIN,
        f"use toolchain: {last.name}, the last stable release with engines, or flow: pytorch, which needs no engine",
        {
            "console_scripts_left": list(removal.console_scripts_left),
            "removed_since": removal.since,
            "last_engine_toolchain": last.name,
        },
    )


@rule("FLOW_NOT_OFFERED", "refuse")
def toolchain_offers_the_flow(unit: Unit) -> Iterator[Problem]:
    """Releases before 1.0 have no stable PyTorch flow, and the reference model none at all."""
    release = unit.toolchain
    if unit.flow == "engine" or unit.flow in release.flows or release.retired:
        return
    found = newest_with(unit.flow)
    yield Problem(
        f"the toolchain {release.name!r} has no {unit.flow} flow, only {listed(release.flows, 'and')}",
        _FLOW,
        "use flow: engine for this target" + (f", or toolchain: {found.name}" if found and not unit.gpu.is_cpu else ""),
        {"flows": list(release.flows)},
    )


@rule("TRT_VERSION_MISMATCH", "refuse")
def container_has_the_version_of_the_engine(unit: Unit) -> Iterator[Problem]:
    """A Triton container loads only engines of its own TensorRT-LLM and TensorRT, to the last digit.

    In the PyTorch flow there is no engine; what differs is the release that options were checked for.
    """
    base = unit.settings.package.base
    if base == "none" or unit.gpu.is_cpu or (container := catalog.container_of_image(base)) is None:
        return
    release, engine = unit.toolchain, unit.flow == "engine"
    why = catalog.mismatch(release.version, release.tensorrt if engine else None, container)
    if why is None:
        return
    matching = catalog.containers_with(release.version)
    use = [f"{one.release} ({one.image})" for one in matching]
    if (its := f"trtllm-{container.trtllm}") in catalog.toolchains() and not catalog.toolchains()[its].retired:
        use.append(f"toolchain: {its}")
    yield Problem(
        f"the engine would be {why}: it can't be loaded there"
        if engine
        else f"the recipe was checked for TensorRT-LLM {release.version}, the container {container.release} has "
        f"{container.trtllm}",
        ("package", "base"),
        f"use {listed(use)}" if use else "no Triton container has this release: use another toolchain",
        {one.release: _versions(one) for one in (container, *matching)},
        severity=None if engine else "warn",
    )


def _versions(container: Container) -> str:
    return container.trtllm + (f" / TRT {container.tensorrt}" if container.tensorrt else "")


@rule("CONTAINER_UNKNOWN", "refuse-waivable")
def container_is_in_the_table(unit: Unit) -> Iterator[Problem]:
    """A Triton container that no table describes: which TensorRT it has isn't guessed."""
    base = unit.settings.package.base
    if base == "none" or unit.gpu.is_cpu or "/tritonserver:" not in base or catalog.container_of_image(base):
        return
    matching = catalog.containers_with(unit.toolchain.version) if unit.toolchain.version else ()
    names = [f"{one.release} ({one.image})" for one in matching]
    yield Problem(
        f"no table says which TensorRT-LLM and TensorRT {base} has",
        ("package", "base"),
        (f"use {listed(names)}; " if names else "")
        + "or waive CONTAINER_UNKNOWN with the reason, for example the versions that you read in it",
    )
