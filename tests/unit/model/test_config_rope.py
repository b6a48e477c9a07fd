from typing import Any

import pytest

from builder.errors import SourceError
from builder.model.spec import ModelSpec, Rope
from tests.unit.model.published import published_config, published_spec

LLAMA3_ROPE = {
    "type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def config(*without: str, **changes: Any) -> dict[str, Any]:
    changed = {**published_config("meta-llama--Llama-3.1-8B"), **changes}
    return {key: value for key, value in changed.items() if key not in without}


def refusal(*without: str, **changes: Any) -> SourceError:
    with pytest.raises(SourceError) as caught:
        ModelSpec.from_config(config(*without, **changes), "config.json")
    assert "config.json" in str(caught.value.where)
    return caught.value


@pytest.mark.parametrize(
    ("given", "theta", "scaling"),
    [
        pytest.param({}, 10000.0, None, id="Llama-2-says-nothing"),
        pytest.param({"rope_theta": 100000}, 100000.0, None, id="only-theta"),
        pytest.param({"rope_theta": 1e6, "rope_scaling": None}, 1e6, None, id="scaling-null"),
        pytest.param({"rope_scaling": {"rope_type": "default"}}, 10000.0, None, id="scaling-default"),
        pytest.param(
            {"rope_scaling": {"type": "linear", "factor": 4.0}}, 10000.0, {"type": "linear", "factor": 4.0}, id="linear"
        ),
        pytest.param(
            {"rope_theta": 5e5, "rope_scaling": LLAMA3_ROPE | {"rope_type": "llama3"}}, 5e5, LLAMA3_ROPE, id="llama3"
        ),
        pytest.param(
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
            10000.0,
            {"type": "dynamic", "factor": 2.0},
            id="dynamic",
        ),
        pytest.param({"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}, 1e6, None, id="v5-default"),
        pytest.param(
            {"rope_parameters": {"rope_theta": 5e5, **LLAMA3_ROPE, "partial_rotary_factor": 1.0}},
            5e5,
            LLAMA3_ROPE,
            id="v5-llama3",
        ),
        pytest.param(
            {"rope_theta": 1e6, "rope_parameters": {"rope_theta": 1e6}, "rope_scaling": {"type": "default"}},
            1e6,
            None,
            id="both-forms-agree",
        ),
    ],
)
def test_rope_has_several_spellings(given: dict[str, Any], theta: float, scaling: dict[str, Any] | None) -> None:
    described = ModelSpec.from_config({**config("rope_theta", "rope_scaling"), **given}, "config.json")
    assert (described.rope_theta, described.rope_scaling) == (theta, scaling)


@pytest.mark.parametrize(
    ("scaling", "words"),
    [
        ({"rope_type": "ntk", "factor": 2.0}, "'ntk'"),
        ({"type": "yarn", "factor": 2.0, "beta": 32}, "beta for the rope type yarn"),
        ({"type": "linear", "factor": 2.0, "beta_fast": 32}, "beta_fast for the rope type linear"),
        ({"factor": 2.0}, "factor for the rope type default"),
        ({"full_attention": {"rope_theta": 1e6}, "other": {}}, "full_attention, other"),
    ],
)
def test_a_rope_that_is_not_known_is_refused(scaling: dict[str, Any], words: str) -> None:
    error = refusal(rope_scaling=scaling)
    assert error.code == "UNSUPPORTED_ROPE"
    assert words in error.message
    assert "llama3, yarn" in str(error.why)


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"rope_scaling": {"type": "linear"}}, "CONFIG_FIELD", "factor is missing"),
        ({"rope_scaling": {"type": 5}}, "CONFIG_FIELD", "type must be text"),
        ({"rope_scaling": {**LLAMA3_ROPE, "factor": "8"}}, "CONFIG_FIELD", "factor must be"),
        ({"rope_scaling": {**LLAMA3_ROPE, "low_freq_factor": 4.5}}, "CONFIG_CONTRADICTION", "low_freq_factor"),
        ({"rope_scaling": {"type": "linear", "rope_type": "llama3"}}, "CONFIG_CONTRADICTION", "linear, llama3"),
        ({"partial_rotary_factor": 1.5}, "CONFIG_FIELD", "partial_rotary_factor must be"),
        ({"partial_rotary_factor": 0.5, "rope_scaling": {"partial_rotary_factor": 0.25}}, "CONFIG_CONTRADICTION", ""),
        ({"rope_scaling": {"type": "longrope", "short_factor": [1.0]}}, "CONFIG_FIELD", "long_factor is missing"),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [16, "24"]}}, "CONFIG_FIELD", "mrope_section must be"),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 23]}}, "CONFIG_CONTRADICTION", "64 pairs"),
        ({"rope_scaling": {"type": "yarn", "factor": float("inf")}}, "CONFIG_FIELD", "factor must be"),
        ({"rope_scaling": {"full_attention": 5}}, "CONFIG_FIELD", "full_attention must be an object"),
        ({"rope_scaling": {"sliding_attention": {}}}, "CONFIG_FIELD", "full_attention is missing"),
        ({"rope_parameters": {"rope_theta": 1e4}}, "CONFIG_CONTRADICTION", "rope_theta"),
        ({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, "CONFIG_CONTRADICTION", "rope_scaling"),
    ],
)
def test_a_rope_that_is_incomplete_or_contradictory_is_refused(changes: dict[str, Any], code: str, words: str) -> None:
    error = refusal(**changes)
    assert error.code == code
    assert words in error.message


