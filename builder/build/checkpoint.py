"""The stage `checkpoint`: what TensorRT-LLM compiles, or what its PyTorch flow reads."""

from __future__ import annotations

import dataclasses

from builder.build.context import Context, check_lock
from builder.checkpoint.config import float_quantization
from builder.checkpoint.convert import convert
from builder.checkpoint.linking import link_file
from builder.errors import PlanRefused
from builder.model.layout import checkpoint_bytes
from builder.model.snapshot import FileKind
from builder.plan import Unit
from builder.store import FileDigest


def make_checkpoint(unit: Unit, context: Context) -> None:
    """Raises what conversion and quantisation raise, PlanRefused where only the release's own scripts can make it."""
    if unit.maker == "converter":
        _convert(unit, context)
    elif unit.maker == "snapshot":
        _link(unit, context)
    else:
        raise PlanRefused(f"the checkpoint of {unit.id} is made in the image of {unit.toolchain.name}", code="NOT_HERE")


def _convert(unit: Unit, context: Context) -> None:
    source = context.fetch(("weights", "config"))
    check_lock(unit, source)
    spec = dataclasses.replace(unit.spec, dtype=unit.dtype)
    weight_only = unit.precision.scheme == "weight-only" and unit.spec.quantization is None
    convert(
        source,
        unit.spec,
        context.workspace,
        unit.split,
        dtype=unit.dtype,
        quantization=float_quantization(unit.precision.quant_algo) if weight_only else None,
        advance=context.progress(checkpoint_bytes(spec, unit.split)),
    )


def _link(unit: Unit, context: Context) -> None:
    """The model as it was published. Its files' digests were checked when they were fetched."""
    kinds: tuple[FileKind, ...] = ("weights", "config", "tokenizer")
    source = context.fetch(kinds)
    check_lock(unit, source)
    snapshot = unit.lock.snapshot
    files = snapshot.of_kind(*kinds)
    advance = context.progress(sum(file.size for file in files))
    for file in files:
        target = context.workspace.path / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        link_file(source / file.path, target, share="://" in snapshot.source)  # else it's a folder that someone edits
        context.workspace.record(file.path, FileDigest(file.sha256, file.size))
        advance(file.size)
