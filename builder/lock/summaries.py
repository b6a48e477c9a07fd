"""What a plan needs to know of files that it doesn't have: the tensors, the token ids, the chat template."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.errors import SourceError
from builder.model.files import count_values, opened, read_json
from builder.model.safetensors import TensorIndex, TensorInfo

_EMBEDDINGS = (
    *("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight"),
    *("tok_embeddings.weight", "backbone.embeddings.weight"),
)
"""How the families name the table of token embeddings; some have a prefix before it."""

_HEADS = ("lm_head.weight", "embed_out.weight", "output_layer.weight")
_TOP_LEVEL_HEAD = "output.weight"

_SHOWN_TOKENS = 4

MAX_TOKENIZER_BYTES, MAX_TOKENIZER_VALUES = 60_000_000, 2_400_000
"""Gemma-3's tokenizer.json is among the largest: 33 MB, with 262,000 tokens and 515,000 merges of two."""

MAX_TEMPLATE_BYTES = 4_000_000

_MOST_PIECES = 500_000
_MOST_ID = 1 << 31


@dataclass(frozen=True)
class TensorSummary:
    """Of every tensor of a model: see `digest_of_tensors`; `bytes` in all, and by dtype as safetensors spells it.

    `embedding_rows` is None where no tensor has a known name; `head_stored`: an output head lies beside it.
    """

    digest: str
    count: int
    bytes: int
    dtypes: Mapping[str, int]
    embedding_rows: int | None
    head_stored: bool

    @classmethod
    def of(cls, index: TensorIndex) -> TensorSummary:
        dtypes: dict[str, int] = {}
        for info in index.tensors.values():
            dtypes[info.dtype] = dtypes.get(info.dtype, 0) + info.nbytes
        return cls(
            digest=digest_of_tensors(index),
            count=len(index.tensors),
            bytes=sum(dtypes.values()),
            dtypes=dtypes,
            embedding_rows=_embedding_rows(index.tensors),
            head_stored=any(_ends_with(name, _HEADS) or name == _TOP_LEVEL_HEAD for name in index.tensors),
        )


def digest_of_tensors(index: TensorIndex) -> str:
    """sha256 over one line per tensor, sorted by name: the JSON list [NAME, DTYPE, SHAPE, FILE] and a line feed."""
    digest = hashlib.sha256()
    for name, info in sorted(index.tensors.items()):
        line = json.dumps([name, info.dtype, list(info.shape), info.file.name], separators=(",", ":"))
        digest.update(f"{line}\n".encode())
    return f"sha256:{digest.hexdigest()}"


def _embedding_rows(tensors: Mapping[str, TensorInfo]) -> int | None:
    """Rows of the outermost table: layers that predict further tokens may hold copies of it."""
    tables = [name for name, info in tensors.items() if len(info.shape) == 2 and _ends_with(name, _EMBEDDINGS)]
    return tensors[min(tables, key=lambda name: (name.count("."), name))].shape[0] if tables else None


def _ends_with(name: str, endings: tuple[str, ...]) -> bool:
    return any(name == ending or name.endswith(f".{ending}") for ending in endings)


@dataclass(frozen=True)
class TokenizerSummary:
    """The highest id that the tokenizer can give, and the added tokens with the highest ids (at most four)."""

    max_token_id: int
    added_tokens: Mapping[str, int]

    @classmethod
    def of(cls, folder: Path) -> TokenizerSummary | None:
        """From the files of a model folder; None where none of them tells."""
        added = dict(_added_tokens(folder))
        ids = [*added.values(), *_highest_of_vocabularies(folder)]
        if not ids:
            return None
        if min(ids) < 0 or max(ids) >= _MOST_ID:
            raise _not_a_tokenizer(folder, f"it has the token ids {min(ids)} to {max(ids)}")
        shown = sorted(added.items(), key=lambda item: (-item[1], item[0]))[:_SHOWN_TOKENS]
        return cls(max(ids), dict(shown))


def _added_tokens(folder: Path) -> Iterator[tuple[str, int]]:
    for entry in _list(_read(folder, "tokenizer.json").get("added_tokens")):
        if isinstance(entry, dict) and isinstance(entry.get("content"), str) and type(entry.get("id")) is int:
            yield entry["content"], entry["id"]
    yield from _ids(_read(folder, "added_tokens.json"))
    decoder = _read(folder, "tokenizer_config.json").get("added_tokens_decoder")
    for number, entry in (decoder if isinstance(decoder, dict) else {}).items():
        content = entry.get("content") if isinstance(entry, dict) else entry
        if number.isdecimal() and len(number) < 20 and isinstance(content, str):
            yield content, int(number)