def full_rope(model: str, layer: int = -1) -> Rope:
    attention = published_spec(model).layers[layer].attention
    assert attention is not None
    assert attention.rope is not None
    return attention.rope


def test_yarn_keeps_its_numbers() -> None:
    assert full_rope("deepseek-ai--DeepSeek-V3") == Rope(
        10000.0,
        "yarn",
        {
            "factor": 40.0,
            "original_max_position_embeddings": 4096,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
    )
    assert full_rope("openai--gpt-oss-20b").scaling["truncate"] is False


@pytest.mark.parametrize("spelling", ["longrope", "su"])
def test_longrope_has_a_factor_for_every_pair_that_is_turned(spelling: str) -> None:
    config = published_config("microsoft--Phi-4-mini-instruct")
    config["rope_scaling"] = {**config["rope_scaling"], "type": spelling}
    read = ModelSpec.from_config(config, "config.json").layers[0].attention
    assert read is not None
    assert read.rope is not None
    assert (read.rope.type, read.rope.partial_factor) == ("longrope", 0.75)
    assert len(read.rope.scaling["long_factor"]) == 48 == read.head_dim * 0.75 / 2
    assert read.rope.scaling["original_max_position_embeddings"] == 4096
    config["rope_scaling"]["long_factor"] = [1.0] * 64
    with pytest.raises(SourceError, match="long_factor has 64 numbers, but 48 pairs are turned"):
        ModelSpec.from_config(config, "config.json")


def test_ropes_of_several_kinds_of_layers_are_kept_apart() -> None:
    model = "google--gemma-4-26B-A4B"
    assert full_rope(model, 5) == Rope(1e6, "proportional", {}, 0.25)
    assert full_rope(model, 0) == Rope(1e4, "default")
    assert published_spec(model).rope_theta == 1e6


def test_gemma_3_turns_local_layers_slower_and_never_stretches_them() -> None:
    assert full_rope("google--gemma-3-4b-it", 5) == Rope(1e6, "linear", {"factor": 8.0})
    assert full_rope("google--gemma-3-4b-it", 0) == Rope(1e4, "default")


def test_a_rope_over_three_axes_is_called_mrope() -> None:
    rope = full_rope("Qwen--Qwen3.5-35B-A3B")
    assert (rope.type, rope.theta, rope.partial_factor) == ("mrope", 1e7, 0.25)
    assert rope.scaling == {"mrope_section": (11, 11, 10), "mrope_interleaved": True}


def test_llama_4_turns_chunked_layers_only() -> None:
    layers = published_spec("meta-llama--Llama-4-Scout-17B-16E-Instruct").layers
    ropes = [layer.attention.rope for layer in layers if layer.attention]
    assert [rope is None for rope in ropes[:8]] == [False, False, False, True] * 2
    assert ropes[0] is not None
    assert ropes[0].scaling["low_freq_factor"] == ropes[0].scaling["high_freq_factor"] == 1.0


def test_a_theta_that_no_file_and_no_class_gives_is_refused() -> None:
    config = published_config("google--gemma-4-26B-A4B")
    del config["text_config"]["rope_parameters"]
    with pytest.raises(SourceError, match="rope_theta is missing"):
        ModelSpec.from_config(config, "config.json")
