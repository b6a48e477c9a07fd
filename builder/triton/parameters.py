"""Parameters of the model `tensorrt_llm`, in the words of TensorRT-LLM's C++ backend.

A value that the backend would guess when its key is absent is always written; optional features that are off are left
out. All values are text, and text that isn't a number counts as absent without a word.
Source: triton-inference-server/tensorrtllm_backend inflight_batcher_llm/src/model_instance_state.cc@0677fdc6, and the
keys of guided decoding in NVIDIA/TensorRT-LLM triton_backend/all_models/inflight_batcher_llm@0c8de69a.
"""

from __future__ import annotations

from builder.plan.serving import ServingSettings

ROOT = "/opt/engine-builder"
"""Where an image holds the served tree; the launcher puts another folder in its place where it lies elsewhere."""

TOKENIZER_INFO = "tokenizer/xgrammar_tokenizer_info.json"
"""Where guided decoding finds the vocabulary, below ROOT."""


def engine_parameters(settings: ServingSettings) -> dict[str, str]:
    parameters = {
        "gpt_model_path": f"{ROOT}/engine",
        "max_beam_width": str(settings.max_beam_width),
        "exclude_input_in_output": "true",
    }
    if settings.backend == "reference":
        return parameters
    return (
        parameters
        | {
            "gpt_model_type": "inflight_fused_batching",
            "batch_scheduler_policy": settings.batch_scheduler_policy,
            "enable_chunked_context": _word(settings.enable_chunked_context),
            "normalize_log_probs": "true",
            "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
        }
        | _kv_cache(settings)
        | _decoding(settings)
        | _guided_decoding(settings)
        | _lora(settings)
    )


def _kv_cache(settings: ServingSettings) -> dict[str, str]:
    parameters = {
        "kv_cache_free_gpu_mem_fraction": str(settings.kv_cache_free_gpu_mem_fraction),
        "kv_cache_host_memory_bytes": str(settings.kv_cache_host_memory_bytes),
        "enable_kv_cache_reuse": _word(settings.enable_kv_cache_reuse),
    }
    if settings.max_tokens_in_paged_kv_cache is not None:
        parameters["max_tokens_in_paged_kv_cache"] = str(settings.max_tokens_in_paged_kv_cache)
    return parameters


def _decoding(settings: ServingSettings) -> dict[str, str]:
    """Nothing for plain sampling, which the backend takes for a beam width of 1."""
    parameters = {"decoding_mode": settings.decoding_mode} if settings.decoding_mode else {}
    if sizes := settings.lookahead:
        parameters |= {
            "lookahead_window_size": str(sizes.window_size),
            "lookahead_ngram_size": str(sizes.ngram_size),
            "lookahead_verification_set_size": str(sizes.verification_set_size),
        }
    return parameters


def _guided_decoding(settings: ServingSettings) -> dict[str, str]:
    """The backend throws when one of these keys is absent, even where guided decoding is off."""
    if settings.guided_decoding == "none":
        return dict.fromkeys(("tokenizer_dir", "guided_decoding_backend", "xgrammar_tokenizer_info_path"), "")
    return {
        "tokenizer_dir": f"{ROOT}/tokenizer",
        "guided_decoding_backend": settings.guided_decoding,
        "xgrammar_tokenizer_info_path": f"{ROOT}/{TOKENIZER_INFO}",
    }


def _lora(settings: ServingSettings) -> dict[str, str]:
    cache = settings.lora_cache
    if cache is None:
        return {}
    return {
        "lora_cache_max_adapter_size": str(cache.max_adapter_size),
        "lora_cache_optimal_adapter_size": str(cache.optimal_adapter_size),
        "lora_cache_gpu_memory_fraction": str(cache.gpu_memory_fraction),
        "lora_cache_host_memory_bytes": str(cache.host_memory_bytes),
    }


def _word(value: bool) -> str:
    return "true" if value else "false"
