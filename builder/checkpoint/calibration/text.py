"""The text of one row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from builder.errors import BuilderError, SourceError

Render = Callable[[Sequence[Mapping[str, Any]]], str]
"""Makes text of the messages of a chat."""

COLUMNS = ("text", "article", "content")
"""Where a row has its text; the first that it has counts."""

CHAT = "messages"

LONGEST_TEXT = 16 << 20
"""Characters. Some thousand tokens of a text are used, so a longer one isn't what was meant."""


def text_of(row: object, where: str, render: Render | None) -> str:
    """Empty where the row has a column for it with nothing in it.

    SourceError TEXT_FORMAT where it has none, or something else in it; CHAT_TEMPLATE for a chat without a template, or
    one that the template fails on; TEXT_SIZE; TEXT_ENCODING for half of a surrogate pair, which JSON lets pass.
    """
    if not isinstance(row, dict):
        raise _no_text(where, f"it is {'nothing' if row is None else type(row).__name__}, not an object")
    for column in COLUMNS:
        if isinstance(text := row.get(column), str):
            return _checked(text, where)
    messages = row.get(CHAT)
    if isinstance(messages, list) and all(isinstance(message, dict) for message in messages):
        return _checked(_rendered(messages, where, render), where)
    known = {name: row[name] for name in (*COLUMNS, CHAT) if name in row}
    if known and all(value is None for value in known.values()):
        return ""
    found = [f"{name} ({type(value).__name__})" if name in known else str(name) for name, value in row.items()]
    raise _no_text(where, f"it has {', '.join(found) or 'nothing'}")


def _rendered(messages: Sequence[Mapping[str, Any]], where: str, render: Render | None) -> str:
    if render is None:
        raise SourceError(
            "this row is a chat, and the model has no chat template",
            where=where,
            hint="name a serving.chat_template, or texts",
            code="CHAT_TEMPLATE",
        )
    try:
        return render(messages)
    except BuilderError as error:
        error.where = error.where or where
        raise
    except Exception as error:  # a template does what it likes with messages that it doesn't expect
        raise SourceError(
            "the chat template fails on this row",
            where=where,
            why=f"{type(error).__name__}: {error}",
            hint='messages are written [{"role": "user", "content": "…"}, …]',
            code="CHAT_TEMPLATE",
        ) from error


def _checked(text: str, where: str) -> str:
    if len(text) > LONGEST_TEXT:
        raise SourceError(
            "a text is too long for calibration",
            where=where,
            why=f"{len(text)} characters; {LONGEST_TEXT} at most",
            code="TEXT_SIZE",
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SourceError(
            "the text of this row isn't Unicode",
            where=where,
            why=f"character {error.start} is half of a surrogate pair: the text was cut within an emoji",
            hint="remove the row, or cut it elsewhere",
            code="TEXT_ENCODING",
        ) from error
    return text


def _no_text(where: str, why: str) -> SourceError:
    return SourceError(
        "this row has no text",
        where=where,
        why=f"{why}; wanted is one of {', '.join(COLUMNS)} with a text, or {CHAT} with a list of objects",
        code="TEXT_FORMAT",
    )
