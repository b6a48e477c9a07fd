"""Rules on the machine that builds, as the recipe's `runner` describes it: its memory, its disk, and its GPUs.

Needs are ranges. Where not even the optimistic end is there the unit is refused; where only the cautious one isn't, a
warning says so. Both can be waived: memory may be swapped, and images may lie on the disk already.
"""

from __future__ import annotations

from collections.abc import Iterator

from builder.plan.findings import Problem, rule
from builder.plan.memory import Range, host_estimate, legal_estimate, sizes
from builder.plan.rules.conditions import gib
from builder.plan.unit import Unit

_GB = 10**9


@rule("HOST_MEMORY", "refuse-waivable")
def runner_has_memory(unit: Unit) -> Iterator[Problem]:
    """The runner's main memory holds what converting, quantising and building take."""
    given = unit.settings.runner.memory_gb
    if given is None:
        return
    needs = host_estimate(unit)
    if needs is None:
        return
    steps = {"quantise or convert": needs.quantize} | ({"build": needs.build} if needs.build else {})
    step, need = max(((name, one.ram_bytes) for name, one in steps.items()), key=lambda item: item[1].low)
    highest = max(one.ram_bytes.high for one in steps.values())
    if highest <= given * _GB:
        return
    refused = need.low > given * _GB
    yield Problem(
        f"the runner has {given:g} GB of memory, and to {step} takes {_gb(need.low)} to {_gb(highest)} GB",
        ("runner", "memory_gb"),
        f"use a runner with {_gb(highest)} GB"
        + (", or split the model over more ranks: they are built one after another" if refused else " to be sure"),
        {"needed_bytes": {"low": need.low, "high": highest}, "memory_bytes": int(given * _GB)},
        None if refused else "warn",
    )


@rule("DISK", "refuse-waivable")
def runner_has_disk(unit: Unit) -> Iterator[Problem]:
    """The runner's free disk holds model, checkpoint, engines and images: packed, and unpacked beside it."""
    given = unit.settings.runner.disk_gb
    if given is None:
        return
    files = sizes(unit)
    if files is None:
        return
    image = _build_image_bytes(unit)
    need = files.disk_bytes + Range(image, 2 * image)
    free = given * _GB
    if need.high <= free:
        return
    refused = need.low > free
    images = (files.base_bytes or 0) + image
    engines = sum(files.engine_bytes)
    parts = f"model {_gb(files.download_bytes)}, checkpoint {_gb(files.checkpoint_bytes)}, engines {_gb(engines)}"
    yield Problem(
        f"the runner has {given:g} GB of free disk, and the build takes {_gb(need.low)} GB"
        + (f", or {_gb(need.high)} GB while images are unpacked" if images else "")
        + f": {parts}, images {_gb(images)} GB",
        ("runner", "disk_gb"),
        f"use a runner with {_gb(need.high)} GB free"
        + (f"; {_gb(max(0, free - need.low))} GB would be left, which is little" if not refused else ""),
        {
            "needed_bytes": {"low": need.low, "high": need.high},
            "image_bytes": images,
            "free_bytes": int(free),
        },
        None if refused else "warn",
    )


def _build_image_bytes(unit: Unit) -> int:
    """The image that the build runs in, as the lock has it; 0 where it runs in none, or nobody knows its size."""
    name = unit.toolchain.build_image
    if name is None or name == unit.package.base:
        return 0
    pinned = unit.lock.image(name, unit.gpu.platform)
    return pinned.size if pinned else 0


@rule("QUANTIZE_MEMORY", "warn")
def gpus_hold_the_model_to_quantise(unit: Unit) -> Iterator[Problem]:
    """Calibration runs the model in 16 bit, on all GPUs of the node together."""
    if not unit.precision.calibrated or unit.as_published:
        return
    memory = legal_estimate(unit)
    if memory is None or memory.gpu_bytes is None:
        return
    there = memory.gpu_bytes * unit.gpus
    if memory.weights_bytes * unit.ranks * 16 // unit.precision.bits <= there:
        return  # more than what the 16-bit model takes: linears alone would grow by this factor
    needs = host_estimate(unit)
    if needs is not None and needs.quantize.vram_bytes.low > there:
        needed = needs.quantize.vram_bytes.low
        yield Problem(
            f"quantising to {unit.precision.name} runs the 16-bit model, which takes {gib(needed)} of GPU memory; "
            f"{unit.gpus} x {unit.gpu.name} have {gib(there)}",
            ("precision", "weights"),
            "quantise on a larger node (the checkpoint doesn't depend on the GPU), or take a published quantised model",
            {"needed_bytes": needed, "gpu_bytes": there},
        )


def _gb(size: float) -> str:
    return f"{size / _GB:.2f}"
