from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer

from builder.model.sources.gguf import convert
from builder.store.digests import ignore_progress
from tests.unit.model.sources.tiny_gguf import SPECIAL, TEMPLATE, TOKENS, TinyGguf


@pytest.fixture
def folder(tmp_path):
    convert(TinyGguf().write(tmp_path / "tiny.gguf"), tmp_path, ignore_progress)
    return tmp_path


@pytest.fixture
def tokenizer(folder):
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("hello", ["hello"]),
        ("hell", ["hell"]),
        (" w", ["Ġw"]),
        ("12", ["1", "2"]),  # a merge of "1 2" exists, but digits stand alone
        (" 12", ["Ġ", "1", "2"]),
        ("é", ["Ã", "©"]),
        ("\n", ["Ċ"]),
        ("<|im_end|>", ["<|im_end|>"]),
        ("hello<|im_end|>", ["hello", "<|im_end|>"]),
    ],
)
def test_text_is_split_as_the_model_was_trained(tokenizer, text, pieces):
    assert tokenizer.encode(text).tokens == pieces


@pytest.mark.parametrize("text", ["hello world", "  12345 ", "naïve 漢字 🙂\n\tx", "".join(map(chr, range(256)))])
def test_decoding_gives_the_text_back(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_special_tokens_are_those_of_type_control(folder):
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    assert [token["content"] for token in tokenizer["added_tokens"]] == SPECIAL
    assert all(token["special"] and not token["normalized"] for token in tokenizer["added_tokens"])


def test_ids_are_positions_in_the_vocabulary(tokenizer):
    assert tokenizer.get_vocab_size() == len(TOKENS)
    assert [tokenizer.token_to_id(token) for token in TOKENS] == list(range(len(TOKENS)))


def test_the_configuration_names_the_special_tokens_and_keeps_the_chat_template(folder):
    config = json.loads((folder / "tokenizer_config.json").read_text())
    roles = {role: config[f"{role}_token"] for role in ("bos", "eos", "unk", "pad")}
    assert roles == {"bos": "<|im_start|>", "eos": "<|im_end|>", "unk": "<|endoftext|>", "pad": "<|im_end|>"}
    assert config["chat_template"] == TEMPLATE
    assert config["model_max_length"] == 128


def test_a_gguf_without_chat_template_gives_a_tokenizer_without_one(tmp_path):
    convert(
        TinyGguf(metadata={"tokenizer.chat_template": None}).write(tmp_path / "tiny.gguf"), tmp_path, ignore_progress
    )
    assert "chat_template" not in json.loads((tmp_path / "tokenizer_config.json").read_text())
