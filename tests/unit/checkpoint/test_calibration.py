"""Which texts are drawn, and what can't be read as texts."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from builder.checkpoint.calibration import read_texts, write_dataset
from builder.errors import SourceError


def lines(path: Path, *rows: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def numbered(path: Path, count: int) -> Path:
    return lines(path, *({"text": f"text {number}"} for number in range(count)))


def test_a_seed_draws_the_same_texts_everywhere(tmp_path: Path) -> None:
    """Written down, so that another version of Python or of this module can't change it unnoticed."""
    file = numbered(tmp_path / "texts.jsonl", 1000)
    assert read_texts(file, samples=5, seed=1) == ["text 661", "text 691", "text 819", "text 932", "text 989"]
    assert read_texts(file, samples=5, seed=2) != read_texts(file, samples=5, seed=1)


def test_every_text_is_as_likely_as_the_others(tmp_path: Path) -> None:
    file = numbered(tmp_path / "texts.jsonl", 20)
    drawn = [text for seed in range(400) for text in read_texts(file, samples=5, seed=seed)]
    counts = [drawn.count(f"text {number}") for number in range(20)]
    assert sum(counts) == 2000
    assert min(counts) > 60  # 100 expected, standard deviation 8.7
    assert max(counts) < 140


def test_all_texts_are_drawn_where_all_are_asked_for_in_their_order(tmp_path: Path) -> None:
    file = numbered(tmp_path / "texts.jsonl", 10)
    assert read_texts(file, samples=10, seed=3) == [f"text {number}" for number in range(10)]


def test_fewer_texts_than_samples_are_refused(tmp_path: Path) -> None:
    file = lines(tmp_path / "texts.jsonl", {"text": "one"}, {"text": "  "}, {"text": "two"})
    with pytest.raises(SourceError) as caught:
        read_texts(file, samples=3, seed=1)
    assert caught.value.code == "CALIBRATION_TOO_SMALL"
    assert "there are 2 texts" in caught.value.message


@pytest.mark.parametrize("column", ["text", "article", "content"])
def test_columns_that_hold_the_text(tmp_path: Path, column: str) -> None:
    assert read_texts(lines(tmp_path / "a.jsonl", {column: "x", "other": 1}), samples=1, seed=1) == ["x"]


def test_every_format_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id,text\n1,"two\nlines"\n')
    assert read_texts(tmp_path / "a.csv", samples=1, seed=1) == ["two\nlines"]
    (tmp_path / "a.txt").write_text("one\nstill one\n\n\ntwo\n")
    assert read_texts(tmp_path / "a.txt", samples=2, seed=1) == ["one\nstill one\n", "two\n"]
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.write('{"text": "packed"}\n')
    assert read_texts(tmp_path / "a.jsonl.gz", samples=1, seed=1) == ["packed"]
    (tmp_path / "a.json").write_text('[{"text": "in"}, {"text": "an array"}]')
    assert read_texts(tmp_path / "a.json", samples=2, seed=1) == ["in", "an array"]


def test_of_a_folder_the_split_train_is_read(tmp_path: Path) -> None:
    lines(tmp_path / "data/train-00000-of-00001.jsonl", {"text": "train"})
    lines(tmp_path / "data/test-00000-of-00001.jsonl", {"text": "test"})
    lines(tmp_path / ".cache/train.jsonl", {"text": "hidden"})
    assert read_texts(tmp_path, samples=1, seed=1) == ["train"]


def test_a_folder_without_splits_is_read_whole(tmp_path: Path) -> None:
    lines(tmp_path / "b.jsonl", {"text": "b"})
    lines(tmp_path / "a/restrained.jsonl", {"text": "a"})
    assert read_texts(tmp_path, samples=2, seed=1) == ["a", "b"]


def test_a_chat_is_rendered(tmp_path: Path) -> None:
    file = lines(tmp_path / "a.jsonl", {"messages": [{"role": "user", "content": "hello"}]})
    assert read_texts(file, samples=1, seed=1, render=lambda chat: f"<{chat[0]['content']}>") == ["<hello>"]
    with pytest.raises(SourceError) as caught:
        read_texts(file, samples=1, seed=1)
    assert caught.value.code == "CHAT_TEMPLATE"
    assert str(caught.value.where).endswith("a.jsonl:1")


@pytest.mark.parametrize(
    ("name", "content", "code", "place"),
    [
        ("a.jsonl", b'{"text": "fine"}\n{"text": ', "TEXT_FORMAT", "a.jsonl:2"),
        ("a.jsonl", b'{"prompt": "p", "answer": "a"}\n', "TEXT_FORMAT", "a.jsonl:1"),
        ("a.jsonl", b'{"text": 5}\n', "TEXT_FORMAT", "a.jsonl:1"),
        ("a.jsonl", b'"just text"\n', "TEXT_FORMAT", "a.jsonl:1"),
        ("a.jsonl", b"[" * 100_000, "TEXT_FORMAT", "a.jsonl:1"),
        ("a.jsonl", b"\xff\xfe", "TEXT_ENCODING", "a.jsonl"),
        ("a.jsonl.gz", b"not packed", "UNREADABLE", "a.jsonl.gz"),
        ("a.jsonl.gz", gzip.compress(b'{"text": "cut off"}\n')[:-9], "UNREADABLE", "a.jsonl.gz"),
        ("a.bin", b"\0\1", "TEXT_FORMAT", "a.bin"),
        ("a.jsonl", b"x" * (17 << 20), "TEXT_SIZE", "a.jsonl"),
    ],
)
def test_what_is_no_text_is_named_with_its_place(
    tmp_path: Path, name: str, content: bytes, code: str, place: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError) as caught:
        read_texts(tmp_path / name, samples=2, seed=1)
    assert caught.value.code == code
    assert str(caught.value.where).endswith(place)


def test_a_folder_without_texts_is_named(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("nothing")
    with pytest.raises(SourceError) as caught:
        read_texts(tmp_path, samples=1, seed=1)
    assert caught.value.code == "TEXT_EMPTY"


def test_the_folder_for_a_container_is_one_split_with_one_column(tmp_path: Path) -> None:
    write_dataset(["first ü", "second\nline"], tmp_path / "texts")
    assert [file.name for file in (tmp_path / "texts").iterdir()] == ["train.jsonl"]
    assert read_texts(tmp_path / "texts", samples=2, seed=1) == ["first ü", "second\nline"]
    with pytest.raises(ValueError, match="pileval"):
        write_dataset(["x"], tmp_path / "pileval-copy")
