"""The served tokenizer folder: the model's own files, the recipe's chat template, and what guided decoding reads.

tokenizer.json, …                   unchanged, but for `tokenizer_config.json` where the recipe has a chat template
chat_template.jinja                 the recipe's, in place of every template that the model has
xgrammar_tokenizer_info.json        for guided decoding: see `xgrammar_info`
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from builder.errors import SourceError
from builder.model.snapshot import check_path

_TEMPLATE = "chat_template.jinja"
_OWN_TEMPLATES = (_TEMPLATE, "chat_template.json")
_OWN_TEMPLATE_FOLDER = "additional_chat_templates/"


def write_tokenizer(source: Path, files: Iterable[str], target: Path, template: bytes | None = None) -> Tokenizer:
    """Copy `files`, names relative to `source`, and return the tokenizer that they hold. `template`: the recipe's.

    Raises SourceError for an unsafe file name, and where `tokenizer.json` is missing or damaged.
    """
    names = sorted(files)
    tokenizer = _load(source, names)
    for name in names:
        path = target / check_path(name, where=source)
        if template is not None and (name in _OWN_TEMPLATES or name.startswith(_OWN_TEMPLATE_FOLDER)):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if template is not None and name == "tokenizer_config.json":
            path.write_bytes(_without_template(source / name))
        else:
            shutil.copyfile(source / name, path)
    if template is not None:
        (target / _TEMPLATE).write_bytes(template)
    return tokenizer


def xgrammar_info(tokenizer: Tokenizer, stop_token_ids: Sequence[int]) -> dict[str, Any]:
    """What TensorRT-LLM's C++ backend reads for guided decoding: tokens by id, the tokenizer as JSON, end tokens.

    As TensorRT-LLM's examples/generate_xgrammar_tokenizer_info.py makes it for a fast tokenizer, with two differences:
    an id that has no token is the empty text, where there the tokens after it would move down; and all of the model's
    end tokens may end an answer, there one.
    """
    vocabulary: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    encoded = [""] * (max(vocabulary.values()) + 1)
    for token, number in vocabulary.items():
        encoded[number] = token
    return {"encoded_vocab": encoded, "tokenizer_str": tokenizer.to_str(), "stop_token_ids": list(stop_token_ids)}


def _load(source: Path, names: Sequence[str]) -> Tokenizer:
    if "tokenizer.json" not in names:
        raise SourceError(
            "the model has no tokenizer.json",
            where=source,
            why="the runtime reads only this format",
            hint="save the tokenizer once with transformers: AutoTokenizer.from_pretrained(...).save_pretrained(...)",
            code="NO_TOKENIZER_JSON",
        )
    try:
        return Tokenizer.from_file(str(source / "tokenizer.json"))
    except Exception as error:  # the library raises nothing more special
        raise SourceError(
            "the model's tokenizer can't be read",
            where=source / "tokenizer.json",
            why=str(error),
            code="TOKENIZER_JSON",
        ) from error


def _without_template(path: Path) -> bytes:
    """tokenizer_config.json without its chat template, so that no reader finds two; unchanged where it has none."""
    content = path.read_bytes()
    try:
        config = json.loads(content)
    except ValueError as error:
        raise SourceError(
            "the model's tokenizer_config.json can't be read", where=path, why=str(error), code="TOKENIZER_JSON"
        ) from error
    if not isinstance(config, dict) or "chat_template" not in config:
        return content
    del config["chat_template"]
    return json.dumps(config, indent=2, ensure_ascii=False).encode() + b"\n"
