"""Limits and abilities of registries, so that a layer that can't be pushed is found before it is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from types import MappingProxyType

from builder.catalog.loading import read_facts, record


@dataclass(frozen=True)
class RegistryLimits:
    """What one registry takes, in bytes and seconds. None: no source states it."""

    name: str
    hosts: tuple[str, ...] = ()
    max_layer_bytes: int | None = None
    min_part_bytes: int | None = None
    max_part_bytes: int | None = None
    max_parts: int | None = None
    upload_seconds: int | None = None
    token_seconds: int | None = None
    chunked: bool | None = None
    referrers: bool | None = None
    note: str | None = None

    @property
    def largest_layer_bytes(self) -> int | None:
        """The largest layer by any of the limits."""
        parts = None if self.max_part_bytes is None or self.max_parts is None else self.max_part_bytes * self.max_parts
        return min((limit for limit in (self.max_layer_bytes, parts) if limit is not None), default=None)

    def min_bytes_per_second(self, layer_bytes: int) -> float | None:
        """The rate that uploads a layer within the registry's time limit; None where it has none."""
        return None if self.upload_seconds is None else layer_bytes / self.upload_seconds


@cache
def registries() -> Mapping[str, RegistryLimits]:
    return MappingProxyType(
        {name: RegistryLimits(name=name, **record(entry)) for name, entry in read_facts("registries.yaml").items()}
    )


def registry_limits(host: str) -> RegistryLimits | None:
    """The limits of the registry at a host ("ghcr.io", "localhost:5000"); None for one that isn't known."""
    name, _, port = host.lower().rpartition(":")
    name = name if name and port.isdigit() else host.lower()
    for limits in registries().values():
        if any(fnmatchcase(name, pattern) for pattern in limits.hosts):
            return limits
    return None
