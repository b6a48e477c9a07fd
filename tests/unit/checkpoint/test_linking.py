"""Files in two places without copying them, where that is safe."""

import os
from pathlib import Path

import pytest

from builder.checkpoint import linking
from builder.checkpoint.linking import link_file


def test_a_shared_file_is_one_file_under_two_names_or_a_clone(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(b"weights")
    (tmp_path / "model.safetensors").symlink_to("blob")  # as the Hub's cache has it
    link_file(tmp_path / "model.safetensors", tmp_path / "artifact", share=True)
    assert (tmp_path / "artifact").read_bytes() == b"weights"
    assert not (tmp_path / "artifact").is_symlink()


def test_without_clones_a_shared_file_gets_a_second_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linking, "_clone", lambda *_: False)
    (tmp_path / "model").write_bytes(b"weights")
    link_file(tmp_path / "model", tmp_path / "artifact", share=True)
    assert (tmp_path / "model").samefile(tmp_path / "artifact")


def test_what_someone_edits_is_never_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linking, "_clone", lambda *_: False)
    (tmp_path / "model").write_bytes(b"weights")
    link_file(tmp_path / "model", tmp_path / "artifact", share=False)
    (tmp_path / "model").write_bytes(b"changed")
    assert (tmp_path / "artifact").read_bytes() == b"weights"


def test_another_file_system_is_copied_to(tmp_path: Path) -> None:
    target = Path("/dev/shm") / f"engine-builder-{os.getpid()}"
    (tmp_path / "model").write_bytes(b"weights")
    try:
        link_file(tmp_path / "model", target, share=True)
        assert target.read_bytes() == b"weights"
        assert not (tmp_path / "model").samefile(target)
    finally:
        target.unlink(missing_ok=True)


def test_an_absent_file_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        link_file(tmp_path / "model", tmp_path / "artifact", share=True)
    assert not (tmp_path / "artifact").exists()
