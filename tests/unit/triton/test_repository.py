from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from builder.errors import PlanRefused, SourceError
from builder.plan.serving import ServingSettings
from builder.triton.lint import lint_repository
from builder.triton.repository import write_repository

FILES = ["tokenizer_config.json", "tokenizer.json", "chat_template.jinja"]


def tree(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_the_tree_of_a_gpu_unit(settings: ServingSettings, tokenizer: Path, tmp_path: Path) -> None:
    write_repository(settings, tokenizer, FILES, tmp_path / "out")
    assert sorted(tree(tmp_path / "out")) == [
        "models/ensemble/1/README",
        "models/ensemble/config.pbtxt",
        "models/postprocessing/1/model.py",
        "models/postprocessing/config.pbtxt",
        "models/preprocessing/1/model.py",
        "models/preprocessing/config.pbtxt",
        "models/tensorrt_llm/1/README",
        "models/tensorrt_llm/config.pbtxt",
        "models/tensorrt_llm_bls/1/model.py",
        "models/tensorrt_llm_bls/config.pbtxt",
        "serving.json",
        "tokenizer/chat_template.jinja",
        "tokenizer/tokenizer.json",
        "tokenizer/tokenizer_config.json",
    ]


def test_the_reference_engine_is_a_python_model(settings: ServingSettings, tokenizer: Path, tmp_path: Path) -> None:
    write_repository(dataclasses.replace(settings, backend="reference"), tokenizer, FILES, tmp_path / "out")
    code = (tmp_path / "out/models/tensorrt_llm/1/model.py").read_text()
    assert "from builder.runtime.models.tensorrt_llm import TritonPythonModel" in code
    compile(code, "model.py", "exec")


@pytest.mark.parametrize("backend", ["tensorrtllm", "reference"])
def test_what_is_written_passes_the_lint(
    backend: str, settings: ServingSettings, tokenizer: Path, tmp_path: Path
) -> None:
    write_repository(dataclasses.replace(settings, backend=backend), tokenizer, FILES, tmp_path / "out")
    assert lint_repository(tmp_path / "out/models", engine_max_batch_size=16) == []


def test_the_same_input_gives_the_same_bytes(settings: ServingSettings, tokenizer: Path, tmp_path: Path) -> None:
    write_repository(settings, tokenizer, FILES, tmp_path / "one")
    write_repository(settings, tokenizer, reversed(FILES), tmp_path / "two")
    assert tree(tmp_path / "one") == tree(tmp_path / "two")


def test_serving_json_tells_the_runtime_all_it_needs(
    settings: ServingSettings, tokenizer: Path, tmp_path: Path
) -> None:
    write_repository(settings, tokenizer, FILES, tmp_path / "out")
    assert json.loads((tmp_path / "out/serving.json").read_text()) == {
        "schema": 2,
        "unit": "tiny/bf16-tp1/l40s-48gb",
        "served_model_name": "tiny",
        "family": "bls",
        "backend": "tensorrtllm",
        "max_batch_size": 16,
        "max_input_len": 1024,
        "max_seq_len": 2048,
        "max_beam_width": 1,
        "streaming": True,
        "guided_decoding": "none",
        "vocab_size": 32000,
        "bos_token_id": 1,
        "eos_token_ids": [2, 7],
        "pad_token_id": None,
    }


def test_a_model_without_tokenizer_json_is_refused(settings: ServingSettings, tokenizer: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        write_repository(settings, tokenizer, ["tokenizer.model"], tmp_path / "out")
    assert caught.value.code == "NO_TOKENIZER_JSON"


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../b", "a\\b"])
def test_a_file_name_that_leads_out_is_refused(
    name: str, settings: ServingSettings, tokenizer: Path, tmp_path: Path
) -> None:
    with pytest.raises(SourceError) as caught:
        write_repository(settings, tokenizer, [*FILES, name], tmp_path / "out")
    assert caught.value.code == "PATH_ESCAPE"
    assert not (tmp_path / "secret").exists()


def test_the_recipe_s_chat_template_is_what_is_served(
    settings: ServingSettings, tokenizer: Path, tmp_path: Path
) -> None:
    write_repository(settings, tokenizer, FILES, tmp_path / "out", b"the recipe's")
    assert tree(tmp_path / "out")["tokenizer/chat_template.jinja"] == b"the recipe's"


def test_guided_decoding_finds_its_vocabulary_where_the_engine_is_told(
    settings: ServingSettings, tokenizer: Path, tmp_path: Path
) -> None:
    write_repository(dataclasses.replace(settings, guided_decoding="xgrammar"), tokenizer, FILES, tmp_path / "out")
    config = text_format.Parse((tmp_path / "out/models/tensorrt_llm/config.pbtxt").read_text(), ModelConfig())
    named = Path(config.parameters["xgrammar_tokenizer_info_path"].string_value)
    made = json.loads((tmp_path / "out" / named.relative_to("/opt/engine-builder")).read_text())
    assert made["encoded_vocab"][257] == "</s>"
    assert made["stop_token_ids"] == [2, 7]


def test_without_guided_decoding_there_is_no_file_for_it(
    settings: ServingSettings, tokenizer: Path, tmp_path: Path
) -> None:
    write_repository(settings, tokenizer, FILES, tmp_path / "out")
    assert not list((tmp_path / "out").rglob("xgrammar*"))


def test_a_family_without_these_models_is_refused_before_anything_is_written(
    settings: ServingSettings, tokenizer: Path, tmp_path: Path
) -> None:
    with pytest.raises(PlanRefused) as caught:
        write_repository(dataclasses.replace(settings, family="llmapi"), tokenizer, FILES, tmp_path / "out")
    assert caught.value.code == "FAMILY_UNSUPPORTED"
    assert not (tmp_path / "out").exists()
