"""A small tokenizer with all 256 bytes, and a served tree around it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as LibraryTokenizer

from builder.runtime.bundle import Bundle
from builder.runtime.tokenizer import Tokenizer

TEXT = ["The capital of France is Paris.", "What is the capital of France?", "user assistant system helpful"] * 4
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = LibraryTokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, special_tokens=SPECIAL, show_progress=False
    )
    library.train_from_iterator(TEXT, trainer)
    library.add_tokens([AddedToken("<tool_call>", special=False, normalized=False)])
    folder = tmp_path_factory.mktemp("tokenizer")
    library.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>", "add_bos_token": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="session")
def tokenizer(tokenizer_folder: Path) -> Tokenizer:
    return Tokenizer(tokenizer_folder)


@pytest.fixture
def serving() -> dict[str, object]:
    """The content of a valid serving.json."""
    return {
        "schema": 2,
        "unit": "tiny/bf16-tp1/cpu",
        "served_model_name": "tiny",
        "family": "bls",
        "backend": "reference",
        "max_batch_size": 4,
        "max_input_len": 64,
        "max_seq_len": 96,
        "max_beam_width": 1,
        "streaming": True,
        "guided_decoding": "none",
        "vocab_size": 401,
        "bos_token_id": 1,
        "eos_token_ids": [2],
        "pad_token_id": 2,
    }


@pytest.fixture
def bundle(tmp_path: Path, tokenizer_folder: Path, serving: dict[str, object]) -> Bundle:
    root = tmp_path / "bundle"
    (root / "engine").mkdir(parents=True)
    (root / "tokenizer").symlink_to(tokenizer_folder)
    (root / "models").mkdir(parents=True, exist_ok=True)
    (root / "serving.json").write_text(json.dumps(serving))
    limits = {"max_batch_size": 4, "max_input_len": 64, "max_seq_len": 96, "max_beam_width": 1}
    (root / "engine" / "config.json").write_text(json.dumps({"build_config": limits}))
    return Bundle.open(root)
