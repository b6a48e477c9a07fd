from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from builder.build.chat_template import read_chat_template
from builder.errors import BuilderError, RecipeError, SourceError
from builder.lock.summaries import ChatTemplate
from builder.plan import Unit
from tests.unit.plan.plans import MakeUnits, recipe

NAMED = "file:templates/chat.jinja"
TEXT = b"{% for message in messages %}{{ message['content'] }}{% endfor %}"


def unit(make_units: MakeUnits, tmp_path: Path, content: bytes | None, pinned: bytes = TEXT) -> Unit:
    """A unit whose recipe brings a template of this content (None: no file), and its lock."""
    if content is not None:
        (tmp_path / "templates").mkdir()
        (tmp_path / "templates/chat.jinja").write_bytes(content)
    lock = {NAMED: ChatTemplate("chat.jinja", hashlib.sha256(pinned).hexdigest())}
    [made] = make_units(recipe("cpu", extra=f"serving: {{chat_template: '{NAMED}'}}"), chat_templates=lock)
    return made


def refusal(made: Unit) -> BuilderError:
    with pytest.raises(BuilderError) as caught:
        read_chat_template(made)
    return caught.value


def test_without_one_the_model_s_own_is_used(make_units: MakeUnits) -> None:
    assert read_chat_template(make_units(recipe("cpu"))[0]) is None


def test_it_is_read_relative_to_the_recipe_byte_for_byte(make_units: MakeUnits, tmp_path: Path) -> None:
    assert read_chat_template(unit(make_units, tmp_path, TEXT)) == TEXT


def test_another_one_than_the_lock_pins_is_drift(make_units: MakeUnits, tmp_path: Path) -> None:
    error = refusal(unit(make_units, tmp_path, TEXT + b" "))
    assert isinstance(error, SourceError)
    assert error.code == "DRIFT"


@pytest.mark.parametrize(("content", "words"), [(b"", "empty"), (b"\xff", "utf-8"), (b"\n{% for %}", "line 2")])
def test_what_is_no_template_is_refused_where_the_recipe_names_it(
    content: bytes, words: str, make_units: MakeUnits, tmp_path: Path
) -> None:
    error = refusal(unit(make_units, tmp_path, content, pinned=content))
    assert isinstance(error, RecipeError)
    assert error.code == "CHAT_TEMPLATE"
    assert words in str(error.why)
    assert "tiny.yaml:" in str(error.where)


def test_an_absent_file_is_named(make_units: MakeUnits, tmp_path: Path) -> None:
    error = refusal(unit(make_units, tmp_path, None))
    assert error.code == "NOT_FOUND"
    assert "templates/chat.jinja" in str(error.where)
