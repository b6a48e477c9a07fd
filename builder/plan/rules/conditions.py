"""Conditions that many rules begin with; all are cheap, since every rule asks them of every unit."""

from __future__ import annotations

from builder.plan.unit import Unit

GIB = 1 << 30

TOKENS_PER_BLOCK = 32
"""trtllm-build's default since 0.20 (tensorrt_llm/plugin/plugin.py): tokens of a block of the KV cache."""


def runs_tensorrt_llm(unit: Unit) -> bool:
    """Whether TensorRT-LLM runs the unit; the reference backend has none of its limits."""
    return unit.toolchain.backend == "tensorrtllm"


def compiles(unit: Unit) -> bool:
    """Whether trtllm-build compiles the unit."""
    return unit.settings.flow == "engine" and unit.toolchain.backend == "tensorrtllm"


def asked(unit: Unit, option: str) -> object:
    """What the recipe says of an option of trtllm-build in a unit that is compiled; None: nothing."""
    if not unit.settings.engine or not compiles(unit):
        return None
    return unit.engine_options.get(option)


def switched_on(unit: Unit, option: str) -> bool:
    """Whether the recipe sets an option, or a plugin, to anything but "disable"."""
    return asked(unit, option) not in (None, "disable")


def context_fmha(unit: Unit) -> bool:
    """Whether prompts go through fused attention: TensorRT-LLM's default."""
    return asked(unit, "context_fmha") != "disable"


def gib(size: float) -> str:
    """Bytes for people."""
    return f"{size / GIB:.2f} GiB"
