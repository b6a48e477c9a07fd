from __future__ import annotations

import pytest

from builder.plan import Finding, Unit, check
from tests.unit.plan.plans import MakeUnits, recipe

CODE = "REFERENCE_UNSUPPORTED"
ASKED = {
    "serving.guided_decoding": "serving: {guided_decoding: xgrammar}",
    "lora": "lora: {max_rank: 8}",
    "speculative": "speculative: {mode: medusa, max_draft_len: 63}",
    "limits.max_beam_width": "",
    "parallelism.context": "parallelism: {context: 2}",
}


def units(make_units: MakeUnits, setting: str, sku: str = "cpu", target: str = "") -> list[Unit]:
    text = recipe(sku, extra=ASKED[setting], target=target)
    if setting == "limits.max_beam_width":
        text = text.replace("max_batch_size: 4", "max_batch_size: 4, max_beam_width: 2")
    return make_units(text)


def found(units: list[Unit]) -> list[Finding]:
    return [finding for finding in check(units[0]) if finding.code == CODE]


def test_a_plain_recipe_is_nothing_that_the_reference_engine_lacks(make_units: MakeUnits) -> None:
    assert found(make_units(recipe("cpu"))) == []


@pytest.mark.parametrize("setting", ASKED)
def test_what_the_reference_engine_lacks_is_refused_at_the_setting(setting: str, make_units: MakeUnits) -> None:
    [finding] = found(units(make_units, setting))
    assert finding.severity == "refuse"
    assert finding.values["setting"] == setting
    assert "reference engine" in finding.message
    line = int(finding.where.split(":")[-2])
    assert line > 1


@pytest.mark.parametrize("setting", ASKED)
def test_a_gpu_is_none_of_its_business(setting: str, make_units: MakeUnits) -> None:
    assert found(units(make_units, setting, "h100-sxm-80gb")) == []


@pytest.mark.parametrize(
    ("setting", "override"),
    [
        ("serving.guided_decoding", ", serving: {guided_decoding: none}"),
        ("lora", ", lora: null"),
        ("speculative", ", speculative: null"),
        ("limits.max_beam_width", ", limits: {max_beam_width: 1}"),
        ("parallelism.context", ", parallelism: {context: 1}"),
    ],
)
def test_the_suggested_override_of_the_target_helps(setting: str, override: str, make_units: MakeUnits) -> None:
    [before] = found(units(make_units, setting))
    assert override.removeprefix(", ") in before.suggestion
    assert found(units(make_units, setting, target=override)) == []


def test_what_only_tunes_tensorrt_llm_is_ignored(make_units: MakeUnits) -> None:
    tuning = "enable_chunked_context: true, max_tokens_in_paged_kv_cache: 4096, kv_cache_host_memory_bytes: 1024"
    assert (
        found(make_units(recipe("cpu", extra=f"serving: {{{tuning}, batch_scheduler_policy: max_utilization}}"))) == []
    )
