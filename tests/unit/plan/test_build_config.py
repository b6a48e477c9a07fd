from __future__ import annotations

import json
from typing import Any

import pytest

from builder.plan.build_config import build_config
from tests.unit.plan.plans import MakeUnits, recipe

LIMITS = {
    "max_batch_size": 4,
    "max_input_len": 1023,
    "max_seq_len": 1024,
    "max_num_tokens": 4096,
    "opt_num_tokens": None,
    "max_beam_width": 1,
}


def config(make_units: MakeUnits, extra: str = "", **words: Any) -> dict[str, Any]:
    [unit] = make_units(recipe(extra=extra, **words))
    return build_config(unit)


def test_a_plain_engine_has_its_limits_and_says_whether_it_can_reuse_kv_blocks(make_units: MakeUnits) -> None:
    assert config(make_units) == LIMITS | {"plugin_config": {"use_paged_context_fmha": True}}


def test_the_engine_of_cpu_has_the_limits_alone(make_units: MakeUnits) -> None:
    assert config(make_units, sku="cpu") == LIMITS | {"plugin_config": {}}


def test_paged_context_fmha_is_what_the_precision_makes_of_it(make_units: MakeUnits) -> None:
    made = config(make_units, "engine: {use_paged_context_fmha: true}", kv_cache="int8")
    assert made["plugin_config"]["use_paged_context_fmha"] is False


def test_options_lie_where_build_config_has_them(make_units: MakeUnits) -> None:
    plugins = "gemm_plugin: disable, multiple_profiles: true, reduce_fusion: disable"
    made = config(make_units, f"engine: {{{plugins}, profiling_verbosity: detailed}}")
    assert made["profiling_verbosity"] == "detailed"
    assert made["plugin_config"] == {
        "gemm_plugin": None,
        "multiple_profiles": True,
        "reduce_fusion": False,
        "use_paged_context_fmha": True,
    }


@pytest.mark.parametrize(("one", "other"), [("true", "enable"), ("false", "disable")])
def test_two_words_for_one_thing_are_one_engine(one: str, other: str, make_units: MakeUnits) -> None:
    made = [config(make_units, f"engine: {{multiple_profiles: {word}}}") for word in (one, other)]
    assert made[0] == made[1]


def test_lora_brings_its_plugin(make_units: MakeUnits) -> None:
    made = config(make_units, "lora: {max_rank: 16, target_modules: [attn_q, attn_v]}")
    assert made["plugin_config"]["lora_plugin"] == "auto"
    assert made["lora_config"] == {
        "lora_ckpt_source": "hf",
        "max_lora_rank": 16,
        "lora_target_modules": ["attn_q", "attn_v"],
    }


def test_an_option_has_the_last_word_about_the_lora_plugin(make_units: MakeUnits) -> None:
    made = config(make_units, "lora: {max_rank: 16}\nengine: {lora_plugin: float16}")
    assert made["plugin_config"]["lora_plugin"] == "float16"


def test_speculative_decoding_is_compiled_in(make_units: MakeUnits) -> None:
    made = config(make_units, "speculative: {mode: medusa, max_draft_len: 63}")
    assert (made["speculative_decoding_mode"], made["max_draft_len"]) == ("medusa", 63)


def test_it_can_be_written_as_json(make_units: MakeUnits) -> None:
    made = config(make_units, "lora: {max_rank: 16, target_modules: [attn_q]}\nengine: {gemm_plugin: auto}")
    assert json.loads(json.dumps(made)) == made


def test_a_cpu_target_may_share_options_that_only_trtllm_build_has(make_units: MakeUnits) -> None:
    """The reference toolchain has no flag table: its units are planned, and the options don't count."""
    plain, shared = (config(make_units, more, sku="cpu") for more in ("", "engine: {multiple_profiles: true}"))
    assert plain == shared
