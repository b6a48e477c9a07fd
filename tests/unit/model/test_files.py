from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.errors import SourceError
from builder.model.files import parse_json


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
