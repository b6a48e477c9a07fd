"""The special tokens of a model, by number: what begins a text, ends it, and fills it up."""

from __future__ import annotations

from typing import Any

from builder.model.fields import Fields


def read_token(top: Fields, fields: Fields, name: str, vocab_size: int) -> int | None:
    """A token id, or None. The first Llama configs say -1 where there is no such token."""
    source = fields if fields.get(name) is not None else top
    value = source.get(name)
    if value is None or value == -1:
        return None
    if not _is_token(value, vocab_size):
        raise source.wrong(name, f"a token id from 0 to {vocab_size - 1}")
    return int(value)


def read_end_tokens(sources: tuple[Fields, ...], vocab_size: int) -> tuple[int, ...]:
    """The end tokens that any of the sources names, each once: one number, or a list of them."""
    tokens: dict[int, None] = {}
    for source in sources:
        value = source.get("eos_token_id")
        if not isinstance(value, list):
            value = [] if value is None or value == -1 else [value]
        for token in value:
            if not _is_token(token, vocab_size):
                raise source.wrong("eos_token_id", f"one or a list of token ids from 0 to {vocab_size - 1}")
            tokens[token] = None
    return tuple(tokens)


def _is_token(value: Any, vocab_size: int) -> bool:
    return type(value) is int and 0 <= value < vocab_size
