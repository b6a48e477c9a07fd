from __future__ import annotations

import errno
from pathlib import Path

import pytest

from builder.errors import HostError
from builder.model.sources.made_once import made_once


def write_file(folder: Path) -> None:
    (folder / "file").write_text("whole")


def test_makes_a_folder_the_first_time_only(tmp_path):
    calls: list[Path] = []
    for _ in range(2):
        folder = made_once(tmp_path / "deep/folder", lambda path: (calls.append(path), write_file(path))[0])
        assert (folder / "file").read_text() == "whole"
    assert len(calls) == 1


def test_what_a_killed_process_left_is_cleared(tmp_path):
    (tmp_path / "folder.partial").mkdir()
    (tmp_path / "folder.partial" / "half").write_text("ha")
    folder = made_once(tmp_path / "folder", write_file)
    assert [path.name for path in folder.iterdir()] == ["file"]


def test_a_failure_leaves_nothing_and_the_next_try_succeeds(tmp_path):
    def fail(folder: Path) -> None:
        write_file(folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made_once(tmp_path / "folder", fail)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.lock"]
    assert (made_once(tmp_path / "folder", write_file) / "file").is_file()


def test_a_full_disk_is_an_error_of_the_host(tmp_path):
    def fill(folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(folder))

    with pytest.raises(HostError) as caught:
        made_once(tmp_path / "folder", fill)
    assert caught.value.code == "DISK_FULL"
    assert not (tmp_path / "folder").exists()
