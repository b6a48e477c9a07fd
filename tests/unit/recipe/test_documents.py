"""The generated documents: committed, and no older than what they are generated from."""

import json
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from builder.recipe.documents import json_schema, json_schema_text, reference_text
from tests.unit.recipe.test_loading import GOOD

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    schema = json_schema()
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def test_the_committed_json_schema_is_up_to_date() -> None:
    assert (ROOT / "docs" / "recipe.schema.json").read_text() == json_schema_text(), "run `make docs`"


def test_the_committed_reference_is_up_to_date() -> None:
    assert (ROOT / "docs" / "recipe.md").read_text() == reference_text(), "run `make docs`"


def test_every_shipped_recipe_satisfies_the_json_schema(validator: Draft202012Validator) -> None:
    recipes = sorted((ROOT / "recipes").glob("*.yaml"))
    assert recipes
    for recipe in recipes:
        assert [error.message for error in validator.iter_errors(yaml.safe_load(recipe.read_text()))] == []


@pytest.mark.parametrize(
    "change",
    [
        {"unknown": 1},
        {"targets": [{"sku": "h100"}]},
        {"precision": {"weights": "fp99"}},
        {"toolchain": "trtllm-9.9"},
        {"engine": {"max_output_len": 5}},
        {"engine": {"multiple_profiles": "yes"}},
        {"limits": {"max_batch_size": 0}},
        {"waivers": [{"code": "TP_HEADS"}]},
    ],
)
def test_what_loading_refuses_by_its_words_the_json_schema_refuses(
    validator: Draft202012Validator, change: dict[str, object]
) -> None:
    good = yaml.safe_load(GOOD)
    assert validator.is_valid(good)
    assert not validator.is_valid(good | change)


def test_a_target_may_override_a_part_of_a_setting(validator: Draft202012Validator) -> None:
    good = yaml.safe_load(GOOD)
    good["targets"][0] |= {"precision": {"kv_cache": "fp8"}, "limits": {"max_batch_size": 2}, "gpus": 2}
    assert validator.is_valid(good)


def test_the_json_schema_is_strict_json() -> None:
    json.loads(json_schema_text(), parse_constant=lambda word: pytest.fail(word))


def test_the_reference_names_every_section_and_word() -> None:
    text = reference_text()
    for word in ("`limits`", "`max_num_tokens`", "`served_model_name`", "`waivers`", "int4-awq", "`multiple_profiles`"):
        assert word in text
