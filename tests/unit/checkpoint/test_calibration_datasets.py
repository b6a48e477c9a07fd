"""Texts as other tools write and read them: Parquet by pyarrow, and a folder by Hugging Face's datasets."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from builder.checkpoint.calibration import read_texts, write_dataset
from builder.errors import SourceError

TEXTS = ['say "no"', "two\nlines\r\nand three", "naïve Ω 日本語 🚢", "\\u0041 isn't A", "a\x0bb\x85c\u2028d"]


def parquet(path: Path, columns: dict[str, list[Any]], **settings: Any) -> Path:
    pyarrow.parquet.write_table(pyarrow.table(columns), path, **settings)
    return path


def read_all(path: Path, count: int = len(TEXTS), **settings: Any) -> list[str]:
    return read_texts(path, samples=count, seed=1, **settings)


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd", "brotli", "lz4"])
@pytest.mark.parametrize("row_group_size", [1, 2, 1000])
def test_parquet_is_read_however_it_is_packed(tmp_path: Path, compression: str, row_group_size: int) -> None:
    columns = {"id": [1, 2, 3, 4, 5], "text": TEXTS}
    path = parquet(tmp_path / "a.parquet", columns, compression=compression, row_group_size=row_group_size)
    assert read_all(path) == TEXTS


def test_rows_without_a_text_count_as_empty(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", {"text": ["one", None, "", "two"]})
    assert read_all(path, 2) == ["one", "two"]
    with pytest.raises(SourceError) as caught:
        read_all(path, 3)
    assert caught.value.code == "CALIBRATION_TOO_SMALL"


def test_chats_are_rendered(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Me."}]
    path = parquet(tmp_path / "a.parquet", {"messages": [chat]})
    assert read_all(path, 1, render=lambda messages: " / ".join(m["content"] for m in messages)) == ["Who? / Me."]


def test_columns_of_another_name_are_told(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", {"id": ["a"], "title": ["b"]})
    with pytest.raises(SourceError) as caught:
        read_all(path, 1)
    assert caught.value.code == "TEXT_FORMAT"
    assert "id, title" in str(caught.value.why)


def test_a_file_that_is_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    whole = parquet(tmp_path / "a.parquet", {"text": TEXTS}).read_bytes()
    for size in range(0, len(whole), 7):
        (tmp_path / "cut.parquet").write_bytes(whole[:size])
        with pytest.raises(SourceError) as caught:
            read_all(tmp_path / "cut.parquet")
        assert caught.value.code == "TEXT_FORMAT"


READ = 'import json, sys, datasets; print(json.dumps(datasets.load_dataset(sys.argv[1], split="train")["text"][:]))'


def test_the_folder_is_what_the_library_reads(tmp_path: Path) -> None:
    """As TensorRT-LLM's quantize.py reads it, offline."""
    write_dataset(TEXTS, tmp_path / "texts")
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache"), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-c", READ, str(tmp_path / "texts")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == TEXTS
