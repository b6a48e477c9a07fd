"""Facts as data: GPUs, toolchains and precisions, as typed records over the YAML files beside this one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml


@dataclass(frozen=True)
class Gpu:
    """One SKU. `memory_mib` is what the driver reports; None where no source confirms a fact, and for `cpu`."""

    name: str
    product: str
    platform: str
    compute_capability: str | None = None
    memory_mib: int | None = None
    pci_device_ids: tuple[str, ...] = ()

    @property
    def is_cpu(self) -> bool:
        return self.name == "cpu"


@dataclass(frozen=True)
class Precision:
    """A weight precision: TensorRT-LLM's dtype and quant_algo, NIM's spelling, bits per weight."""

    name: str
    dtype: str
    quant_algo: str | None
    nim: str
    bits: int


@dataclass(frozen=True)
class Toolchain:
    """One TensorRT-LLM release (or `reference`): its images, versions and abilities.

    `precisions` maps a precision name to the SKUs (`cpu`) or compute capabilities on which it runs.
    """

    name: str
    flows: tuple[str, ...]
    precisions: Mapping[str, tuple[str, ...]]
    architectures: tuple[str, ...]
    backend: str
    skus: tuple[str, ...] = ()
    build_image: str | None = None
    serving_image: str | None = None
    tensorrt: str | None = None
    cuda: str | None = None
    driver: str | None = None
    python: str | None = None

    def runs(self, precision: str, gpu: Gpu) -> bool:
        """Whether this release runs a weight precision on a GPU, as far as a source says so."""
        return (gpu.compute_capability or gpu.name) in self.precisions.get(precision, ())


def _read(name: str) -> dict[str, Any]:
    text = files(__name__).joinpath(name).read_text()
    data: dict[str, Any] = yaml.safe_load(text)
    return data


def _record(data: dict[str, Any]) -> dict[str, Any]:
    """A fact sheet's entry as keyword arguments: without its sources, lists made immutable."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in data.items() if key != "sources"}


@cache
def gpus() -> Mapping[str, Gpu]:
    return {name: Gpu(name=name, **_record(entry)) for name, entry in _read("gpus.yaml").items()}


@cache
def precisions() -> Mapping[str, Precision]:
    return {name: Precision(name=name, **entry) for name, entry in _read("precisions.yaml").items()}


@cache
def toolchains() -> Mapping[str, Toolchain]:
    result = {}
    for path in sorted(files(__name__).joinpath("toolchains").iterdir(), key=lambda path: path.name):
        entry = _record(_read(f"toolchains/{path.name}"))
        entry["precisions"] = {name: tuple(where) for name, where in entry["precisions"].items()}
        result[entry["name"]] = Toolchain(**entry)
    return result


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A sentence for an unknown word: the nearest known one, or all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(names)}"
