"""Text to token ids and back, from a model's `tokenizer.json`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer as LibraryTokenizer

_REPLACEMENT = "\ufffd"


class Tokenizer:
    """The model's own tokenizer. `special_tokens` are those that steer the model, such as `<|im_end|>`."""

    def __init__(self, folder: Path) -> None:
        text = (folder / "tokenizer.json").read_text(encoding="utf-8")
        self._library = LibraryTokenizer.from_str(text)
        self._library.no_truncation()
        self._library.no_padding()
        plain = json.loads(text) | {"added_tokens": [], "truncation": None, "padding": None}
        self._plain = LibraryTokenizer.from_str(json.dumps(plain))
        added = self._library.get_added_tokens_decoder()
        self.added_tokens = {token.content: number for number, token in added.items()}
        self.special_tokens = {token.content for token in added.values() if token.special}
        self.longest_token = max(map(len, self._library.get_vocab()))
        """Characters: a text of n times as many has more than n tokens."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text in which special tokens are meant as such. `add_special_tokens`: a BOS too, say."""
        ids: list[int] = self._library.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def encode_plain(self, text: str) -> list[int]:
        """Token ids of a text in which nothing is a special token, whatever it looks like."""
        ids: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        text: str = self._library.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text


class IncrementalDetokenizer:
    """Decodes a stream of tokens so that the pieces join to exactly what decoding them all at once gives.

    A token may be part of a character, and how it is spelt may depend on the one before it. So a window of tokens
    is decoded with and without the new ones, and the difference is held back while it ends inside a character.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._shown = 0

    def push(self, ids: Sequence[int]) -> str:
        """The text that these tokens complete; often empty."""
        return self._advance(ids, final=False)

    def flush(self) -> str:
        """What is left at the end: an unfinished character, as U+FFFD."""
        return self._advance((), final=True)

    def _advance(self, ids: Sequence[int], *, final: bool) -> str:
        self._window.extend(ids)
        before = self._tokenizer.decode(self._window[: self._shown])
        after = self._tokenizer.decode(self._window)
        if len(after) <= len(before) or (after.endswith(_REPLACEMENT) and not final):
            return ""
        self._window = self._window[self._shown :]
        self._shown = len(self._window)
        return after[len(before) :]
