"""Precisions of weights and of KV caches: names, spellings, bytes, and the hardware that can run them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from builder.catalog.loading import read_facts, record

AS_PUBLISHED = "as-published"
"""A recipe's word for "whatever the published checkpoint has"; the plan resolves it, it is no precision."""


@dataclass(frozen=True)
class Precision:
    """How weights are stored. `scale_bytes_*` count what a quantised linear has beside its weights."""

    name: str
    nim: str
    bits: int
    scheme: str
    hardware: tuple[str, ...]
    dtype: str | None = None
    quant_algo: str | None = None
    modelopt: str | None = None
    group_size: int | None = None
    group_rows: int = 1
    scale_bytes_per_group: int = 0
    scale_bytes_per_channel: int = 0
    scale_bytes_per_input: int = 0
    scale_bytes_per_tensor: int = 0
    calibrated: bool = False
    published_only: bool = False

    @property
    def quantized(self) -> bool:
        return self.quant_algo is not None

    def linear_bytes(self, out_features: int, in_features: int, group_size: int | None = None) -> int:
        """Bytes of one linear of this precision with its scales; whole groups, the last one may be partly filled.

        Source: the tensors of a quantised checkpoint, TensorRT-LLM llama/convert.py@04a2cacb.
        """
        weights = (out_features * in_features * self.bits + 7) // 8
        scales = (
            self.scale_bytes_per_channel * out_features
            + self.scale_bytes_per_input * in_features
            + self.scale_bytes_per_tensor
        )
        group = group_size or self.group_size
        if group:
            groups = -(-in_features // group) * -(-out_features // self.group_rows)
            scales += self.scale_bytes_per_group * groups
        return weights + scales


@dataclass(frozen=True)
class KvPrecision:
    """How keys and values are stored; `bytes` of one value, its share of the scales included."""

    name: str
    bytes: float
    hardware: tuple[str, ...]
    quant_algo: str | None = None
    modelopt: str | None = None


@cache
def _sheet() -> dict[str, Any]:
    return read_facts("precisions.yaml")


@cache
def precisions() -> Mapping[str, Precision]:
    entries = _sheet()["weights"]
    return {name: Precision(name=name, **record(entry)) for name, entry in entries.items()}


@cache
def kv_precisions() -> Mapping[str, KvPrecision]:
    entries = _sheet()["kv_cache"]
    return {name: KvPrecision(name=name, **record(entry)) for name, entry in entries.items()}
