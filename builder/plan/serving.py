"""What the Triton model repository of a unit is made from, besides files: one record, and so one part of its key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from builder.plan.unit import Unit

_DECODING_MODES = {
    "lookahead_decoding": "lookahead",
    "medusa": "medusa",
    "explicit_draft_tokens": "redrafter",
    "eagle": "eagle",
}
"""Modes of `speculative` → the C++ backend's `decoding_mode`. Those that aren't here need none.

Source: triton-inference-server/tensorrtllm_backend inflight_batcher_llm/src/model_instance_state.cc@0677fdc6.
"""

_OPTIMAL_ADAPTER_SIZE = 8
"""TensorRT-LLM's own default of `lora_cache_optimal_adapter_size`, in ranks (same source)."""


@dataclass(frozen=True)
class LookaheadSizes:
    """The three sizes of lookahead decoding."""

    window_size: int
    ngram_size: int
    verification_set_size: int


@dataclass(frozen=True)
class LoraCache:
    """TensorRT-LLM's cache of LoRA adapters: sizes in ranks; its memory is the default."""

    max_adapter_size: int
    optimal_adapter_size: int
    gpu_memory_fraction: float = 0.05
    host_memory_bytes: int = 1 << 30


@dataclass(frozen=True)
class ServingSettings:
    """What the repository needs to know about a unit. Limits are those of its engine, lengths in tokens.

    `max_input_len` is the longest prompt that a request may have: without chunked context a prompt must go through
    the engine in one pass, so that it has at most max_num_tokens.
    """

    unit: str
    served_model_name: str
    family: Literal["bls", "ensemble", "llmapi"]
    backend: str
    max_batch_size: int
    max_input_len: int
    max_seq_len: int
    max_beam_width: int
    vocab_size: int
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    pad_token_id: int | None
    streaming: bool
    kv_cache_free_gpu_mem_fraction: float
    max_tokens_in_paged_kv_cache: int | None
    kv_cache_host_memory_bytes: int
    enable_kv_cache_reuse: bool
    enable_chunked_context: bool
    batch_scheduler_policy: Literal["guaranteed_no_evict", "max_utilization"]
    max_queue_size: int
    max_queue_delay_microseconds: int
    guided_decoding: Literal["none", "xgrammar", "llguidance"]
    decoding_mode: str | None
    lookahead: LookaheadSizes | None
    lora_cache: LoraCache | None


def serving_settings(unit: Unit) -> ServingSettings:
    """The record of a unit; everything in it is resolved, nothing is `auto`."""
    serving, limits, spec = unit.serving, unit.limits, unit.spec
    longest = unit.max_input_len
    return ServingSettings(
        unit=unit.id,
        served_model_name=unit.served_model_name,
        family=serving.family,
        backend=unit.toolchain.backend,
        max_batch_size=limits.max_batch_size,
        max_input_len=longest if serving.enable_chunked_context else min(longest, limits.max_num_tokens),
        max_seq_len=unit.max_seq_len,
        max_beam_width=limits.max_beam_width,
        vocab_size=spec.vocab_size,
        bos_token_id=spec.bos_token_id,
        eos_token_ids=spec.eos_token_ids,
        pad_token_id=spec.pad_token_id,
        streaming=serving.streaming,
        kv_cache_free_gpu_mem_fraction=serving.kv_cache_free_gpu_mem_fraction,
        max_tokens_in_paged_kv_cache=serving.max_tokens_in_paged_kv_cache,
        kv_cache_host_memory_bytes=serving.kv_cache_host_memory_bytes,
        enable_kv_cache_reuse=unit.kv_cache_reuse,
        enable_chunked_context=serving.enable_chunked_context,
        batch_scheduler_policy=serving.batch_scheduler_policy,
        max_queue_size=serving.max_queue_size,
        max_queue_delay_microseconds=serving.max_queue_delay_microseconds,
        guided_decoding=serving.guided_decoding,
        decoding_mode=_decoding_mode(unit),
        lookahead=_lookahead(unit),
        lora_cache=_lora_cache(unit),
    )


def _decoding_mode(unit: Unit) -> str | None:
    """None: TensorRT-LLM's default, sampling by top_k and top_p."""
    if unit.settings.speculative:
        return _DECODING_MODES.get(unit.settings.speculative.mode)
    return "beam_search" if unit.limits.max_beam_width > 1 else None


def _lookahead(unit: Unit) -> LookaheadSizes | None:
    speculative = unit.settings.speculative
    if speculative is None or speculative.lookahead is None or speculative.mode != "lookahead_decoding":
        return None
    return LookaheadSizes(**speculative.lookahead.model_dump())


def _lora_cache(unit: Unit) -> LoraCache | None:
    """Pages of the cache must hold an adapter of the largest rank that the engine takes."""
    lora = unit.settings.lora
    if lora is None:
        return None
    return LoraCache(lora.max_rank, min(_OPTIMAL_ADAPTER_SIZE, lora.max_rank))
