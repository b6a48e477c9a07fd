"""Triton's containers with TensorRT-LLM: which versions each holds, and whether an engine can be loaded in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from packaging.version import Version

from builder.catalog.loading import read_facts
from builder.catalog.versions import parse

_GB = 10**9


@dataclass(frozen=True)
class Container:
    """One container; None where no source states a version or the size."""

    release: str
    image: str
    trtllm: str
    tensorrt: str | None = None
    cuda: str | None = None
    driver: str | None = None
    python: str | None = None
    size_bytes: int | None = None


@cache
def containers() -> Mapping[str, Container]:
    """The containers by release ("25.12"), newest first."""
    sheet = read_facts("containers.yaml")
    result = {}
    for release, entry in sheet["containers"].items():
        size = entry.pop("size_gb", None)
        result[release] = Container(
            release=release,
            image=f"{sheet['image']}:{release}{sheet['suffix']}",
            size_bytes=None if size is None else round(size * _GB),
            **entry,
        )
    return MappingProxyType(result)


def container_of_image(reference: str) -> Container | None:
    """The container that an image reference names, on NVIDIA's registry or a mirror of it; None for another image."""
    tagged = re.fullmatch(r"(?:.+/)?tritonserver:(\d\d\.\d\d)-trtllm-python-py3(?:@.+)?", reference)
    return containers().get(tagged[1]) if tagged else None


def containers_with(trtllm: str) -> tuple[Container, ...]:
    """The containers that hold a version of TensorRT-LLM, newest first. Raises UsageError (BAD_VERSION)."""
    version = parse(trtllm)
    return tuple(container for container in containers().values() if parse(container.trtllm) == version)


def mismatch(trtllm: str | None, tensorrt: str | None, container: Container) -> str | None:
    """Why an engine of these versions can't be loaded in a container; None where nothing known speaks against it.

    It continues a sentence about the engine: "made by TensorRT-LLM 0.10.0, but Triton's container 24.03 has …".

    TensorRT-LLM must be the same version. TensorRT too, where a version with fewer parts stands for all that
    begin with it ("10.0.1" and "10.0.1.6"), as some sources leave the last one out. Raises UsageError (BAD_VERSION).
    """
    made, held = [], []
    if trtllm is not None and parse(trtllm) != parse(container.trtllm):
        made.append(f"TensorRT-LLM {trtllm}")
        held.append(f"TensorRT-LLM {container.trtllm}")
    if tensorrt is not None and container.tensorrt is not None and not _same(tensorrt, container.tensorrt):
        made.append(f"TensorRT {tensorrt}")
        held.append(f"TensorRT {container.tensorrt}")
    if not made:
        return None
    return f"made by {' and '.join(made)}, but Triton's container {container.release} has {' and '.join(held)}"


def _same(one: str, other: str) -> bool:
    first, second = sorted((parse(one), parse(other)), key=lambda version: len(version.release))
    if len(first.release) < 3 or _suffix(first) != _suffix(second):
        return first == second
    return second.release[: len(first.release)] == first.release


def _suffix(version: Version) -> tuple[object, ...]:
    return (version.epoch, version.pre, version.post, version.dev, version.local)