def _highest_of_vocabularies(folder: Path) -> Iterator[int]:
    model = _read(folder, "tokenizer.json").get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, list):  # Unigram: [[PIECE, SCORE], …]
        yield len(vocabulary) - 1
    elif isinstance(vocabulary, dict):
        yield from (number for _, number in _ids(vocabulary))
    elif pieces := _sentencepieces(folder / "tokenizer.model"):
        yield pieces - 1
    yield from (number for _, number in _ids(_read(folder, "vocab.json")))


def _ids(value: Any) -> Iterator[tuple[str, int]]:
    if isinstance(value, dict):
        yield from ((token, number) for token, number in value.items() if type(number) is int)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _read(folder: Path, name: str) -> dict[str, Any]:
    """A file of the tokenizer as an object; empty where there is none. Large, so not read as strictly as a config."""
    from pydantic_core import from_json  # it reads bytes as they are, which takes a fraction of json's memory

    path = folder / name
    if not path.is_file():
        return {}
    with opened(path) as file:
        content = file.read(MAX_TOKENIZER_BYTES + 1)
    if len(content) > MAX_TOKENIZER_BYTES or count_values(content) > MAX_TOKENIZER_VALUES:
        raise _not_a_tokenizer(path, "it is too large")
    try:
        value = from_json(content)
    except ValueError as error:
        raise _not_a_tokenizer(path, str(error)) from error
    if not isinstance(value, dict):
        raise _not_a_tokenizer(path, "it isn't an object")
    return value


def _sentencepieces(path: Path) -> int:
    """How many pieces a SentencePiece model has: field 1, repeated, of its protobuf message; 0 if it isn't one.

    Source: google/sentencepiece src/sentencepiece_model.proto (`repeated SentencePiece pieces = 1`).
    """
    if not path.is_file():
        return 0
    with opened(path) as file:
        content = file.read(MAX_TOKENIZER_BYTES)
    position = count = 0
    for _ in range(_MOST_PIECES):
        if position >= len(content):
            break
        tag, position = _varint(content, position)
        if tag & 7 == 2:
            size, position = _varint(content, position)
            position += size
        elif tag & 7 == 0:
            _, position = _varint(content, position)
        else:
            return 0
        count += tag >> 3 == 1
    return count if position == len(content) else 0


def _not_a_tokenizer(path: Path, why: str) -> SourceError:
    return SourceError(f"{path.name} can't be read", where=path, why=why, code="TOKENIZER_JSON")


def _varint(content: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(content) and shift < 64:
        byte = content[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if not byte & 0x80:
            break
    return value, position


@dataclass(frozen=True)
class ChatTemplate:
    """A chat template by its content, and the file that has it."""

    file: str
    sha256: str

    @classmethod
    def of(cls, folder: Path) -> ChatTemplate | None:
        """That of a model folder: in a file of its own, else in tokenizer_config.json; None where there is none.

        Several named templates are hashed together, as the JSON text that lists them.
        """
        if (folder / "chat_template.jinja").is_file():
            return cls.of_file(folder / "chat_template.jinja")
        for name in ("chat_template.json", "tokenizer_config.json"):
            if (folder / name).is_file():
                config = read_json(folder / name, code="TOKENIZER_JSON")
                if template := config.get("chat_template") if isinstance(config, dict) else None:
                    text = template if isinstance(template, str) else json.dumps(template, sort_keys=True)
                    try:
                        return cls(name, hashlib.sha256(text.encode()).hexdigest())
                    except UnicodeEncodeError as error:
                        raise _not_a_tokenizer(folder / name, f"chat_template isn't text: {error}") from error
        return None

    @classmethod
    def of_file(cls, path: Path) -> ChatTemplate:
        with opened(path) as file:
            content = file.read(MAX_TEMPLATE_BYTES + 1)
        if len(content) > MAX_TEMPLATE_BYTES:
            raise SourceError(
                "the chat template is too large",
                where=path,
                why=f"more than {MAX_TEMPLATE_BYTES} bytes",
                code="TEMPLATE_TOO_LARGE",
            )
        return cls(path.name, hashlib.sha256(content).hexdigest())
