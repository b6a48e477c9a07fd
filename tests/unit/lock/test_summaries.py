import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from builder.errors import SourceError
from builder.lock.summaries import ChatTemplate, TensorSummary, TokenizerSummary
from builder.model.safetensors import TensorIndex
from tests.tiny_model import write_tiny_model


def summary(folder: Path, **tensors: np.ndarray) -> TensorSummary:
    folder.mkdir(exist_ok=True)
    save_file({name.replace("__", "."): value for name, value in tensors.items()}, folder / "model.safetensors")
    return TensorSummary.of(TensorIndex.open(folder))


def test_tensors_are_counted_by_dtype_in_bytes(tmp_path: Path) -> None:
    found = summary(tmp_path, a=np.zeros((2, 3), np.float32), b=np.zeros(5, np.float16), c=np.zeros(1, np.float32))
    assert (found.count, found.bytes, found.dtypes) == (3, 38, {"F32": 28, "F16": 10})


def test_the_digest_is_what_sha256sum_tells_of_the_listing(tmp_path: Path) -> None:
    found = summary(tmp_path, b=np.zeros((2, 3), np.float32), a=np.zeros(1, np.float16))
    lines = '["a","F16",[1],"model.safetensors"]\n["b","F32",[2,3],"model.safetensors"]\n'
    assert found.digest == f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}"


def test_other_values_change_nothing_and_another_shape_does(tmp_path: Path) -> None:
    zeros, ones = np.zeros((2, 3), np.float32), np.ones((2, 3), np.float32)
    assert summary(tmp_path, a=zeros) == summary(tmp_path, a=ones)
    assert summary(tmp_path, a=zeros).digest != summary(tmp_path, a=zeros.T.copy()).digest


def test_the_embedding_and_the_head_are_found(tmp_path: Path) -> None:
    found = TensorSummary.of(TensorIndex.open(write_tiny_model(tmp_path)))
    assert (found.embedding_rows, found.head_stored) == (260, True)


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("model.language_model.embed_tokens.weight", 7),
        ("transformer.wte.weight", 7),
        ("gpt_neox.embed_in.weight", 7),
        ("backbone.embeddings.weight", 7),
        ("model.layers.61.embed_tokens.weight", 7),
        ("vision.patch_embed.weight", None),
        ("model.not_embed_tokens.weight", None),
    ],
)
def test_the_rows_of_the_embedding_are_known_by_the_families_names(tmp_path: Path, name: str, rows: int | None) -> None:
    found = summary(tmp_path, **{name: np.zeros((7, 2), np.float32)})
    assert (found.embedding_rows, found.head_stored) == (rows, False)


def test_a_copy_of_the_embedding_in_a_later_layer_does_not_count(tmp_path: Path) -> None:
    tables = {
        "model.layers.61.embed_tokens.weight": np.zeros((9, 2), np.float32),
        "model.embed_tokens.weight": np.zeros((7, 2), np.float32),
    }
    assert summary(tmp_path, **tables).embedding_rows == 7


def tokenizer(folder: Path, **files: object) -> TokenizerSummary | None:
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return TokenizerSummary.of(folder)


def test_the_highest_id_counts_vocabulary_and_added_tokens_of_every_file(tmp_path: Path) -> None:
    vocabulary = {"model": {"vocab": {"a": 0, "b": 31999}}, "added_tokens": [{"id": 1, "content": "<s>"}]}
    assert tokenizer(tmp_path, tokenizer=vocabulary) == TokenizerSummary(31999, {"<s>": 1})
    assert tokenizer(tmp_path, added_tokens={"<pad>": 32000}) == TokenizerSummary(32000, {"<pad>": 32000, "<s>": 1})
    found = tokenizer(tmp_path, tokenizer_config={"added_tokens_decoder": {"32001": {"content": "<extra>"}}})
    assert found == TokenizerSummary(32001, {"<extra>": 32001, "<pad>": 32000, "<s>": 1})


def test_only_the_added_tokens_with_the_highest_ids_are_named(tmp_path: Path) -> None:
    added = [{"id": number, "content": f"<{number}>"} for number in range(100)]
    found = tokenizer(tmp_path, tokenizer={"model": {"vocab": {}}, "added_tokens": added})
    assert found == TokenizerSummary(99, {"<99>": 99, "<98>": 98, "<97>": 97, "<96>": 96})


def test_a_unigram_vocabulary_is_a_list(tmp_path: Path) -> None:
    found = tokenizer(tmp_path, tokenizer={"model": {"vocab": [["a", -1.0], ["b", -2.0]]}})
    assert found == TokenizerSummary(1, {})


def test_the_pieces_of_a_sentencepiece_model_are_counted(tmp_path: Path) -> None:
    """Field 1 of the message, three times, then a field of another number."""
    piece = b"\x0a\x05\x0a\x01a\x18\x01"
    (tmp_path / "tokenizer.model").write_bytes(piece * 3 + b"\x12\x02\x08\x01")
    assert TokenizerSummary.of(tmp_path) == TokenizerSummary(2, {})
    (tmp_path / "tokenizer.model").write_bytes(piece[:4])
    assert TokenizerSummary.of(tmp_path) is None


def test_a_tokenizer_without_tokens_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": 3, "added_tokens": {"a": 1}}')
    assert TokenizerSummary.of(tmp_path) is None


@pytest.mark.parametrize("content", ["", "[]", "null", "[" * 100_000, '{"added_tokens": [{"content": "a", "id": -1}]}'])
def test_a_tokenizer_that_is_none_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(SourceError) as caught:
        TokenizerSummary.of(tmp_path)
    assert caught.value.code == "TOKENIZER_JSON"


def test_a_chat_template_of_its_own_comes_before_that_of_the_tokenizer(tmp_path: Path) -> None:
    assert ChatTemplate.of(tmp_path) is None
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ é }}"}')
    assert ChatTemplate.of(tmp_path) == ChatTemplate(
        "tokenizer_config.json", hashlib.sha256("{{ é }}".encode()).hexdigest()
    )
    (tmp_path / "chat_template.jinja").write_text("{{ b }}")
    assert ChatTemplate.of(tmp_path) == ChatTemplate("chat_template.jinja", hashlib.sha256(b"{{ b }}").hexdigest())


def test_several_named_templates_are_one(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "{{ a }}"}, {"name": "tool_use", "template": "{{ b }}"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    before = ChatTemplate.of(tmp_path)
    named[1]["template"] = "{{ c }}"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert before is not None
    assert ChatTemplate.of(tmp_path) != before
