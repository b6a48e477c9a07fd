"""Rules on fusions that trtllm-build is asked for, and switches off by itself where they don't apply.

Source: NVIDIA/TensorRT-LLM tensorrt_llm/builder.py, releases 0.20 to 1.2.
"""

from __future__ import annotations

from collections.abc import Iterator

from builder.plan.findings import Problem, rule
from builder.plan.rules.alternatives import listed
from builder.plan.rules.conditions import switched_on
from builder.plan.unit import Unit

_FUSES_REDUCE = ("LlamaForCausalLM", "Gemma2ForCausalLM", "MedusaForCausalLM")


@rule("REDUCE_FUSION_OFF", "warn")
def reduce_fusion_has_something_to_fuse(unit: Unit) -> Iterator[Problem]:
    """reduce_fusion is switched off without tensor parallelism, and for models that it isn't made for."""
    if not switched_on(unit, "reduce_fusion") or _fuses_reduce(unit):
        return
    architecture = unit.spec.architecture
    reason = (
        f"it is for {listed(_FUSES_REDUCE, 'and')}, not {architecture}"
        if architecture not in _FUSES_REDUCE
        else "with one tensor rank nothing is reduced"
    )
    yield Problem(
        f"reduce_fusion will be switched off: {reason}",
        ("engine", "reduce_fusion"),
        "remove it",
        {"becomes": "disable"},
    )


def _fuses_reduce(unit: Unit) -> bool:
    """Whether reduce_fusion is asked for and stays on."""
    return (
        switched_on(unit, "reduce_fusion") and unit.parallelism.tensor > 1 and unit.spec.architecture in _FUSES_REDUCE
    )


@rule("USER_BUFFER_OFF", "warn")
def user_buffer_has_reduce_fusion(unit: Unit) -> Iterator[Problem]:
    """user_buffer is switched off without reduce_fusion, and documented for Llama in FP8 only."""
    if not switched_on(unit, "user_buffer"):
        return
    if not _fuses_reduce(unit):
        yield Problem(
            "user_buffer will be switched off: it needs reduce_fusion"
            + (", which will be off too" if switched_on(unit, "reduce_fusion") else ""),
            ("engine", "user_buffer"),
            "remove it, or use reduce_fusion: enable where it works: "
            f"{listed(_FUSES_REDUCE)} over several tensor ranks",
            {"becomes": "disable"},
        )
    elif unit.precision.quant_algo != "FP8" or unit.spec.architecture != "LlamaForCausalLM":
        yield Problem(
            f"user_buffer is documented for Llama in FP8 only, this is {unit.spec.architecture} in "
            f"{unit.precision.name}",
            ("engine", "user_buffer"),
            "measure whether it helps, or remove it",
        )


@rule("NORM_QUANT_FUSION_OFF", "warn")
def norm_quant_fusion_fits(unit: Unit) -> Iterator[Problem]:
    """norm_quant_fusion is switched off unless the model is a Llama in NVFP4 without reduce_fusion."""
    if not switched_on(unit, "norm_quant_fusion"):
        return
    reasons = []
    if unit.spec.architecture != "LlamaForCausalLM":
        reasons.append(f"it is for LlamaForCausalLM, not {unit.spec.architecture}")
    if unit.precision.quant_algo != "NVFP4":
        reasons.append(f"it is for NVFP4 weights, not {unit.precision.name}")
    if _fuses_reduce(unit):
        reasons.append("reduce_fusion is on")
    if reasons:
        yield Problem(
            f"norm_quant_fusion will be switched off: {' and '.join(reasons)}",
            ("engine", "norm_quant_fusion"),
            "remove it",
            {"becomes": "disable"},
        )
