"""Rules on attention over prompts, and on what depends on it: reuse of the KV cache, and prompts in pieces.

Both need paged context FMHA, which trtllm-build switches off by itself for some KV caches. Source: NVIDIA/TensorRT-LLM
tensorrt_llm/builder.py, releases 0.20 to 1.2; issue 2166 there; triton-inference-server/tensorrtllm_backend, issues 271
and 323.
"""

from __future__ import annotations

from collections.abc import Iterator

from builder.plan.findings import Problem, rule
from builder.plan.rules.alternatives import described
from builder.plan.rules.conditions import asked, compiles, context_fmha
from builder.plan.unit import FP8_ATTENTION, Unit

_KV_CACHE = ("precision", "kv_cache")
_REUSE = ("serving", "enable_kv_cache_reuse")
_CHUNKED = ("serving", "enable_chunked_context")

_FP8_WORDS = "fp8, w4a8-awq or nvfp4"
_VOLTA = ("7.0", "7.2")
_BEFORE_ADA = (*_VOLTA, "7.5", "8.0", "8.6", "8.7")


def _fp8_attention(unit: Unit) -> bool:
    """Whether weights and GPU let attention compute in FP8."""
    return unit.precision.quant_algo in FP8_ATTENTION and unit.gpu.compute_capability not in _BEFORE_ADA


def _paged_off(unit: Unit) -> str | None:
    """Why trtllm-build switches paged context FMHA off though the recipe doesn't; None where it stays on."""
    name = unit.kv_precision.name
    if name == "int8":
        return "paged context attention (paged context FMHA) can't read an int8 KV cache"
    if name == "fp8" and not _fp8_attention(unit):
        return (
            "paged context attention (paged context FMHA) reads an fp8 KV cache only under weights in "
            f"{_FP8_WORDS}, not {unit.precision.name}"
        )
    return None


@rule("CONTEXT_FMHA_OFF", "warn")
def fused_attention_carries_others_along(unit: Unit) -> Iterator[Problem]:
    """context_fmha: disable switches FP8 and paged context FMHA off too."""
    if asked(unit, "context_fmha") == "disable":
        yield Problem(
            "context_fmha: disable switches use_paged_context_fmha and use_fp8_context_fmha off too: no reuse of the "
            "KV cache, no chunked context, and memory for attention grows with the square of the prompt",
            ("engine", "context_fmha"),
            "remove it",
            {"becomes": {"use_paged_context_fmha": "disable", "use_fp8_context_fmha": "disable"}},
        )


@rule("PAGED_CONTEXT_FMHA_OFF", "warn")
def paged_attention_reads_the_kv_cache(unit: Unit) -> Iterator[Problem]:
    """TensorRT-LLM switches paged context FMHA off for INT8 KV, and for FP8 KV under weights that aren't FP8."""
    if unit.kv_precision.name not in ("int8", "fp8") or not compiles(unit):
        return
    reason = _paged_off(unit)
    if reason and context_fmha(unit) and asked(unit, "use_paged_context_fmha") != "disable":
        yield Problem(
            f"use_paged_context_fmha will be switched off: {reason}; no reuse of the KV cache, no chunked context",
            _KV_CACHE,
            "use a KV cache in the format of the activations"
            + (f", or weights in {_FP8_WORDS}" if unit.kv_precision.name == "fp8" else ""),
            {"becomes": "disable"},
        )


@rule("FP8_CONTEXT_FMHA", "warn")
def fp8_attention_is_as_asked(unit: Unit) -> Iterator[Problem]:
    """use_fp8_context_fmha goes off without FP8 weights or KV cache, and on with both under paged context FMHA."""
    wanted = asked(unit, "use_fp8_context_fmha")
    if wanted is None:
        return
    becomes, reason = wanted, ""
    if not context_fmha(unit):
        becomes, reason = "disable", "context_fmha is off"
    elif unit.precision.quant_algo not in FP8_ATTENTION:
        becomes, reason = "disable", f"the weights are {unit.precision.name}, not {_FP8_WORDS}"
    elif not _fp8_attention(unit):
        becomes, reason = "disable", f"{described(unit.gpu)} has no FP8 arithmetic"
    elif unit.paged_context_fmha:
        fp8 = unit.kv_precision.name == "fp8"
        becomes = "enable" if fp8 else "disable"
        reason = f"with use_paged_context_fmha it follows the KV cache, which is {unit.kv_precision.name}"
    if becomes != wanted:
        yield Problem(
            f"use_fp8_context_fmha: {wanted} will become {becomes}: {reason}",
            ("engine", "use_fp8_context_fmha"),
            f"write {becomes}, or leave it out",
            {"becomes": becomes},
        )


