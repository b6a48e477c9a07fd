"""The command lines of TensorRT-LLM that make a unit's checkpoint and engine, or that serve it.

Inside the containers the model lies at /model, calibration data at /calibration; a checkpoint is written to
/checkpoint and an engine to /engine. Flags are those of the release's own tables (builder/catalog/flags).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from builder import catalog
from builder.plan import Unit

MODEL, CALIBRATION, CHECKPOINT, ENGINE = "/model", "/calibration", "/checkpoint", "/engine"

_OURS = {"converter": "(streaming conversion)", "modelopt": "(ModelOpt on the machine that builds)"}
"""Instead of a command, where the checkpoint is made without the release's scripts."""

_SPECULATIVE_OFF = ("eagle3", "mtp", "ngram")


@dataclass(frozen=True)
class Command:
    """One command of a stage. `image` is the container that it runs in; None: engine-builder does it by itself."""

    stage: str
    argv: tuple[str, ...]
    image: str | None


def commands(unit: Unit) -> tuple[Command, ...]:
    """What a build of this unit runs, in order; for the pytorch flow also how it is served."""
    if not unit.toolchain.version:  # the reference toolchain
        return (
            Command("checkpoint", (_OURS.get(unit.maker, "(not possible)"),), None),
            Command("engine", ("(reference model)",), None),
        )
    image = unit.toolchain.build_image
    last = Command("serve", tuple(_serve(unit)), image)
    if unit.flow == "engine":
        last = Command("engine", tuple(build_command(unit)), image)
    if unit.maker == "snapshot":
        return (last,)
    if unit.maker in _OURS:
        return (Command("checkpoint", (_OURS[unit.maker],), None), last)
    return (Command("checkpoint", tuple(checkpoint_command(unit)), image), last)


def checkpoint_command(unit: Unit) -> Iterator[str]:
    """convert_checkpoint.py for what is only cast, or is quantised already (it finds that in config.json by itself);
    quantize.py for what is quantised here."""
    if unit.quantized_here:
        yield from _quantize(unit)
        if unit.flow == "pytorch":
            yield from ("--export_format", "hf")
        return
    script = unit.toolchain.convert_script.get(unit.spec.architecture, "convert_checkpoint.py")
    yield from ("python3", script, "--model_dir", MODEL, "--output_dir", CHECKPOINT, "--dtype", unit.dtype)
    yield from _split(unit)
    if unit.spec.experts:
        yield from ("--moe_tp_size", str(unit.moe_tensor), "--moe_ep_size", str(unit.moe_expert))


def _quantize(unit: Unit) -> Iterator[str]:
    wanted, calibration = unit.settings.precision, unit.settings.calibration
    yield from ("python3", unit.toolchain.quantize_script or "quantize.py", "--model_dir", MODEL)
    yield from ("--output_dir", CHECKPOINT, "--dtype", unit.dtype)
    yield from ("--qformat", unit.precision.modelopt or "full_prec")
    if unit.kv_precision.quant_algo:
        yield from ("--kv_cache_dtype", unit.kv_precision.name)
    yield from _split(unit)
    if unit.precision.scheme == "grouped":
        yield from ("--awq_block_size", str(unit.group_size))
    if wanted.quantize_lm_head:
        yield "--quantize_lm_head"
    if calibration:
        yield from ("--calib_dataset", CALIBRATION, "--calib_size", str(calibration.samples))
        yield from ("--calib_max_seq_length", str(calibration.max_length))
        yield from ("--batch_size", str(calibration.batch_size), "--seed", str(calibration.seed))


def _split(unit: Unit) -> Iterator[str]:
    yield from ("--tp_size", str(unit.parallelism.tensor), "--pp_size", str(unit.parallelism.pipeline))
    if unit.parallelism.context > 1:
        yield from ("--cp_size", str(unit.parallelism.context))
    if unit.parallelism.use_parallel_embedding and not unit.quantized_here:
        yield from ("--use_parallel_embedding", "--embedding_sharding_dim")
        yield str(unit.parallelism.embedding_sharding_dim)


def build_command(unit: Unit) -> Iterator[str]:
    """trtllm-build, every limit and option written out: nothing is left to a default of the release."""
    limits = unit.limits
    yield from ("trtllm-build", "--checkpoint_dir", CHECKPOINT, "--output_dir", ENGINE)
    yield from ("--max_batch_size", str(limits.max_batch_size))
    yield from ("--max_input_len", str(unit.max_input_len), "--max_seq_len", str(unit.max_seq_len))
    yield from ("--max_num_tokens", str(limits.max_num_tokens), "--max_beam_width", str(limits.max_beam_width))
    if limits.opt_num_tokens:
        yield from ("--opt_num_tokens", str(limits.opt_num_tokens))
    options: dict[str, Any] = {"use_paged_context_fmha": "enable" if unit.paged_context_fmha else "disable"}
    yield from _options(unit, {**options, **unit.engine_options})
    if lora := unit.settings.lora:
        yield from ("--lora_plugin", "auto", "--max_lora_rank", str(lora.max_rank))
        if lora.target_modules:
            yield from ("--lora_target_modules", *lora.target_modules)
    if (speculative := unit.settings.speculative) and speculative.mode not in _SPECULATIVE_OFF:
        yield from ("--speculative_decoding_mode", speculative.mode)
        yield from ("--max_draft_len", str(speculative.max_draft_len))
    yield from ("--workers", str(unit.ranks), "--output_timing_cache", f"{ENGINE}/model.cache")


def _options(unit: Unit, options: Mapping[str, Any]) -> Iterator[str]:
    table = catalog.flags("trtllm-build", unit.toolchain.version)
    for name, value in sorted(options.items()):
        flag = table.get(name)
        if flag is not None and flag.type == "switch":
            if value in (True, "enable"):
                yield f"--{name}"
        elif isinstance(value, list | tuple):
            yield from (f"--{name}", *map(str, value))
        else:
            yield from (f"--{name}", str(value))


def _serve(unit: Unit) -> Iterator[str]:
    limits, split = unit.limits, unit.parallelism
    yield from ("trtllm-serve", MODEL, "--backend", "pytorch")
    yield from ("--max_batch_size", str(limits.max_batch_size), "--max_num_tokens", str(limits.max_num_tokens))
    yield from ("--max_seq_len", str(unit.max_seq_len))
    yield from ("--tp_size", str(split.tensor), "--pp_size", str(split.pipeline))
    if unit.spec.experts:
        yield from ("--ep_size", str(unit.moe_expert))
    yield from ("--kv_cache_free_gpu_memory_fraction", f"{unit.serving.kv_cache_free_gpu_mem_fraction:g}")
    if unit.settings.llm_args or unit.kv_precision.quant_algo:
        yield from ("--extra_llm_api_options", "/model/llm.yaml")
