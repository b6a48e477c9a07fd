from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from builder.errors import SourceError
from builder.model.files import parse_json, read_json


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": {"b": [1, NaN]}}', "NaN at a.b[1]"),
        ('{"a": -Infinity}', "-Infinity at a"),
        ("1e999", "1e999 at the top"),
        ('{"a": [{"b": 1, "b": 1}]}', "a[0].b is given twice"),
    ],
)
def test_json_that_other_languages_read_otherwise_is_refused_with_its_place(text: str, words: str) -> None:
    with pytest.raises(SourceError) as caught:
        parse_json(text.encode(), Path("config.json"), code="CONFIG_JSON")
    assert caught.value.code == "CONFIG_JSON"
    assert words in str(caught.value.why)


def test_json_by_the_book_is_read() -> None:
    text = '{"a": [1, 2.5, null, true, "x", {"b": {}}], "é": 1e3}'
    assert parse_json(text.encode(), Path("config.json"), code="x") == json.loads(text)


def test_numbers_that_are_not_finite_can_be_asked_for_as_text() -> None:
    text = b'{"time_step_limit": [0.0, Infinity], "a": -Infinity, "b": NaN, "c": 1e999}'
    read = parse_json(text, Path("config.json"), code="x", finite=False)
    assert read == {"time_step_limit": [0.0, "Infinity"], "a": "-Infinity", "b": "NaN", "c": "1e999"}
    json.dumps(read, allow_nan=False)


def test_a_key_that_comes_twice_is_told_also_beside_numbers_that_are_not_finite() -> None:
    with pytest.raises(SourceError) as caught:
        parse_json(b'{"a": NaN, "b": {"c": 1, "c": 2}}', Path("config.json"), code="x", finite=False)
    assert caught.value.why == "b.c is given twice"


def test_no_more_values_are_read_than_there_may_be() -> None:
    text = b"[" + b"1," * 9 + b"1]"
    assert parse_json(text, Path("config.json"), code="x", most_values=11) == [1] * 10
    with pytest.raises(SourceError, match="holds too much"):
        parse_json(text, Path("config.json"), code="x", most_values=10)


def test_sixty_levels_are_read_and_not_one_more() -> None:
    assert parse_json(b"[" * 60 + b"]" * 60, Path("config.json"), code="x")
    with pytest.raises(SourceError) as caught:
        parse_json(b"[" * 61 + b"]" * 61, Path("config.json"), code="x")
    assert caught.value.why == "it is nested more than 60 levels deep"


def test_a_pipe_is_refused_before_anybody_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(SourceError) as caught:
        read_json(tmp_path / "config.json", code="x")
    assert caught.value.code == "UNREADABLE"
