import pytest

from builder import catalog
from builder.catalog import engine_refusal, engine_removal, has_engines, minimum_transformers, toolchains, unlisted

GUIDE = "https://nvidia.github.io/TensorRT-LLM/legacy/tensorrt-backend-removal.html"


def test_a_release_without_engines_names_the_last_that_has_them_and_the_guide() -> None:
    message = engine_refusal(toolchains()["trtllm-1.4.0rc1"])
    assert message is not None
    for word in ("trtllm-1.4.0rc1", "trtllm-1.2.1", "1.3.0rc21", "pytorch", GUIDE):
        assert word in message


def test_a_release_with_engines_has_no_such_message_and_a_retired_one_its_reason() -> None:
    assert engine_refusal(toolchains()["trtllm-1.2.1"]) is None
    assert engine_refusal(toolchains()["trtllm-0.12.0"]) == toolchains()["trtllm-0.12.0"].retired


def test_the_programs_that_are_left_after_the_removal_are_known() -> None:
    assert engine_removal().console_scripts_left == ("trtllm-bench", "trtllm-serve", "trtllm-eval")


@pytest.mark.parametrize(
    ("version", "engines"),
    [
        ("1.2.1", True),
        ("1.3.0rc20", True),
        ("1.3.0rc21", False),
        ("1.3.0", False),
        ("1.4.0rc1", False),
        ("0.9.0", True),
    ],
)
def test_engines_end_before_1_3_0rc21(version: str, engines: bool) -> None:
    assert has_engines(version) is engines


def test_a_release_between_two_known_ones_is_placed_between_them() -> None:
    found = unlisted("trtllm-1.3.0rc25")
    assert found.nearest == ("trtllm-1.3.0rc24", "trtllm-1.3.0rc26")
    assert found.engines is False
    assert "1.3.0rc21" in found.message


def test_a_release_after_the_last_known_one_says_so() -> None:
    found = unlisted("trtllm-1.5.0")
    assert found.nearest == ("trtllm-1.4.0rc4",)
    assert "newer than every release" in found.message


def test_a_patch_release_with_engines_is_known_to_have_them() -> None:
    found = unlisted("trtllm-1.0.3.2510")
    assert found.engines is True
    assert found.nearest == ("trtllm-1.0.0", "trtllm-1.1.0")


def test_another_spelling_of_a_known_release_is_answered_with_ours() -> None:
    assert unlisted("trtllm-1.2.1.0").nearest == ("trtllm-1.2.1",)


def test_a_misspelt_toolchain_is_answered_with_the_nearest_word() -> None:
    found = unlisted("trtlm-1.2.1")
    assert found.engines is None
    assert "trtllm-1.2.1" in found.message


@pytest.mark.parametrize(
    ("model_type", "version"),
    [
        ("qwen3", "4.51.0"),
        ("qwen3_moe", "4.51.0"),
        ("qwen2", "4.37.0"),
        ("gemma2", "4.42.0"),
        ("gemma3", "4.50.0"),
        ("mixtral", "4.36.0"),
        ("deepseek_v3", "4.51.0"),
        ("llama4", "4.51.0"),
        ("gpt_oss", "4.55.0"),
    ],
)
def test_the_first_transformers_release_of_a_model_type_is_known(model_type: str, version: str) -> None:
    assert minimum_transformers(model_type) == version


def test_rope_scaling_may_need_a_newer_transformers_than_the_model_type() -> None:
    assert minimum_transformers("llama") is None
    assert minimum_transformers("llama", "llama3") == "4.43.0"
    assert minimum_transformers("qwen3", "llama3") == "4.51.0"


def test_an_unknown_model_type_has_no_minimum() -> None:
    assert minimum_transformers("nobody_knows") is None


def test_qwen3_needs_more_than_the_transformers_of_0_18() -> None:
    minimum = minimum_transformers("qwen3")
    assert minimum is not None
    assert catalog.parse_version("4.48.3") < catalog.parse_version(minimum)
