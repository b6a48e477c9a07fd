from typing import Any

import pytest

from tests.unit.plan.found import found
from tests.unit.plan.plans import MakeUnits

PYTORCH: dict[str, Any] = {"flow": "pytorch"}


@pytest.mark.parametrize(
    ("flow", "family", "legal"),
    [("engine", "llmapi", ["bls", "ensemble"]), ("pytorch", "bls", ["llmapi"]), ("pytorch", "ensemble", ["llmapi"])],
)
def test_a_family_of_the_other_flow_is_refused(make_units: MakeUnits, flow: str, family: str, legal: list[str]) -> None:
    finding = found(make_units, flow=flow, serving={"family": family})["FAMILY_FLOW"]
    assert (finding.severity, finding.values["valid_families"]) == ("refuse", legal)


@pytest.mark.parametrize(("flow", "family"), [("engine", "bls"), ("engine", "ensemble"), ("pytorch", "llmapi")])
def test_a_family_of_the_flow_is_accepted(make_units: MakeUnits, flow: str, family: str) -> None:
    assert "FAMILY_FLOW" not in found(make_units, flow=flow, serving={"family": family})


def test_engines_have_grammars_by_xgrammar_only(make_units: MakeUnits) -> None:
    finding = found(make_units, serving={"guided_decoding": "llguidance"})["GUIDED_DECODING"]
    assert (finding.severity, finding.values["valid_backends"]) == ("refuse", ["none", "xgrammar"])
    assert found(make_units, serving={"guided_decoding": "xgrammar"}) == {}


def test_the_pytorch_flow_has_llguidance(make_units: MakeUnits) -> None:
    serving = {"family": "llmapi", "guided_decoding": "llguidance"}
    assert "GUIDED_DECODING" not in found(make_units, **PYTORCH, serving=serving)


def test_a_host_cache_without_reuse_is_told(make_units: MakeUnits) -> None:
    serving = {"kv_cache_host_memory_bytes": 45_000_000_000, "enable_kv_cache_reuse": False}
    assert found(make_units, serving=serving)["HOST_CACHE_UNUSED"].severity == "warn"
    assert found(make_units, serving=serving | {"enable_kv_cache_reuse": True}) == {}


def test_queue_settings_have_no_effect_on_llmapi(make_units: MakeUnits) -> None:
    serving = {"family": "llmapi", "max_queue_delay_microseconds": 100}
    assert found(make_units, **PYTORCH, serving=serving)["QUEUE_SETTINGS_UNUSED"].severity == "warn"
    assert found(make_units, serving={"max_queue_delay_microseconds": 100}) == {}


@pytest.mark.parametrize("name", ["tensorrt_llm", "ensemble"])
def test_names_inside_the_repository_are_reserved(make_units: MakeUnits, name: str) -> None:
    assert found(make_units, serving={"served_model_name": name})["SERVED_NAME_RESERVED"].severity == "refuse-waivable"
    assert found(make_units, serving={"served_model_name": f"{name}-8b"}) == {}


@pytest.mark.parametrize("template", ["chat.jinja", "file:", "{{ messages }}", "https://example.org/chat.jinja"])
def test_a_chat_template_that_is_no_file_is_refused(make_units: MakeUnits, template: str) -> None:
    assert found(make_units, serving={"chat_template": template})["CHAT_TEMPLATE_FORM"].severity == "refuse"


def test_a_chat_template_in_a_file_is_accepted(make_units: MakeUnits) -> None:
    assert "CHAT_TEMPLATE_FORM" not in found(make_units, serving={"chat_template": "file:chat.jinja"})
