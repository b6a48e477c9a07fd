"""The stage `checkpoint`: what TensorRT-LLM compiles, or what its PyTorch flow reads."""

from __future__ import annotations

import dataclasses

from builder import catalog
from builder.build.chat_template import chat_renderer
from builder.build.context import Context, check_lock
from builder.checkpoint.calibration import read_texts
from builder.checkpoint.config import checkpoint_config, float_quantization
from builder.checkpoint.convert import convert
from builder.checkpoint.linking import link_file
from builder.checkpoint.quantize import Quantization, quantize, require_modelopt
from builder.errors import PlanRefused
from builder.lock.texts import pinned_texts
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
    elif unit.maker == "modelopt":
        _quantize(unit, context)
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


def _quantize(unit: Unit, context: Context) -> None:
    """By ModelOpt on this machine, in the version that is part of the key."""
    calibration, wanted = unit.settings.calibration, unit.settings.precision
    if calibration is None:
        raise PlanRefused(f"{unit.id} names no calibration data", code="CALIBRATION_REQUIRED")
    require_modelopt((catalog.toolchains()["reference"].modelopt or "").removeprefix("=="))
    source = context.fetch(("weights", "config", "tokenizer"))
    check_lock(unit, source)
    data = pinned_texts(calibration.dataset, unit.recipe, unit.lock, context.store)
    texts = read_texts(data, samples=calibration.samples, seed=calibration.seed, render=chat_renderer(unit, source))
    recipe = wanted.modelopt_recipe
    job = Quantization(
        precision=unit.precision.name,
        dtype=unit.dtype,
        kv_cache=unit.kv_precision.name if unit.stores_kv_scales else None,
        group_size=unit.group_size,
        smoothquant_alpha=wanted.smoothquant_alpha,
        quantize_lm_head=wanted.quantize_lm_head,
        export_format="tensorrt_llm" if unit.flow == "engine" else "hf",
        tp=unit.split.tp,
        pp=unit.split.pp,
        max_length=calibration.max_length,
        batch_size=calibration.batch_size,
        seed=calibration.seed,
        modelopt_recipe=pinned_texts(recipe, unit.recipe, unit.lock, context.store) if recipe else None,
    )
    spec = dataclasses.replace(unit.spec, dtype=unit.dtype)
    split = dataclasses.replace(unit.split, use_parallel_embedding=True, embedding_sharding_dim=0)  # as it exports
    context.facts["quantization"] = quantize(
        source,
        unit.spec,
        texts,
        job,
        context.workspace,
        finish=lambda made: checkpoint_config(spec, split, made["quantization"]),
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
