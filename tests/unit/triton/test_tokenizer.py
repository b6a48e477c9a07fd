from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from builder.errors import SourceError
from builder.triton.tokenizer import write_tokenizer, xgrammar_info
from tests.tiny_model import tiny_tokenizer

TEMPLATE = b"{{ messages[0]['content'] }}\r\n"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A tokenizer with a chat template in every place that a model may have one."""
    folder = tmp_path / "model"
    (folder / "additional_chat_templates").mkdir(parents=True)
    (folder / "tokenizer.json").write_text(json.dumps(tiny_tokenizer()))
    config = {"eos_token": "</s>", "chat_template": "its own", "model_max_length": 512}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text("its own")
    (folder / "chat_template.json").write_text('{"chat_template": "its own"}')
    (folder / "additional_chat_templates/rag.jinja").write_text("its own")
    return folder


def served(source: Path, into: Path, template: bytes | None = None) -> dict[str, bytes]:
    names = [path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()]
    write_tokenizer(source, names, into, template)
    return {path.relative_to(into).as_posix(): path.read_bytes() for path in into.rglob("*") if path.is_file()}


def test_the_model_s_files_are_served_unchanged(source: Path, tmp_path: Path) -> None:
    files = served(source, tmp_path / "out")
    assert len(files) == 5
    assert all(content == (source / name).read_bytes() for name, content in files.items())


def test_the_recipe_s_template_is_the_only_one_that_is_served(source: Path, tmp_path: Path) -> None:
    files = served(source, tmp_path / "out", TEMPLATE)
    assert files.keys() == {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    assert files["chat_template.jinja"] == TEMPLATE
    assert json.loads(files["tokenizer_config.json"]) == {"eos_token": "</s>", "model_max_length": 512}


def test_a_configuration_without_a_template_is_not_rewritten(source: Path, tmp_path: Path) -> None:
    (source / "tokenizer_config.json").write_text('{"eos_token":   "</s>"}')
    assert served(source, tmp_path / "out", TEMPLATE)["tokenizer_config.json"] == b'{"eos_token":   "</s>"}'


def test_a_configuration_that_is_no_json_is_refused_where_it_must_be_read(source: Path, tmp_path: Path) -> None:
    (source / "tokenizer_config.json").write_text("{")
    with pytest.raises(SourceError) as caught:
        served(source, tmp_path / "out", TEMPLATE)
    assert caught.value.code == "TOKENIZER_JSON"


def test_a_tokenizer_that_cannot_be_read_is_refused(source: Path, tmp_path: Path) -> None:
    (source / "tokenizer.json").write_text("{}")
    with pytest.raises(SourceError) as caught:
        served(source, tmp_path / "out")
    assert caught.value.code == "TOKENIZER_JSON"


def info(change: dict[str, Any] | None = None) -> dict[str, Any]:
    return xgrammar_info(Tokenizer.from_str(json.dumps(tiny_tokenizer() | (change or {}))), (257, 259))


def test_the_vocabulary_is_listed_by_id_with_the_added_tokens() -> None:
    made = info()
    assert made.keys() == {"encoded_vocab", "tokenizer_str", "stop_token_ids"}
    assert len(made["encoded_vocab"]) == 260
    assert made["encoded_vocab"][256:] == ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    assert json.loads(made["tokenizer_str"])["decoder"]["type"] == "ByteLevel"


def test_every_end_token_may_end_a_guided_answer() -> None:
    assert info()["stop_token_ids"] == [257, 259]


def test_an_id_without_a_token_does_not_move_the_tokens_after_it() -> None:
    model = tiny_tokenizer()["model"]
    far = {**model["vocab"], "far": 300}
    made = info({"model": {**model, "vocab": far}})
    assert made["encoded_vocab"][259] == "<|im_end|>"
    assert made["encoded_vocab"][260:] == [""] * 40 + ["far"]


def test_it_says_what_tensorrt_llm_s_own_script_says(tmp_path: Path) -> None:
    """By way of `transformers`, as NVIDIA/TensorRT-LLM examples/generate_xgrammar_tokenizer_info.py does it."""
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(tiny_tokenizer()))
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(file), eos_token="</s>")
    by_id = sorted(theirs.get_vocab().items(), key=lambda item: item[1])
    assert info()["encoded_vocab"] == [token for token, _ in by_id]
    assert json.loads(info()["tokenizer_str"])["model"] == json.loads(theirs.backend_tokenizer.to_str())["model"]
