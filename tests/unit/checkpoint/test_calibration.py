"""Which texts are drawn, and what can't be read as texts."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.checkpoint.calibration import read_texts, write_dataset
from builder.errors import SourceError, UsageError


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


def test_fewer_texts_than_samples_are_refused_with_what_there_is(tmp_path: Path) -> None:
    file = lines(tmp_path / "texts.jsonl", {"text": "one"}, {"text": "  "}, {"text": "two"})
    with pytest.raises(SourceError) as caught:
        read_texts(file, samples=3, seed=1)
    assert caught.value.code == "CALIBRATION_TOO_SMALL"
    assert "there are 2 texts" in caught.value.message
    assert "1 more is empty" in str(caught.value.why)
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    with pytest.raises(SourceError, match="there is 1 text,") as caught:
        read_texts(tmp_path / "a.txt", samples=2, seed=1)
    assert "blank lines" in str(caught.value.hint)


@pytest.mark.parametrize("column", ["text", "article", "content"])
def test_columns_that_hold_the_text(tmp_path: Path, column: str) -> None:
    assert read_texts(lines(tmp_path / "a.jsonl", {column: "x", "other": 1}), samples=1, seed=1) == ["x"]


@pytest.mark.parametrize(
    ("name", "content", "texts"),
    [
        ("a.jsonl", b'{"text": "a"}\n\n{"text": "b"}', ["a", "b"]),
        ("a.jsonl", b'\xef\xbb\xbf{"text": "a"}\r\n{"text": "b\\r\\n"}\r\n', ["a", "b\r\n"]),
        ("a.json", b'{"text": "a"}\n{"text": "b"}\n', ["a", "b"]),
        ("a.json", b'[{"text": "a"}, {"text": "b"}]', ["a", "b"]),
        ("a.json", json.dumps([{"text": "[a]"}, {"text": "b"}], indent=2).encode(), ["[a]", "b"]),
        ("a.jsonl.gz", gzip.compress(b'{"text": "a"}\n') + gzip.compress(b'{"text": "b"}\n'), ["a", "b"]),
        ("a.json.gz", gzip.compress(b'[{"text": "a"},\n{"text": "b"}]\n'), ["a", "b"]),
        ("a.csv", b'id,text\n1,"two\nlines, ""quoted"""\n2,b\n', ['two\nlines, "quoted"', "b"]),
        ("a.csv", b"\xef\xbb\xbftext\r\na\r\nb\r\n", ["a", "b"]),
        ("a.csv", b"text\n" + b"x" * 200_000 + b"\nb\n", ["x" * 200_000, "b"]),
        ("a.txt", b"one\nstill one\n\n \ntwo", ["one\nstill one\n", "two"]),
        ("a.txt", b"one\r\nstill one\r\n\r\ntwo\r\n", ["one\nstill one\n", "two\n"]),
    ],
)
def test_every_format_is_read(tmp_path: Path, name: str, content: bytes, texts: list[str]) -> None:
    (tmp_path / name).write_bytes(content)
    assert read_texts(tmp_path / name, samples=len(texts), seed=1) == texts


@given(
    rows=st.lists(st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip), min_size=1),
    indent=st.sampled_from((None, 0, 3)),
)
def test_an_array_holds_the_same_as_lines(
    tmp_path_factory: pytest.TempPathFactory, rows: list[str], indent: int | None
) -> None:
    folder = tmp_path_factory.mktemp("texts")
    objects = [{"text": row} for row in rows]
    (folder / "a.json").write_text(json.dumps(objects, indent=indent, ensure_ascii=False))
    assert read_texts(folder / "a.json", samples=len(rows), seed=1) == rows
    assert read_texts(lines(folder / "a.jsonl", *objects), samples=len(rows), seed=1) == rows


@pytest.mark.parametrize("where", range(-40, 40))
def test_an_array_is_read_wherever_its_pieces_end(tmp_path: Path, where: int) -> None:
    """Files are read a MiB at a time: here within white space, names, escapes, characters of several bytes."""
    beginning = '[{"text": "a"},\n'
    pad = (1 << 20) - len(beginning) + where
    row = '{"text": "\\ud83d\\ude00 \\\\ é…😀", "n": [-1.5e3, true, null]}'
    (tmp_path / "a.json").write_text(beginning + " " * pad + row + ' , {"text": "c"}]')
    assert read_texts(tmp_path / "a.json", samples=3, seed=1) == ["a", "😀 \\ é…😀", "c"]


