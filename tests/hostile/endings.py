"""What a good ending of a command is, whatever it was given."""

import json
import re
from pathlib import Path
from typing import Any

from tests.hostile.runner import Ended

MOST_BYTES = 200_000_000
MOST_SHOWN = 15_000

_BLOCK = re.compile(r"^error\[[A-Z][A-Z0-9_]*\]: ", re.MULTILINE)
_PLACE = re.compile(r"^  where: (.+)$", re.MULTILINE)


def assert_refused(ended: Ended, *codes: int) -> str:
    """One clear error with one of these exit codes, at a bounded cost. The place that it names."""
    assert ended.code in codes, (ended.code, ended.stderr[:2000])
    assert ended.peak_bytes < MOST_BYTES
    assert len(ended.stderr) < MOST_SHOWN
    assert len(_BLOCK.findall(ended.stderr)) == 1, ended.stderr[:2000]
    assert not re.search("[\0-\b\x0b-\x1f\x7f-\x9f]", ended.stderr), "control characters reach the terminal"
    place = _PLACE.search(ended.stderr)
    assert place, ended.stderr[:2000]
    return place[1]


def assert_planned(ended: Ended) -> None:
    """A plan in strict JSON, with or without refused units, at a bounded cost."""
    assert ended.code in (0, 3), (ended.code, ended.stderr[:2000])
    assert ended.peak_bytes < MOST_BYTES
    assert strict_json(ended.stdout)["units"]
    assert not _BLOCK.search(ended.stderr), ended.stderr[:2000]


def strict_json(text: str) -> Any:
    def refuse(word: str) -> float:
        raise ValueError(f"{word} isn't JSON")

    return json.loads(text, parse_constant=refuse)


def assert_whole(folder: Path, before: set[Path]) -> None:
    """Nothing half-written is left: a new file is a lock file, and it is whole."""
    for path in set(folder.rglob("*")) - before:
        assert path.name.endswith(".lock.json"), f"{path} is left over"
        assert json.loads(path.read_text())["schema"] == 2
