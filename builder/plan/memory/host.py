"""What the machine needs that converts, quantises and builds: main memory, GPU memory and disk, as ranges.

No documentation gives a formula; the ranges enclose what was seen (sizes in MiB unless said otherwise):

    build      gpt2-medium FP16, one rank of 775: CPU peak 6,600, GPU 775                              (third-party log)
               Llama-3-8B-1048k BF16, four ranks of 5,093 one after another: CPU peak 58,617, GPU 5,093 each      (log)
               Qwen1.5 INT4-WO, one rank of 8,134,053,232 B: CPU peak 18,131 MB                                   (log)
               an 8B model in 16 bit, one rank of 15,316: "48 GB of memory" is a common advice
               "Init builder kernel library": 2,061 to 2,225 of CPU, 574 to 777 of GPU  (NVIDIA/TensorRT-LLM #538, #743)
    quantise   Llama-2-70B, 16 bit of 137.95 GB: "more than 210 GB" of GPU memory      (examples/llama/README.md, 0.10)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder import catalog
from builder.plan.memory.of_unit import legal_estimate, storage_of
from builder.plan.memory.ranges import GIB, MIB, Range
from builder.plan.memory.sizes import Sizes, rank_bytes, sizes
from builder.plan.memory.weights import ONE_GPU, Storage, weight_bytes

if TYPE_CHECKING:
    from builder.plan.unit import Unit

_BUILDER_CPU = Range(2 * GIB, 6 * GIB)
_BUILDER_GPU = Range(500 * MIB, 3 * GIB)
_PYTHON = Range(1 * GIB, 4 * GIB)
_STREAMING = Range(100 * MIB, 500 * MIB)
"""Our own converter's memory, whatever the size of the model (bench/checkpoint.py)."""

_FLOAT32 = 4
_CALIBRATION_TOKENS = 512


@dataclass(frozen=True)
class HostEstimate:
    """Needs of one step: main memory of the machine, memory of its fullest GPU, and the bytes it reads and writes."""

    ram_bytes: Range
    vram_bytes: Range
    disk_bytes: int


@dataclass(frozen=True)
class BuildHost:
    """The two steps of a unit: quantising or converting, and compiling.

    `build` is None in the PyTorch flow, which compiles nothing.
    """

    quantize: HostEstimate
    build: HostEstimate | None


def convert_needs(source_bytes: int, ranks: Sequence[int], disk_bytes: int) -> HostEstimate:
    """Converting without calibration, on the CPU: `source_bytes` of the model, then the ranks' tensors (bytes each).

    low: one rank at a time beside the part of the source that it comes from. high: the whole model, and all ranks at
    once (a thread each with --workers).
    """
    low = _PYTHON.low + max(ranks)
    return HostEstimate(Range(low, max(low, _PYTHON.high + source_bytes + sum(ranks))), Range(0, 0), disk_bytes)


def quantize_needs(
    model_bytes: int, ranks: Sequence[int], vocab_size: int, batch_tokens: int, disk_bytes: int
) -> HostEstimate:
    """Calibrating with ModelOpt: the model in 16 bit lies on the GPUs as a whole, and its quantised weights stay there.

    batch_tokens: tokens that calibration runs together; each has float32 logits. vram_bytes is of all GPUs together.
    """
    logits = batch_tokens * vocab_size * _FLOAT32
    vram = Range(model_bytes, int(model_bytes * 1.6) + _BUILDER_GPU.high + 2 * logits)
    return HostEstimate(Range(_PYTHON.low + max(ranks), _PYTHON.high + 2 * model_bytes + sum(ranks)), vram, disk_bytes)


def build_needs(ranks: Sequence[int], context: Range, disk_bytes: int) -> HostEstimate:
    """Compiling engines: `ranks` are the bytes of each, built by one process one after another, `context` the
    activations of one.

    The weights are there as a checkpoint, as constants of the network and as a serialised engine. low: 1.5 times the
    largest rank, and the builder. high: three times all ranks, as memory isn't given back between them.
    """
    return HostEstimate(
        Range(_BUILDER_CPU.low + max(ranks) * 3 // 2, _BUILDER_CPU.high + 3 * sum(ranks)),
        Range(max(ranks), 2 * max(ranks) + context.high + _BUILDER_GPU.high),
        disk_bytes,
    )


def host_estimate(unit: Unit) -> BuildHost | None:
    """What a unit's build machine needs; None for a split that isn't legal, and for the reference model, which is
    converted piece by piece and compiled by nobody."""
    memory, files = legal_estimate(unit), sizes(unit)
    if memory is None or files is None or unit.gpu.is_cpu:
        return None
    build = None
    if files.engine_bytes:
        disk = files.checkpoint_bytes + sum(files.engine_bytes)
        build = build_needs(files.engine_bytes, memory.activations, disk)
    return BuildHost(_quantize(unit, files), build)


def _quantize(unit: Unit, files: Sizes) -> HostEstimate:
    ranks = rank_bytes(unit)
    disk = files.download_bytes + files.checkpoint_bytes
    if unit.maker in ("converter", "snapshot"):
        return HostEstimate(_STREAMING, Range(0, 0), disk)
    if not unit.precision.calibrated or unit.as_published:
        return convert_needs(files.download_bytes, ranks, disk)
    plain = Storage(catalog.precisions()["bf16"], storage_of(unit).dtype)
    calibration = unit.settings.calibration
    tokens = calibration.batch_size * calibration.max_length if calibration else _CALIBRATION_TOKENS
    model = sum(weight_bytes(unit.spec, plain, ONE_GPU))
    return quantize_needs(model, ranks, unit.spec.vocab_size, tokens, disk)
