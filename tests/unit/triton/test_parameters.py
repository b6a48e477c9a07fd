"""Keys and values against those that TensorRT-LLM's C++ backend reads (model_instance_state.cc@0677fdc6)."""

from __future__ import annotations

import dataclasses

import pytest

from builder.plan.serving import LookaheadSizes, LoraCache, ServingSettings
from builder.triton.parameters import engine_parameters

GUIDED = ("tokenizer_dir", "guided_decoding_backend", "xgrammar_tokenizer_info_path")


def told(settings: ServingSettings, **changes: object) -> dict[str, str]:
    return engine_parameters(dataclasses.replace(settings, **changes))  # type: ignore[arg-type]


def test_the_backend_is_told_all_that_it_would_guess(settings: ServingSettings) -> None:
    assert told(settings) == {
        "gpt_model_type": "inflight_fused_batching",
        "gpt_model_path": "/opt/engine-builder/engine",
        "max_beam_width": "1",
        "batch_scheduler_policy": "guaranteed_no_evict",
        "kv_cache_free_gpu_mem_fraction": "0.85",
        "kv_cache_host_memory_bytes": "0",
        "enable_kv_cache_reuse": "true",
        "enable_chunked_context": "false",
        "exclude_input_in_output": "true",
        "normalize_log_probs": "true",
        "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
        **dict.fromkeys(GUIDED, ""),
    }


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("max_tokens_in_paged_kv_cache", 65536, "65536"),
        ("kv_cache_host_memory_bytes", 8 << 30, "8589934592"),
        ("enable_kv_cache_reuse", False, "false"),
        ("enable_chunked_context", True, "true"),
        ("batch_scheduler_policy", "max_utilization", "max_utilization"),
        ("max_beam_width", 4, "4"),
        ("decoding_mode", "medusa", "medusa"),
        ("kv_cache_free_gpu_mem_fraction", 0.0001, "0.0001"),
    ],
)
def test_each_field_reaches_its_key(field: str, value: object, text: str, settings: ServingSettings) -> None:
    assert told(settings, **{field: value})[field] == text


def test_lookahead_decoding_has_all_three_sizes(settings: ServingSettings) -> None:
    parameters = told(settings, decoding_mode="lookahead", lookahead=LookaheadSizes(7, 5, 3))
    assert parameters["decoding_mode"] == "lookahead"
    assert parameters["lookahead_window_size"] == "7"
    assert parameters["lookahead_ngram_size"] == "5"
    assert parameters["lookahead_verification_set_size"] == "3"


def test_the_lora_cache_is_sized_for_the_largest_rank(settings: ServingSettings) -> None:
    parameters = told(settings, lora_cache=LoraCache(max_adapter_size=128, optimal_adapter_size=8))
    assert parameters["lora_cache_max_adapter_size"] == "128"
    assert parameters["lora_cache_optimal_adapter_size"] == "8"
    assert parameters["lora_cache_gpu_memory_fraction"] == "0.05"
    assert parameters["lora_cache_host_memory_bytes"] == "1073741824"


def test_guided_decoding_names_the_tokenizer_and_the_vocabulary_s_file(settings: ServingSettings) -> None:
    parameters = told(settings, guided_decoding="xgrammar")
    assert {key: parameters[key] for key in GUIDED} == {
        "tokenizer_dir": "/opt/engine-builder/tokenizer",
        "guided_decoding_backend": "xgrammar",
        "xgrammar_tokenizer_info_path": "/opt/engine-builder/tokenizer/xgrammar_tokenizer_info.json",
    }


def test_the_reference_engine_is_told_nothing_of_tensorrt_llm_s_memory(settings: ServingSettings) -> None:
    assert told(settings, backend="reference", max_tokens_in_paged_kv_cache=4096).keys() == {
        "gpt_model_path",
        "max_beam_width",
        "exclude_input_in_output",
    }
