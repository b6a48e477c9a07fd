"""Each check of the lint on a sound repository in which one thing was broken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from builder.plan.serving import ServingSettings
from builder.triton.lint import lint_repository
from builder.triton.repository import write_repository


@pytest.fixture
def models(settings: ServingSettings, tokenizer: Path, tmp_path: Path) -> Path:
    write_repository(settings, tokenizer, ["tokenizer.json"], tmp_path / "out")
    return tmp_path / "out" / "models"


def found(models: Path, engine_max_batch_size: int = 16) -> list[tuple[str, str]]:
    return [(finding.code, finding.where) for finding in lint_repository(models, engine_max_batch_size)]


def change(models: Path, model: str, edit: Callable[[Any], object]) -> None:
    path = models / model / "config.pbtxt"
    config = text_format.Parse(path.read_text(), ModelConfig())
    edit(config)
    path.write_text(text_format.MessageToString(config))


def step(config: Any, number: int) -> Any:
    return config.ensemble_scheduling.step[number]


def remove_output(config: Any, name: str) -> None:
    kept = [tensor for tensor in config.output if tensor.name != name]
    del config.output[:]
    config.output.extend(kept)


def test_a_stray_folder_is_named(models: Path) -> None:
    (models / ".ipynb_checkpoints").mkdir()
    assert found(models) == [("REPO_STRAY_ENTRY", ".ipynb_checkpoints")]


def test_a_version_folder_must_be_a_number_and_there_must_be_one(models: Path) -> None:
    (models / "ensemble" / "1").rename(models / "ensemble" / "v1")
    assert found(models) == [("REPO_STRAY_ENTRY", "ensemble/v1"), ("NO_VERSION", "ensemble")]


def test_a_placeholder_is_found_even_where_it_parses(models: Path) -> None:
    change(models, "postprocessing", lambda config: config.parameters["x"].MergeFrom(_value("${tokenizer_dir}")))
    assert found(models) == [("UNFILLED_PLACEHOLDER", "postprocessing/config.pbtxt")]


def _value(text: str) -> Any:
    config = ModelConfig()
    config.parameters["x"].string_value = text
    return config.parameters["x"]


def test_an_unreadable_configuration_is_named(models: Path) -> None:
    path = models / "postprocessing" / "config.pbtxt"
    path.write_text(path.read_text() + "\nmax_batch_size: ${triton_max_batch_size}\n")
    codes = {code for code, where in found(models) if where == "postprocessing/config.pbtxt"}
    assert codes == {"UNFILLED_PLACEHOLDER", "CONFIG_UNREADABLE"}


def test_a_batch_larger_than_the_engine_s_is_named_with_both_numbers(models: Path) -> None:
    findings = lint_repository(models, engine_max_batch_size=8)
    assert {finding.code for finding in findings} == {"TRITON_BATCH_GT_ENGINE"}
    assert "16" in findings[0].message
    assert "8" in findings[0].message


@pytest.mark.parametrize(
    ("model", "edit", "expected"),
    [
        ("postprocessing", lambda c: c.input.append(c.input[0]), ("DUPLICATE_TENSOR", "postprocessing")),
        ("ensemble", lambda c: setattr(c, "name", "other"), ("NAME_MISMATCH", "ensemble")),
        (
            "tensorrt_llm_bls",
            lambda c: c.ClearField("model_transaction_policy"),
            ("DECOUPLED_DIFFERS", "tensorrt_llm_bls"),
        ),
        ("ensemble", lambda c: step(c, 0).input_map.pop("QUERY"), ("UNMAPPED_INPUT", "ensemble")),
        ("ensemble", lambda c: step(c, 1).input_map.pop("seed"), ("UNUSED_INPUT", "ensemble")),
        ("ensemble", lambda c: step(c, 1).input_map.update({"sed": "seed"}), ("UNKNOWN_TENSOR", "ensemble")),
        ("ensemble", lambda c: step(c, 2).input_map.update({"TOKENS_BATCH": "_X"}), ("NOT_PRODUCED", "ensemble")),
        ("ensemble", lambda c: step(c, 1).output_map.pop("cum_log_probs"), ("NOT_PRODUCED", "ensemble")),
        (
            "ensemble",
            lambda c: step(c, 1).output_map.update({"sequence_length": "_TOKENS_BATCH"}),
            ("PRODUCED_TWICE", "ensemble"),
        ),
        ("ensemble", lambda c: setattr(step(c, 2), "model_name", "post"), ("UNKNOWN_STEP", "ensemble")),
        ("ensemble", lambda c: setattr(c.input[0], "data_type", "TYPE_INT32"), ("TYPES_DIFFER", "ensemble")),
        ("preprocessing", lambda c: remove_output(c, "INPUT_ID"), ("UNKNOWN_TENSOR", "ensemble")),
    ],
)
def test_one_broken_thing_is_found(
    model: str, edit: Callable[[Any], object], expected: tuple[str, str], models: Path
) -> None:
    change(models, model, edit)
    assert expected in found(models)
