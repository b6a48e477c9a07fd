"""The tokenizer that a GGUF file carries, as `tokenizer.json` and `tokenizer_config.json`.

A GGUF file has the vocabulary and the merges of a byte-level BPE, but only a *name* for how text is split before
(`tokenizer.ggml.pre`). For `smollm` that is: every digit for itself, then GPT-2's expression (llama.cpp,
`LLAMA_VOCAB_PRE_TYPE_SMOLLM`). transformers ignores that name when it reads a GGUF and keeps digits together.
Of another name the splitting isn't known here, so it is refused: a wrong one gives plausible, worse answers.
"""

from __future__ import annotations

from typing import Any

from builder.errors import SourceError
from builder.model.sources.gguf_file import GgufFile

_CONTROL = 3  # llama.cpp's LLAMA_TOKEN_TYPE_CONTROL
_KEY = "tokenizer.ggml"


def tokenizer_files(file: GgufFile) -> dict[str, Any]:
    """The contents of the tokenizer's files by name.

    Raises SourceError `UNSUPPORTED_TOKENIZER`, or `GGUF_METADATA` where vocabulary and merges don't fit together.
    """
    file.require(f"{_KEY}.model", "gpt2", "UNSUPPORTED_TOKENIZER")
    file.require(f"{_KEY}.pre", "smollm", "UNSUPPORTED_TOKENIZER")
    file.require(f"{_KEY}.add_bos_token", False, "UNSUPPORTED_TOKENIZER")
    file.require(f"{_KEY}.add_eos_token", False, "UNSUPPORTED_TOKENIZER")
    tokens = file.texts(f"{_KEY}.tokens")
    special = _special_tokens(file, tokens)
    return {
        "tokenizer.json": _tokenizer(file, tokens, special),
        "tokenizer_config.json": _tokenizer_config(file, tokens, special),
    }


def _special_tokens(file: GgufFile, tokens: list[str]) -> dict[str, dict[str, Any]]:
    types = file.metadata.get(f"{_KEY}.token_type")
    if not isinstance(types, list) or len(types) != len(tokens):
        raise file.bad_metadata(f"{_KEY}.token_type")
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {str(index): {"content": tokens[index], **flags} for index, kind in enumerate(types) if kind == _CONTROL}


def _tokenizer(file: GgufFile, tokens: list[str], special: dict[str, dict[str, Any]]) -> dict[str, Any]:
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges = [merge.split(" ") for merge in file.texts(f"{_KEY}.merges")]
    if len(vocabulary) != len(tokens):
        raise SourceError("the GGUF file has a token twice", where=file.path, code="GGUF_METADATA")
    for merge in merges:
        if len(merge) != 2 or not {*merge, "".join(merge)} <= vocabulary.keys():
            raise SourceError(f"a merge isn't of known tokens: {merge}", where=file.path, code="GGUF_METADATA")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": int(index), **token} for index, token in special.items()],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": merges,
        },
    }


def _tokenizer_config(file: GgufFile, tokens: list[str], special: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The class is the one that takes `tokenizer.json` as it is; a model's own class would rebuild the splitting."""
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": special,
        "clean_up_tokenization_spaces": False,
        "model_max_length": file.integer("llama.context_length"),
    }
    for role, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        if f"{_KEY}.{key}_token_id" in file.metadata:
            index = file.integer(f"{_KEY}.{key}_token_id")
            if index >= len(tokens):
                raise file.bad_metadata(f"{_KEY}.{key}_token_id")
            config[f"{role}_token"] = tokens[index]
    if template := file.metadata.get("tokenizer.chat_template"):
        config["chat_template"] = template
    return config
