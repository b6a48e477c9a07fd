"""Bytes to download, to write, and to move: what a plan shows, and what a runner's disk must hold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from builder import catalog
from builder.model.stored import stored_bytes
from builder.plan.memory.of_unit import is_legal, split_of, storage_of
from builder.plan.memory.ranges import Range
from builder.plan.memory.weights import ONE_GPU, rope_bytes, weight_bytes

if TYPE_CHECKING:
    from builder.plan.unit import Unit

_FLOATS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


@dataclass(frozen=True)
class Sizes:
    """Bytes of a unit's files.

    download_bytes: the files that the lock pins, else what headers or the configuration say. checkpoint_bytes: tensors
    of all ranks. engine_bytes: one file per rank, at the least (logs show up to 20 MiB more than weights and rope
    table); nothing in the PyTorch flow. base_bytes: the compressed image that the release is put on top of; None where
    neither lock nor catalog knows it.
    """

    download_bytes: int
    checkpoint_bytes: int
    engine_bytes: tuple[int, ...]
    base_bytes: int | None

    @property
    def image_bytes(self) -> int:
        """What a first pull moves: the base and the engines, or the checkpoint where there are none."""
        return (self.base_bytes or 0) + (sum(self.engine_bytes) or self.checkpoint_bytes)

    @property
    def disk_bytes(self) -> Range:
        """Free disk that a build takes. low: every file once, the base image included. high: an image's layers lie
        there packed while they are unpacked."""
        files = self.download_bytes + self.checkpoint_bytes + sum(self.engine_bytes)
        base = self.base_bytes or 0
        return Range(files + base, files + 2 * base)

    def to_json(self) -> dict[str, Any]:
        """As `plan --format json` shows it."""
        return {
            "download_bytes": self.download_bytes,
            "checkpoint_bytes": self.checkpoint_bytes,
            "engine_bytes": list(self.engine_bytes),
            "base_bytes": self.base_bytes,
            "image_bytes": self.image_bytes,
            "disk_bytes": [self.disk_bytes.low, self.disk_bytes.high],
        }


def sizes(unit: Unit) -> Sizes | None:
    """Of a unit; None for a split over GPUs that isn't legal."""
    storage, spec = storage_of(unit), unit.spec
    if not is_legal(spec, split_of(unit)):
        return None
    download, base = download_bytes(unit), base_bytes(unit)
    if unit.flow == "engine":
        stored = rank_bytes(unit, as_converted=True)
        ranks = stored if unit.gpu.is_cpu else rank_bytes(unit)  # the reference model keeps what it is given
        rope = 0 if unit.gpu.is_cpu else rope_bytes(spec)
        return Sizes(download, sum(stored), tuple(size + rope for size in ranks), base)
    checkpoint = download if unit.as_published else sum(weight_bytes(spec, storage, ONE_GPU))
    return Sizes(download, checkpoint, (), base)


def rank_bytes(unit: Unit, *, as_converted: bool = False) -> list[int]:
    """The tensors of every rank of an engine, without rope tables.

    `as_converted`: of the checkpoint, which is larger where weights are quantised only when the engine is compiled.
    """
    split, storage = split_of(unit), storage_of(unit)
    if as_converted and unit.maker == "converter" and unit.quantized_here:
        storage = replace(storage, precision=catalog.precisions()[_FLOATS[unit.dtype]])
    stages = weight_bytes(unit.spec, storage, split)
    return [size for size in stages for _ in range(split.tensor * split.context)]


def download_bytes(unit: Unit) -> int:
    """The pinned files that a build reads; without weights among them, what their headers or the configuration say."""
    files = unit.lock.snapshot.of_kind("weights", "config", "tokenizer")
    if any(file.kind == "weights" for file in files):
        return sum(file.size for file in files)
    if unit.lock.tensors is not None:
        return unit.lock.tensors.bytes
    known = stored_bytes(unit.spec)
    return sum(weight_bytes(unit.spec, storage_of(unit), ONE_GPU)) if known is None else known


def base_bytes(unit: Unit) -> int | None:
    """The compressed size of the base image: as pinned, else as the catalog has it; 0 without a base."""
    reference = unit.package.base
    if reference == "none":
        return 0
    if pinned := unit.lock.image(reference, unit.gpu.platform):
        return pinned.size
    container = catalog.container_of_image(reference)
    return container.size_bytes if container else None