def test_a_row_without_text_is_one_that_is_empty_if_it_has_a_place_for_it(tmp_path: Path) -> None:
    file = lines(
        tmp_path / "a.jsonl", {"text": None, "id": 1}, {"text": None, "content": "c"}, {"text": "t", "content": "c"}
    )
    assert read_texts(file, samples=2, seed=1) == ["c", "t"]


def test_of_a_folder_the_split_train_is_read(tmp_path: Path) -> None:
    lines(tmp_path / "data/train-00000-of-00001.jsonl", {"text": "train"})
    lines(tmp_path / "data/test-00000-of-00001.jsonl", {"text": "test"})
    lines(tmp_path / ".cache/train.jsonl", {"text": "hidden"})
    assert read_texts(tmp_path, samples=1, seed=1) == ["train"]


def test_a_folder_without_splits_is_read_whole_in_the_order_of_paths(tmp_path: Path) -> None:
    lines(tmp_path / "b.jsonl", {"text": "b"})
    lines(tmp_path / "a/restrained.jsonl", {"text": "a"})
    lines(tmp_path / "a-1.jsonl", {"text": "a-1"})
    lines(tmp_path / "dataset_infos.json", {"default": {}})
    (tmp_path / "LICENSE.txt").write_text("as is")
    assert read_texts(tmp_path, samples=3, seed=1) == ["a-1", "a", "b"]


def test_a_folder_of_the_hubs_cache_is_read_through_its_links(tmp_path: Path) -> None:
    blob = lines(tmp_path / "blobs/0a1b", {"text": "of the Hub"})
    folder = tmp_path / "snapshots/4711"
    folder.mkdir(parents=True)
    (folder / "train.jsonl").symlink_to(Path("../../blobs", blob.name))
    assert read_texts(folder, samples=1, seed=1) == ["of the Hub"]


def test_a_chat_is_rendered(tmp_path: Path) -> None:
    file = lines(tmp_path / "a.jsonl", {"messages": [{"role": "user", "content": "hello"}]})
    assert read_texts(file, samples=1, seed=1, render=lambda chat: f"<{chat[0]['content']}>") == ["<hello>"]
    with pytest.raises(SourceError) as caught:
        read_texts(file, samples=1, seed=1)
    assert caught.value.code == "CHAT_TEMPLATE"
    assert str(caught.value.where).endswith("a.jsonl:1")


def test_a_chat_on_which_the_template_fails_is_named_with_its_place(tmp_path: Path) -> None:
    good, bad = [{"role": "user", "content": "hello"}], [{"role": "user"}]
    file = lines(tmp_path / "a.jsonl", {"messages": good}, {"messages": bad})
    with pytest.raises(SourceError) as caught:
        read_texts(file, samples=1, seed=1, render=lambda chat: str(chat[0]["content"]))
    assert (caught.value.code, caught.value.where) == ("CHAT_TEMPLATE", f"{file}:2")

    def refuse(_: object) -> str:
        raise UsageError("roles must alternate", code="CHAT_TEMPLATE")

    with pytest.raises(UsageError, match="alternate") as refused:
        read_texts(file, samples=1, seed=1, render=refuse)
    assert refused.value.where == f"{file}:1"


def test_the_folder_for_a_container_is_one_split_with_one_column(tmp_path: Path) -> None:
    texts = ["first ü", "second\nline", "\u2028 😀 \0"]
    write_dataset(texts, tmp_path / "pileval/texts")
    (file,) = (tmp_path / "pileval/texts").iterdir()
    content = file.read_bytes()
    assert [json.loads(line) for line in content.split(b"\n")[:-1]] == [{"text": text} for text in texts]
    assert read_texts(file.parent, samples=3, seed=1) == texts
    write_dataset(texts, tmp_path / "pileval/texts")
    assert file.read_bytes() == content


@pytest.mark.parametrize("name", ["cnn_dailymail", "my-PileVal", "scienceqa-1", "science_qa"])
def test_a_folder_that_the_script_would_take_for_something_else_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"quantize\.py would take"):
        write_dataset(["x"], tmp_path / name)


def test_a_folder_with_something_else_in_it_is_refused(tmp_path: Path) -> None:
    lines(tmp_path / "texts/test.jsonl", {"text": "another split"})
    with pytest.raises(ValueError, match=r"test\.jsonl"):
        write_dataset(["x"], tmp_path / "texts")
