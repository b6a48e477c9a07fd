from typing import Any

import pytest

from builder.lock import PinnedModel, TensorSummary
from builder.model.snapshot import Snapshot
from tests.unit.plan.found import found
from tests.unit.plan.plans import MakeUnits

SOURCE = "hf://me/adapter"
LORA: dict[str, Any] = {
    "max_rank": 16,
    "target_modules": ["attn_q", "attn_v"],
    "adapters": [{"name": "mine", "source": SOURCE}],
}
CONFIG = {"peft_type": "LORA", "r": 16, "target_modules": ["q_proj", "v_proj"]}


def adapter(dtype: str = "BF16", **config: Any) -> dict[str, Any]:
    """Facts of a lock that has pinned the adapter."""
    tensors = TensorSummary("sha256:0", 2, 8, {dtype: 8}, None, False)
    return {"models": {SOURCE: PinnedModel(Snapshot(SOURCE, "c" * 40, ()), CONFIG | config, tensors)}}


def test_an_adapter_that_fits_is_accepted(make_units: MakeUnits) -> None:
    assert found(make_units, lora=LORA, facts=adapter()) == {}


def test_adapters_need_the_plugin(make_units: MakeUnits) -> None:
    assert found(make_units, lora=LORA, engine={"lora_plugin": "disable"})["LORA_PLUGIN"].severity == "refuse"
    assert found(make_units, lora=LORA, engine={"lora_plugin": "auto"}) == {}


def test_the_plugin_needs_adapters(make_units: MakeUnits) -> None:
    assert "section lora" in found(make_units, engine={"lora_plugin": "auto"})["LORA_PLUGIN"].message
    assert found(make_units, engine={"lora_plugin": "disable"}) == {}


def test_the_plugin_computes_in_the_dtype_of_the_model(make_units: MakeUnits) -> None:
    assert "bfloat16" in found(make_units, lora=LORA, engine={"lora_plugin": "float16"})["LORA_PLUGIN"].message
    assert found(make_units, lora=LORA, engine={"lora_plugin": "bfloat16"}) == {}


@pytest.mark.parametrize(("name", "becomes"), [("q_proj", "attn_q"), ("down_proj", "mlp_4h_to_h"), ("attn_x", None)])
def test_a_module_of_another_name_is_refused(make_units: MakeUnits, name: str, becomes: str | None) -> None:
    finding = found(make_units, lora=LORA | {"target_modules": ["attn_q", name]})["LORA_TARGET_MODULES"]
    assert finding.severity == "refuse"
    assert finding.values.get("becomes") == becomes
    assert "attn_v" in finding.values["valid_modules"]


def test_an_engine_that_adapts_nothing_is_refused_with_what_the_adapters_use(make_units: MakeUnits) -> None:
    finding = found(make_units, lora=LORA | {"target_modules": []}, facts=adapter())["LORA_TARGET_MODULES"]
    assert finding.suggestion == "write target_modules: [attn_q, attn_v]"


@pytest.mark.parametrize("config", [{"r": 17}, {"rank_pattern": {"q_proj": 17}}])
def test_a_rank_above_the_engines_is_refused(make_units: MakeUnits, config: dict[str, Any]) -> None:
    finding = found(make_units, lora=LORA, facts=adapter(**config))["LORA_RANK"]
    assert (finding.values["rank"], finding.values["max_rank"]) == (17, 16)
    assert found(make_units, lora=LORA | {"max_rank": 17}, facts=adapter(**config)) == {}


def test_modules_of_an_adapter_that_are_not_built_in_are_refused(make_units: MakeUnits) -> None:
    facts = adapter(target_modules=["model.layers.0.self_attn.o_proj", "v_proj"])
    finding = found(make_units, lora=LORA, facts=facts)["LORA_ADAPTER_MODULES"]
    assert finding.values == {"missing_modules": ["attn_dense"]}


def test_modules_that_no_engine_adapts_are_refused(make_units: MakeUnits) -> None:
    finding = found(make_units, lora=LORA, facts=adapter(target_modules=["q_proj", "lm_head"]))["LORA_ADAPTER_MODULES"]
    assert finding.values == {"unknown_modules": ["lm_head"]}


def test_only_lora_is_served(make_units: MakeUnits) -> None:
    assert found(make_units, lora=LORA, facts=adapter(peft_type="IA3"))["LORA_ADAPTER_KIND"].severity == "refuse"


def test_a_dora_adapter_needs_its_plugin(make_units: MakeUnits) -> None:
    facts = adapter(use_dora=True)
    assert "dora_plugin" in found(make_units, lora=LORA, facts=facts)["LORA_ADAPTER_KIND"].message
    assert found(make_units, lora=LORA, facts=facts, engine={"dora_plugin": True}) == {}


def test_the_dora_plugin_alone_has_no_effect(make_units: MakeUnits) -> None:
    assert found(make_units, engine={"dora_plugin": True})["DORA_PLUGIN_UNUSED"].severity == "warn"


def test_an_adapter_in_another_dtype_is_told(make_units: MakeUnits) -> None:
    finding = found(make_units, lora=LORA, facts=adapter("F32"))["LORA_DTYPE"]
    assert (finding.severity, finding.values) == ("warn", {"becomes": "bfloat16"})


def test_names_of_adapters_are_their_own(make_units: MakeUnits) -> None:
    twice = LORA | {"adapters": [{"name": "mine", "source": SOURCE}, {"name": "mine", "source": "hf://me/other"}]}
    assert "another adapter" in found(make_units, lora=twice)["LORA_NAME"].message
    model = LORA | {"adapters": [{"name": "tiny", "source": SOURCE}]}
    assert "the model itself" in found(make_units, lora=model)["LORA_NAME"].message
