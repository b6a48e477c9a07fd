"""Files that can't be read as calibration texts: each is an error that names the place."""

from __future__ import annotations

import gzip
import json
import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.checkpoint.calibration import read_texts, rows, stream
from builder.errors import HostError, SourceError

GOOD = b'{"text": "good"}\n'
LONG = stream.LONGEST_LINE + 1
KIB = b"x" * 1023 + b"\n"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 5\n"


def refused(path: Path, code: str) -> SourceError:
    with pytest.raises(SourceError) as caught:
        read_texts(path, samples=1, seed=1)
    assert caught.value.code == code, caught.value.render()
    return caught.value


@pytest.mark.parametrize(
    ("name", "content", "code", "place"),
    [
        ("a.jsonl", GOOD + b'{"text": ', "TEXT_FORMAT", "a.jsonl:2"),
        ("a.jsonl", GOOD + b"\n" + b'{"prompt": "p", "answer": "a"}\n', "TEXT_FORMAT", "a.jsonl:3"),
        ("a.jsonl", b'{"text": 5}\n', "TEXT_FORMAT", "a.jsonl:1"),
        ("a.jsonl", b'{"messages": "hello"}\n', "TEXT_FORMAT", "a.jsonl:1"),
        ("a.jsonl", b'{"messages": ["hello"]}\n', "TEXT_FORMAT", "a.jsonl:1"),
        ("a.jsonl", b"{}\n", "TEXT_FORMAT", "a.jsonl:1"),
        ("a.jsonl", b"null\n", "TEXT_FORMAT", "a.jsonl:1"),
        ("a.jsonl", b'"just text"\n', "TEXT_FORMAT", "a.jsonl:1"),
        ("a.jsonl", GOOD + b"[" + GOOD.strip() + b"]\n", "TEXT_FORMAT", "a.jsonl:2"),
        ("a.jsonl", GOOD + b"[" * 100_000, "TEXT_FORMAT", "a.jsonl:2"),
        ("a.jsonl", b'{"text": ' + b"9" * 5000 + b"}", "TEXT_FORMAT", "a.jsonl:1"),
        ("a.jsonl", GOOD + b'{"text": "\xff"}\n', "TEXT_ENCODING", "a.jsonl:2"),
        ("a.jsonl", GOOD + b'{"text": "cut\xc3', "TEXT_ENCODING", "a.jsonl:2"),
        ("a.jsonl", GOOD + b'{"text": "\\ud83d"}\n', "TEXT_ENCODING", "a.jsonl:2"),
        ("a.jsonl", "\ufeff{}".encode("utf-16-le"), "TEXT_ENCODING", "a.jsonl:1"),
        ("a.jsonl", GOOD + b"\0\n", "TEXT_ENCODING", "a.jsonl:2"),
        ("a.jsonl", GOOD + b"x" * LONG, "TEXT_SIZE", "a.jsonl:2"),
        ("a.jsonl", POINTER, "LFS_POINTER", "a.jsonl"),
        ("a.json", json.dumps({"data": [{"text": "x"}]}, indent=1).encode(), "TEXT_FORMAT", "a.json:1"),
        ("a.json", b"[" * 100_000, "TEXT_FORMAT", "a.json:1"),
        ("a.json", b"[", "TEXT_FORMAT", "a.json:1"),
        ("a.json", b'[{"text": "a"}\n, ]', "TEXT_FORMAT", "a.json:2"),
        ("a.json", b'[{"text": "a"}\n {"text": "b"}]', "TEXT_FORMAT", "a.json:2"),
        ("a.json", b'[{"text": "a"}\n] {"text": "b"}', "TEXT_FORMAT", "a.json:2"),
        ("a.json", b'[{"text": "a"},\n{"text": "cut', "TEXT_FORMAT", "a.json:2"),
        ("a.json", b'[{"text": "a"},\n' + b"9" * 5000 + b"]", "TEXT_FORMAT", "a.json:2"),
        ("a.json", b'[{"text": "a"},\n5]', "TEXT_FORMAT", "a.json:2"),
        ("a.json", b'[{"text": "a"},\n{"text": "b",\n bad: 1},' + b" " * LONG, "TEXT_FORMAT", "a.json:3"),
        ("a.json", b'[{"text": "a"},\n{"text": "' + b"x" * LONG + b'"}]', "TEXT_SIZE", "a.json:2"),
        ("a.json", b'[{"text": "\xff"}]', "TEXT_ENCODING", "a.json"),
        ("a.json", b'[{"text": "a"}]\xc3', "TEXT_ENCODING", "a.json"),
        ("a.jsonl.gz", b"not packed", "UNREADABLE", "a.jsonl.gz"),
        ("a.jsonl.gz", gzip.compress(GOOD)[:-9], "UNREADABLE", "a.jsonl.gz"),
        ("a.jsonl.gz", gzip.compress(GOOD)[:-8] + bytes(8), "UNREADABLE", "a.jsonl.gz"),
        ("a.jsonl.gz", gzip.compress(GOOD)[:10] + b"\xff" * 30, "UNREADABLE", "a.jsonl.gz"),
        ("a.jsonl.gz", gzip.compress(b"x" * LONG), "TEXT_SIZE", "a.jsonl.gz:1"),
        ("a.csv", b"id,body\n1,hello\n", "TEXT_FORMAT", "a.csv:2"),
        ("a.csv", b"text,id\nhello\n", "TEXT_FORMAT", "a.csv:2"),
        ("a.csv", b"text\nhello, you\n", "TEXT_FORMAT", "a.csv:2"),
        ("a.csv", b'text\n"a" b\n', "TEXT_FORMAT", "a.csv:2"),
        ("a.csv", b'text\na\n"never closed\n', "TEXT_FORMAT", "a.csv:3"),
        ("a.csv", b'text\n"' + KIB * (LONG >> 10) + KIB + b'"\n', "TEXT_FORMAT", "a.csv:16386"),
        ("a.csv", b"text\r1\r2", "TEXT_FORMAT", "a.csv:1"),
        ("a.csv", b"text\n\xe9\n", "TEXT_ENCODING", "a.csv:2"),
        ("a.txt", b"one\n\n\xe9t\xe9\n", "TEXT_ENCODING", "a.txt:3"),
        ("a.txt", b"one\n\n" + KIB * (LONG >> 10) + KIB, "TEXT_SIZE", "a.txt:3"),
        ("a.txt", POINTER, "LFS_POINTER", "a.txt"),
        ("a.txt.bz2", b"BZh", "TEXT_FORMAT", "a.txt.bz2"),
        ("texts", b"no suffix", "TEXT_FORMAT", "texts"),
    ],
)
def test_what_is_no_text_is_named_with_its_place(
    tmp_path: Path, name: str, content: bytes, code: str, place: str
) -> None:
    (tmp_path / name).write_bytes(content)
    assert str(refused(tmp_path / name, code).where).endswith(place)


