"""What is known of releases that can't be used: without engines, retired, or not in the catalog at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from builder.catalog.loading import read_facts, record
from builder.catalog.toolchains import Toolchain, latest_engine_toolchain, toolchains
from builder.catalog.versions import parse
from builder.catalog.words import did_you_mean
from builder.errors import UsageError

PREFIX = "trtllm-"


@dataclass(frozen=True)
class EngineRemoval:
    """The end of the engine flow: the first release without it, NVIDIA's guide, and the programs that are left."""

    since: str
    last_prerelease: str
    guide: str
    removed: tuple[str, ...]
    console_scripts_left: tuple[str, ...]


@dataclass(frozen=True)
class Unlisted:
    """A toolchain that isn't in the catalog: what can be said of it, and the releases nearest to it that are.

    `engines`: whether the release compiles engines; None where the word names no release.
    """

    message: str
    nearest: tuple[str, ...]
    engines: bool | None


@cache
def engine_removal() -> EngineRemoval:
    return EngineRemoval(**record(read_facts("engine_removal.yaml")))


def has_engines(version: str) -> bool:
    """Whether a TensorRT-LLM release has the engine flow. Raises UsageError for what is no version."""
    return parse(version) < parse(engine_removal().since)


def engine_refusal(toolchain: Toolchain) -> str | None:
    """Why a toolchain can't compile engines, and what can; None where it can."""
    if "engine" in toolchain.flows:
        return toolchain.retired
    removal = engine_removal()
    last = latest_engine_toolchain().name
    return (
        f"{toolchain.name} can't compile engines: TensorRT-LLM removed the TensorRT backend in {removal.since}. "
        f"The last toolchain with engines is {last}; otherwise use flow: pytorch. See {removal.guide}"
    )


def unlisted(name: str) -> Unlisted:
    """What is known of a toolchain's name that isn't in the catalog."""
    try:
        version = parse(name.removeprefix(PREFIX))
    except UsageError:
        return Unlisted(f"{name!r} is no toolchain; {did_you_mean(name, toolchains())}", (), None)
    releases = [one for one in toolchains() if one.startswith(PREFIX)]
    for written in releases:
        if parse(written.removeprefix(PREFIX)) == version:
            return Unlisted(f"{name!r} is written {written}", (written,), "engine" in toolchains()[written].flows)
    below = [one for one in releases if parse(one.removeprefix(PREFIX)) < version][-1:]
    above = [one for one in releases if parse(one.removeprefix(PREFIX)) > version][:1]
    nearest = (*below, *above)
    if not below:
        place = f"older than every release in the catalog, the first of which is {above[0]}"
    elif not above:
        place = f"newer than every release in the catalog, the last of which is {below[0]}"
    else:
        place = f"between {below[0]} and {above[0]}"
    engines = has_engines(str(version))
    flow = "compiles engines" if engines else f"doesn't compile engines (removed in {engine_removal().since})"
    return Unlisted(f"TensorRT-LLM {version} isn't in the catalog: it is {place}, and {flow}", nearest, engines)


@cache
def _transformers() -> Mapping[str, Mapping[str, str]]:
    sheet: Mapping[str, Mapping[str, str]] = record(read_facts("transformers.yaml"))
    return sheet


def minimum_transformers(model_type: str, rope_type: str | None = None) -> str | None:
    """The first transformers release that has a `model_type` (and a rope type); None: no source, or older than all."""
    sheet = _transformers()
    known = [version for version in (sheet["models"].get(model_type), sheet["rope"].get(rope_type or "")) if version]
    return max(known, key=parse, default=None)