@rule("KV_REUSE_INT8", "refuse")
def int8_blocks_are_not_reused(unit: Unit) -> Iterator[Problem]:
    """Reuse of the KV cache needs paged context attention, which can't read an INT8 cache."""
    if unit.settings.serving.enable_kv_cache_reuse and unit.kv_precision.name == "int8" and compiles(unit):
        yield Problem(
            "enable_kv_cache_reuse doesn't work with an int8 KV cache: paged context attention "
            "(use_paged_context_fmha), which it needs, can't read one",
            _REUSE,
            "precision.kv_cache: auto, or serving.enable_kv_cache_reuse: false",
            {"valid_kv_precisions": ["auto", *(["fp8"] if _fp8_attention(unit) else [])]},
        )


@rule("KV_REUSE_FP8_KV", "refuse")
def fp8_blocks_are_reused_under_fp8_weights(unit: Unit) -> Iterator[Problem]:
    """Reuse of an FP8 KV cache needs weights in FP8, W4A8-AWQ or NVFP4."""
    if not unit.settings.serving.enable_kv_cache_reuse or unit.kv_precision.name != "fp8" or not compiles(unit):
        return
    if reason := _paged_off(unit):
        yield Problem(
            f"enable_kv_cache_reuse doesn't work with this fp8 KV cache, as it needs paged context attention: {reason}",
            _REUSE,
            f"precision.kv_cache: auto, or weights in {_FP8_WORDS}, or serving.enable_kv_cache_reuse: false",
            {"valid_weights": ["fp8", "w4a8-awq", "nvfp4"]},
        )


@rule("KV_REUSE_NEEDS_PAGED_CONTEXT_FMHA", "refuse")
def reuse_is_built_in(unit: Unit) -> Iterator[Problem]:
    """The one field serving.enable_kv_cache_reuse drives engine and server: no build option may contradict it."""
    if not unit.settings.serving.enable_kv_cache_reuse or not unit.settings.engine:
        return
    for option in ("use_paged_context_fmha", "context_fmha"):
        if asked(unit, option) == "disable":
            yield Problem(
                f"enable_kv_cache_reuse needs an engine with use_paged_context_fmha, and {option}: disable builds one "
                "without: Triton would refuse to load it",
                _REUSE,
                f"remove engine.{option}, or write serving.enable_kv_cache_reuse: false",
            )


@rule("CHUNKED_CONTEXT_NEEDS_PAGED_CONTEXT_FMHA", "refuse")
def chunks_are_built_in(unit: Unit) -> Iterator[Problem]:
    """Chunked context needs paged context FMHA, as reuse of the KV cache does."""
    if not unit.settings.serving.enable_chunked_context or not compiles(unit) or unit.paged_context_fmha:
        return
    off = next((name for name in ("context_fmha", "use_paged_context_fmha") if asked(unit, name) == "disable"), None)
    yield Problem(
        "enable_chunked_context needs an engine with use_paged_context_fmha, and "
        + (f"{off}: disable builds one without" if off else f"{_paged_off(unit)}"),
        _CHUNKED,
        f"remove engine.{off}" if off else "use precision.kv_cache: auto, or serving.enable_chunked_context: false",
    )


@rule("PAGED_CONTEXT_FMHA_VOLTA", "refuse")
def gpu_has_paged_attention(unit: Unit) -> Iterator[Problem]:
    """Volta has no paged context FMHA: no reuse of the KV cache, no chunked context."""
    if unit.gpu.compute_capability not in _VOLTA or not compiles(unit):
        return
    serving = unit.settings.serving
    for path, wanted in ((_REUSE, serving.enable_kv_cache_reuse), (_CHUNKED, serving.enable_chunked_context)):
        if wanted:
            yield Problem(
                f"{path[-1]} needs paged context attention, which {described(unit.gpu)} doesn't have",
                path,
                f"serving.{path[-1]}: false, or a card of SM 8.0 or newer",
                {"sku_sm": unit.gpu.compute_capability, "min_sm": "8.0"},
            )