def test_the_columns_that_were_found_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "p", "text": 5}')
    assert "it has prompt, text (int); wanted is one of text, article, content" in str(
        refused(tmp_path / "a.jsonl", "TEXT_FORMAT").why
    )


def test_a_packed_file_is_not_unpacked_without_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is lowered, so that a bomb of a few MB is enough."""
    monkeypatch.setattr(rows, "MOST_UNPACKED_BYTES", 4 << 20)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "%s"}\n' % (b"x" * 1000) * 5000))
    assert "unpacked" in str(refused(tmp_path / "a.jsonl.gz", "TEXT_SIZE").why)


@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv", "txt", "parquet", "jsonl.gz"])
def test_a_file_that_is_not_there_or_is_no_file_is_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    refused(path, "UNREADABLE")
    os.mkfifo(path)
    assert "pipe" in str(refused(path, "UNREADABLE").why)


@given(content=st.binary(max_size=200), suffix=st.sampled_from(["jsonl", "json", "csv", "txt", "json.gz"]))
def test_any_bytes_are_texts_or_an_error_that_says_so(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, suffix: str
) -> None:
    path = tmp_path_factory.mktemp("texts") / f"a.{suffix}"
    for written in (content, b"[" + content, gzip.compress(content, mtime=0), b"text\n" + content):
        path.write_bytes(written)
        with suppress(SourceError):
            (text,) = read_texts(path, samples=1, seed=1)
            assert text.strip()


@pytest.mark.parametrize("position", range(10, 60))
def test_a_flipped_byte_of_a_packed_file_is_found(tmp_path: Path, position: int) -> None:
    """By its checksum at the latest, and then nothing of it is used."""
    packed = bytearray(gzip.compress(b'{"text": "one text of several"}\n{"text": "another"}\n', mtime=0))
    packed[position % len(packed)] ^= 0x10
    (tmp_path / "a.jsonl.gz").write_bytes(packed)
    with pytest.raises(SourceError):
        read_texts(tmp_path / "a.jsonl.gz", samples=1, seed=1)


def test_without_pyarrow_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(HostError) as caught:
        read_texts(tmp_path / "a.parquet", samples=1, seed=1)
    assert caught.value.code == "PYARROW_MISSING"
    assert "pip install 'engine-builder[modelopt]'" in str(caught.value.hint)


class TestFolder:
    def test_without_texts_it_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "README.md").write_text("nothing")
        assert refused(tmp_path, "TEXT_EMPTY").where == str(tmp_path)

    def test_a_link_that_leaves_it_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "secret.txt").write_text("secret")
        folder = tmp_path / "texts"
        folder.mkdir()
        (folder / "a.txt").symlink_to("../secret.txt")
        error = refused(folder, "PATH_ESCAPE")
        assert "secret" not in error.message
        assert error.where == str(folder / "a.txt")

    def test_a_linked_folder_that_leaves_it_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "texts").mkdir()
        (tmp_path / "texts/more").symlink_to("/usr/share")
        refused(tmp_path / "texts", "PATH_ESCAPE")

    def test_a_link_to_itself_or_to_nothing_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").symlink_to("a.txt")
        refused(tmp_path, "UNREADABLE")
        (tmp_path / "a.txt").unlink()
        (tmp_path / "a.txt").symlink_to("gone.txt")
        refused(tmp_path, "UNREADABLE")

    def test_a_link_within_it_counts_as_the_file(self, tmp_path: Path) -> None:
        (tmp_path / "raw").write_text("from within")
        (tmp_path / "a.txt").symlink_to("raw")
        assert read_texts(tmp_path, samples=1, seed=1) == ["from within"]

    def test_a_name_that_no_lock_could_hold_is_refused(self, tmp_path: Path) -> None:
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.txt")).write_text("a name that isn't UTF-8")
        refused(tmp_path, "PATH_ESCAPE")
