from pathlib import Path

import pytest

from tests.unit.recipe.test_loading import GOOD, refused

WEIGHT_ONLY = {"use_weight_only": True, "weight_only_precision": "int8"}
BOTH = WEIGHT_ONLY | {"smoothquant": 0.5}


def lines(options: dict[str, object], indent: str) -> str:
    return "".join(f"{indent}{word}: {str(value).lower()}\n" for word, value in options.items())


@pytest.mark.parametrize(
    "text",
    [
        GOOD + lines(BOTH, ""),
        GOOD + "engine:\n" + lines(BOTH, "  "),
        GOOD + lines(BOTH, "    "),
        GOOD + "    engine:\n" + lines(BOTH, "      "),
        GOOD.replace("precision: {weights: bf16}", "precision:\n  weights: bf16\n" + lines(BOTH, "  ")),
    ],
    ids=["recipe", "engine", "target", "engine-of-target", "precision"],
)
def test_two_schemes_at_once_are_named_wherever_they_stand(tmp_path: Path, text: str) -> None:
    error = refused(tmp_path, text)
    assert error.code == "QUANT_CONFLICT"
    assert "weight-only: use_weight_only, weight_only_precision; smoothquant: smoothquant" in error.render()


def test_an_option_contradicts_the_precision_of_the_recipe(tmp_path: Path) -> None:
    error = refused(tmp_path, GOOD.replace("bf16", "int8-wo") + "engine: {smoothquant: 0.5}\n")
    assert error.code == "QUANT_CONFLICT"
    assert "precision.weights int8-wo" in error.render()


@pytest.mark.parametrize(
    "options",
    [
        WEIGHT_ONLY,
        WEIGHT_ONLY | {"int8_kv_cache": True},  # a KV cache in INT8 goes with any weights
        {"use_weight_only": True, "weight_only_precision": "int4_gptq", "group_size": 128},  # GPTQ has groups
        WEIGHT_ONLY | {"per_channel": False},
    ],
    ids=["one", "with-kv-cache", "gptq", "switched-off"],
)
def test_options_of_one_scheme_are_unknown_words_only(tmp_path: Path, options: dict[str, object]) -> None:
    assert refused(tmp_path, GOOD + lines(options, "")).code == "UNKNOWN_KEY"
    assert refused(tmp_path, GOOD + "engine:\n" + lines(options, "  ")).code == "OPTION_MOVED"


def test_two_formats_of_the_kv_cache_contradict_each_other(tmp_path: Path) -> None:
    error = refused(tmp_path, GOOD + "int8_kv_cache: true\nfp8_kv_cache: true\n")
    assert error.code == "QUANT_CONFLICT"


def test_every_misplaced_field_of_the_precision_is_named(tmp_path: Path) -> None:
    error = refused(tmp_path, GOOD.replace("bf16", "int8-wo, group_size: 128, smoothquant_alpha: 0.5"))
    assert error.code == "QUANT_CONFLICT"
    assert "precision.group_size and precision.smoothquant_alpha don't belong" in error.message
