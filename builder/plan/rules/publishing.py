"""Rules on the registry: a file of an image is one layer at least, and registries limit layers.

Limits are in the catalog. An engine can't be cut in two: what doesn't fit into a layer isn't pushed there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from builder import catalog
from builder.catalog import RegistryLimits
from builder.plan.findings import Problem, rule
from builder.plan.memory import sizes
from builder.plan.memory.of_unit import is_legal, split_of, storage_of
from builder.plan.memory.sizes import rank_bytes
from builder.plan.memory.weights import rope_bytes, weight_bytes
from builder.plan.rules.conditions import compiles
from builder.plan.rules.parallelism import legal_tensor_parallel
from builder.plan.unit import Unit

_REPOSITORY = ("publish", "repository")
_MB, _GB = 10**6, 10**9

_SLOW = 5 * _MB
"""Bytes a second that an upload from a data centre can be expected to make."""


@lru_cache(maxsize=64)
def _limits(repository: str | None) -> RegistryLimits | None:
    """The limits of the registry that a repository is in; None for a local layout, and for one that isn't known."""
    if repository is None or repository.startswith("oci:"):
        return None
    return catalog.registry_limits(repository.partition("/")[0])


def _host(unit: Unit) -> str:
    return (unit.recipe.content.publish.repository or "").partition("/")[0]


def _largest_file(unit: Unit) -> int:
    """Bytes of the largest file of the image: an engine, or the largest file of the checkpoint as it is published.

    0 for a split over GPUs that isn't legal.
    """
    files = sizes(unit)
    if files is None:
        return 0
    if files.engine_bytes:
        return max(files.engine_bytes)
    published = [file.size for file in unit.lock.snapshot.files if file.kind == "weights"]
    return max(published) if published and unit.as_published else files.checkpoint_bytes


def _split_that_fits(unit: Unit, limit: int) -> tuple[int, int] | None:
    """The smallest larger tensor-parallel size of whose engines each fits, and the bytes of the largest of them."""
    split, storage, rope = split_of(unit), storage_of(unit), rope_bytes(unit.spec)
    for tensor in legal_tensor_parallel(unit.spec):
        wider = replace(split, tensor=tensor, moe_tensor=max(1, tensor // split.moe_expert))
        if tensor > split.tensor and is_legal(unit.spec, wider):
            size = max(weight_bytes(unit.spec, storage, wider)) + rope
            if size <= limit:
                return tensor, size
    return None


@rule("LAYER_TOO_LARGE", "refuse")
def layers_fit_the_registry(unit: Unit) -> Iterator[Problem]:
    """The largest file fits into a layer of the registry that the recipe publishes to.

    Of twice the ranks the values have what an even split gives, the least; `fitting_tensor` goes by what TensorRT-LLM
    writes, which keeps an embedding whole on every rank.
    """
    limits = _limits(unit.recipe.content.publish.repository)
    if limits is None or limits.max_layer_bytes is None:
        return
    largest, limit = _largest_file(unit), limits.max_layer_bytes
    if largest <= limit:
        return
    ways = ["another registry", "files outside of the image (a store, or S3)"]
    values: dict[str, object] = {"limit": limit, "file_bytes": largest, "host": _host(unit)}
    if compiles(unit):
        twice, half = 2 * unit.parallelism.tensor, max(rank_bytes(unit)) // 2
        values[f"tp{twice}_file_bytes"] = half
        if rate := limits.min_bytes_per_second(half):
            values[f"min_mb_per_s_tp{twice}"] = round(rate / _MB, 1)
        if split := _split_that_fits(unit, limit):
            values |= {"fitting_tensor": split[0], "fitting_file_bytes": split[1]}
            ways.insert(0, f"parallelism.tensor: {split[0]} (files of about {split[1] / _GB:.2f} GB)")
    if unit.precision.bits > 8:
        ways.insert(-2, "an 8-bit precision (fp8, int8-wo)")
    yield Problem(
        f"{_host(unit)} takes layers of up to {limit / _GB:g} GB, and the largest file of the image has "
        f"{largest / _GB:.2f} GB ({largest:,} bytes); a file can't be split over two layers",
        _REPOSITORY,
        f"use {', or '.join(ways)}",
        values,
    )


@rule("TOO_MANY_PARTS", "refuse")
def parts_fit_the_registry(unit: Unit) -> Iterator[Problem]:
    """Registries that take a layer in parts take so many parts of such a size, and no more."""
    limits = _limits(unit.recipe.content.publish.repository)
    if limits is None or limits.max_parts is None or limits.max_part_bytes is None:
        return
    largest = _largest_file(unit)
    most = limits.max_parts * limits.max_part_bytes
    if largest <= most or (limits.max_layer_bytes is not None and largest > limits.max_layer_bytes):
        return
    parts = math.ceil(largest / limits.max_part_bytes)
    yield Problem(
        f"{_host(unit)} takes a layer in at most {limits.max_parts} parts of {limits.max_part_bytes:,} bytes, "
        f"{most:,} in all; the largest file of the image would need {parts}",
        _REPOSITORY,
        "split the model over more ranks, or use another registry",
        {"parts_needed": parts, "max_parts": limits.max_parts, "limit": most},
    )


@rule("UPLOAD_TIME", "warn")
def layers_upload_in_time(unit: Unit) -> Iterator[Problem]:
    """A registry with a time limit per upload needs a line that is fast enough for the largest file."""
    limits = _limits(unit.recipe.content.publish.repository)
    if limits is None:
        return
    largest = _largest_file(unit)
    rate = limits.min_bytes_per_second(largest)
    if rate is None or rate <= _SLOW or (limits.max_layer_bytes is not None and largest > limits.max_layer_bytes):
        return
    yield Problem(
        f"{_host(unit)} ends an upload after {limits.upload_seconds} s: the largest file of {largest / _GB:.2f} GB "
        f"needs {rate / _MB:.1f} MB/s for that long",
        _REPOSITORY,
        "publish from a machine with such a line, or split the model over more ranks",
        {"min_mb_per_s": round(rate / _MB, 1), "upload_seconds": limits.upload_seconds},
    )
