"""Chat templates: the one that a recipe brings, read, checked against the lock and tried; and chats made text."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from builder.errors import RecipeError, SourceError
from builder.lock.local_files import local_file
from builder.plan import Unit


def read_chat_template(unit: Unit) -> bytes | None:
    """The template of `serving.chat_template`; None where the model's own is used.

    Raises SourceError where it is absent or isn't what the lock pins, RecipeError where it is no UTF-8 or no Jinja.
    """
    named = unit.serving.chat_template
    if named is None:
        return None
    from builder.runtime.chat import check_template

    path = local_file(named, unit.recipe)
    content = path.read_bytes()
    try:
        check_template(content.decode("utf-8"))
    except ValueError as error:
        raise RecipeError(
            f"the chat template {named} can't be used",
            where=unit.recipe.place("serving", "chat_template", target=unit.target),
            why=str(error),
            hint="serving.chat_template is file:PATH of a Jinja template, relative to the recipe",
            code="CHAT_TEMPLATE",
        ) from error
    pinned = unit.lock.chat_templates.get(named)
    if pinned and pinned.sha256 != hashlib.sha256(content).hexdigest():
        raise SourceError(
            f"the chat template {named} isn't what the lock pins",
            where=path,
            why="it was changed since",
            hint="pin anew with `engine-builder lock --upgrade`",
            code="DRIFT",
        )
    return content


def chat_renderer(unit: Unit, source: Path) -> Callable[[Sequence[Mapping[str, Any]]], str] | None:
    """What makes text of a chat for a model in `source`; None where the model has no template."""
    own = read_chat_template(unit)
    from builder.runtime.chat import text_renderer

    return text_renderer(source, own.decode() if own else None)
