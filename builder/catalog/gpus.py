"""GPUs, one record per SKU: the facts of gpus.yaml, and a record for each MIG slice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any

from builder.catalog.loading import read_facts, record

MIB = 1 << 20
GB = 10**9


@dataclass(frozen=True)
class Gpu:
    """One SKU. None where no source confirms a fact, and for `cpu`.

    `memory_mib` is what the driver reports, `nominal_gb` (10^9 bytes) what the product is sold as. `bandwidth_gb_s` is
    the memory's peak, `nvlink_gb_s` both directions together (None: no NVLink, or no source). `gpus_per_node` is the
    usual number in one server; 1 for a MIG slice, as slices can't reach one another. `products` are the names that
    the driver (NVML) uses, `product` the first of them. `mig` is the profile of a slice, `parent` the SKU that it is
    cut from.
    """

    name: str
    product: str
    platform: str = "linux/amd64"
    compute_capability: str | None = None
    architecture: str | None = None
    memory_mib: int | None = None
    nominal_gb: float | None = None
    bandwidth_gb_s: float | None = None
    nvlink_gb_s: float | None = None
    gpus_per_node: int | None = None
    pci_device_ids: tuple[str, ...] = ()
    products: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    mig: str | None = None
    parent: str | None = None

    @property
    def is_cpu(self) -> bool:
        return self.name == "cpu"

    @property
    def memory_bytes(self) -> int | None:
        """What the driver reports, in bytes; else the nominal size; None for `cpu`.

        The nominal size is the safe guess: of every GPU here that has both, the driver reports more.
        """
        if self.memory_mib is not None:
            return self.memory_mib * MIB
        return None if self.nominal_gb is None else int(self.nominal_gb * GB)

    @property
    def memory_exact(self) -> bool:
        """Whether `memory_bytes` is what the driver reports."""
        return self.memory_mib is not None


@cache
def gpus() -> Mapping[str, Gpu]:
    """All SKUs by name, GPUs in the order of the file and then MIG slices."""
    sheet = read_facts("gpus.yaml")
    whole = {name: _gpu(name, entry, sheet["architectures"]) for name, entry in sheet["gpus"].items()}
    slices = {gpu.name: gpu for group in sheet["mig"] for gpu in _slices(group, whole)}
    return MappingProxyType(whole | slices)


def _gpu(name: str, entry: Mapping[str, Any], architectures: Mapping[str, str]) -> Gpu:
    gpu = Gpu(name=name, **record(entry))
    architecture = architectures.get(gpu.compute_capability or "")
    return replace(gpu, architecture=architecture, products=gpu.products or (gpu.product,))


def _slices(group: Mapping[str, Any], whole: Mapping[str, Gpu]) -> Iterator[Gpu]:
    for parent in (whole[name] for name in group["parents"]):
        for profile, (memory_mib, eighths) in group["profiles"].items():
            bandwidth = parent.bandwidth_gb_s
            products = tuple(f"{product} MIG {profile}" for product in parent.products)
            yield replace(
                parent,
                name=f"{parent.name}-mig-{profile}",
                product=products[0],
                products=products,
                aliases=(),
                memory_mib=memory_mib,
                nominal_gb=float(profile.partition(".")[2].removesuffix("gb")),
                bandwidth_gb_s=None if bandwidth is None else bandwidth * eighths / 8,
                nvlink_gb_s=None,
                gpus_per_node=1,
                mig=profile,
                parent=parent.name,
            )
