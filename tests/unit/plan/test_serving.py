from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from builder.plan import Unit
from builder.plan.serving import LookaheadSizes, LoraCache, ServingSettings, serving_settings
from tests.unit.plan.plans import MakeUnits, recipe


def settings(make_units: MakeUnits, extra: str = "", **words: Any) -> ServingSettings:
    return serving_settings(unit(make_units, extra, **words))


def unit(make_units: MakeUnits, extra: str = "", **words: Any) -> Unit:
    [made] = make_units(recipe(extra=extra, **words))
    return made


def test_the_record_of_a_plain_recipe(make_units: MakeUnits) -> None:
    assert settings(make_units) == ServingSettings(
        unit="tiny/bf16-tp1/h100-sxm-80gb",
        served_model_name="tiny",
        family="bls",
        backend="tensorrtllm",
        max_batch_size=4,
        max_input_len=1023,
        max_seq_len=1024,
        max_beam_width=1,
        vocab_size=49152,
        bos_token_id=1,
        eos_token_ids=(2,),
        pad_token_id=2,
        streaming=True,
        kv_cache_free_gpu_mem_fraction=0.9,
        max_tokens_in_paged_kv_cache=None,
        kv_cache_host_memory_bytes=0,
        enable_kv_cache_reuse=True,
        enable_chunked_context=False,
        batch_scheduler_policy="guaranteed_no_evict",
        max_queue_size=0,
        max_queue_delay_microseconds=0,
        guided_decoding="none",
        decoding_mode=None,
        lookahead=None,
        lora_cache=None,
    )


def test_the_sku_cpu_has_the_reference_backend(make_units: MakeUnits) -> None:
    assert settings(make_units, sku="cpu").backend == "reference"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("streaming", False),
        ("kv_cache_free_gpu_mem_fraction", 0.5),
        ("max_tokens_in_paged_kv_cache", 8192),
        ("kv_cache_host_memory_bytes", 1 << 33),
        ("enable_kv_cache_reuse", False),
        ("enable_chunked_context", True),
        ("batch_scheduler_policy", "max_utilization"),
        ("max_queue_size", 64),
        ("max_queue_delay_microseconds", 1000),
        ("guided_decoding", "xgrammar"),
        ("family", "ensemble"),
        ("served_model_name", "other"),
    ],
)
def test_each_serving_field_is_in_the_record_under_its_own_name(
    field: str, value: object, make_units: MakeUnits
) -> None:
    text = str(value).lower() if isinstance(value, bool) else value
    changed = settings(make_units, f"serving: {{{field}: {text}}}")
    assert getattr(changed, field) == value
    assert dataclasses.asdict(changed) == dataclasses.asdict(settings(make_units)) | {field: value}


def test_kv_reuse_is_off_where_the_engine_cannot(make_units: MakeUnits) -> None:
    assert not settings(make_units, kv_cache="int8").enable_kv_cache_reuse


@pytest.mark.parametrize(("chunked", "longest"), [("false", 256), ("true", 1023)])
def test_without_chunked_context_a_prompt_must_fit_one_pass(chunked: str, longest: int, make_units: MakeUnits) -> None:
    text = recipe(extra=f"serving: {{enable_chunked_context: {chunked}}}")
    [made] = make_units(text.replace("max_num_tokens: 4096", "max_num_tokens: 256"))
    assert serving_settings(made).max_input_len == longest


def test_several_beams_are_searched(make_units: MakeUnits) -> None:
    [made] = make_units(recipe().replace("max_batch_size: 4", "max_batch_size: 4, max_beam_width: 3"))
    assert serving_settings(made).max_beam_width == 3
    assert serving_settings(made).decoding_mode == "beam_search"


@pytest.mark.parametrize(
    ("mode", "decoding_mode"),
    [
        ("lookahead_decoding", "lookahead"),
        ("medusa", "medusa"),
        ("eagle", "eagle"),
        ("explicit_draft_tokens", "redrafter"),
        ("draft_tokens_external", None),
    ],
)
def test_speculative_modes_have_the_backend_s_words(
    mode: str, decoding_mode: str | None, make_units: MakeUnits
) -> None:
    assert settings(make_units, f"speculative: {{mode: {mode}, max_draft_len: 8}}").decoding_mode == decoding_mode


def test_lookahead_sizes_are_carried(make_units: MakeUnits) -> None:
    sizes = "lookahead: {window_size: 7, ngram_size: 5, verification_set_size: 3}"
    made = settings(make_units, f"speculative: {{mode: lookahead_decoding, max_draft_len: 40, {sizes}}}")
    assert made.lookahead == LookaheadSizes(window_size=7, ngram_size=5, verification_set_size=3)


@pytest.mark.parametrize(("rank", "optimal"), [(64, 8), (4, 4)])
def test_the_lora_cache_holds_adapters_of_the_largest_rank(rank: int, optimal: int, make_units: MakeUnits) -> None:
    assert settings(make_units, f"lora: {{max_rank: {rank}}}").lora_cache == LoraCache(rank, optimal)
