import pytest

from builder.model.families import NAMES, families, family_of


def test_a_family_has_what_the_one_it_is_like_has() -> None:
    mixtral, mistral = families()["mixtral"], families()["mistral"]
    assert (mixtral.windows, mixtral.attention_bias) == (mistral.windows, mistral.attention_bias) == ("all", "never")
    assert mixtral.experts is not None
    assert mixtral.name("expert_gate") == "w1"
    assert mixtral.name("query") == "q_proj"


@pytest.mark.parametrize("name", sorted(families()))
def test_a_family_says_only_what_is_understood(name: str) -> None:
    family = families()[name]
    assert family.architectures
    assert family.names.keys() <= NAMES.keys()
    assert family.hybrid in (None, "linear", "pattern", "blocks")
    assert family.qk_norm in ("none", "per-head", "weightless")
    assert isinstance(family.windows, dict) or family.windows in ("none", "all", "last", "chunked")
    assert family.experts is None or family.experts.dense in ("none", "first", "step", "interleaved", "beside")
    assert {extra.size for extra in family.extra} <= {"one", "hidden", "heads", "experts"}


@pytest.mark.parametrize(
    ("architecture", "model_type", "family"),
    [
        ("DeepseekV3ForCausalLM", "kimi_k2", "kimi_k2"),
        ("DeepseekV3ForCausalLM", None, "deepseek_v3"),
        ("LlamaForCausalLM", "mistral", None),
        ("LlamaForCausalLM", "new", None),
        ("NewForCausalLM", None, None),
    ],
)
def test_a_family_is_known_by_model_type_and_architecture(
    architecture: str, model_type: str | None, family: str | None
) -> None:
    found = family_of(architecture, model_type)
    assert (found.model_type if found else None) == family
