from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from builder.errors import SourceError
from builder.model.sources.folder import FolderSource
from builder.store import DigestCache
from builder.store.digests import ignore_progress

FILES = {
    "config.json": b"{}",
    "model.safetensors": (2).to_bytes(8, "little") + b"{}",
    "tokenizer.json": b'{"version": "1.0"}',
    "additional_chat_templates/tools.jinja": b"{{ tools }}",
    "README.md": b"# Tiny",
    "convert.py": b"import os",
    "original/params.json": b"{}",
}
PINNED = ["additional_chat_templates/tools.jinja", "config.json", "model.safetensors", "tokenizer.json"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def source(folder: Path, tmp_path: Path) -> FolderSource:
    return FolderSource("./model", folder, digests=DigestCache(tmp_path / "digests.sqlite"))


def refused(code: str, action, *args) -> SourceError:
    with pytest.raises(SourceError) as caught:
        action(*args)
    assert caught.value.code == code, caught.value.render()
    return caught.value


def test_pins_weights_configuration_and_tokenizer_under_the_source_as_written(source):
    snapshot = source.resolve(ignore_progress)
    assert snapshot.source == "./model"
    assert [file.path for file in snapshot.files] == PINNED
    for file in snapshot.files:
        assert (file.size, file.sha256) == (len(FILES[file.path]), hashlib.sha256(FILES[file.path]).hexdigest())


def test_the_revision_is_what_sha256sum_would_tell_of_the_listing(source):
    lines = "".join(f"{hashlib.sha256(FILES[path]).hexdigest()}  {len(FILES[path])}  {path}\n" for path in PINNED)
    revision = source.resolve(ignore_progress).revision
    assert revision == f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}"


def test_documentation_and_code_do_not_change_the_revision(source, folder):
    before = source.resolve(ignore_progress)
    (folder / "README.md").write_text("other words")
    (folder / "notes.md").write_text("new")
    assert source.resolve(ignore_progress) == before
    assert source.materialise(before, ignore_progress) == folder


def test_materialise_gives_the_folder_itself_and_tells_every_byte_once(source, folder):
    snapshot = source.resolve(ignore_progress)
    told: list[int] = []
    assert source.materialise(snapshot, told.append) == folder
    assert sum(told) == snapshot.size


def test_a_changed_file_is_drift_and_named_with_both_digests(source, folder):
    snapshot = source.resolve(ignore_progress)
    (folder / "model.safetensors").write_bytes(b"weighty")
    error = refused("DRIFT", source.materialise, snapshot, ignore_progress)
    assert "model.safetensors" in error.why
    assert hashlib.sha256(b"weighty").hexdigest() in error.why
    assert hashlib.sha256(FILES["model.safetensors"]).hexdigest() in error.why
    assert "config.json" not in error.why
    assert "lock --upgrade" in error.hint


def test_missing_files_and_new_ones_that_count_are_drift(source, folder):
    snapshot = source.resolve(ignore_progress)
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert "chat_template.jinja is new" in refused("DRIFT", source.materialise, snapshot, ignore_progress).why
    (folder / "model.safetensors").unlink()
    assert "model.safetensors is missing" in refused("DRIFT", source.materialise, snapshot, ignore_progress).why


def test_a_snapshot_cut_down_to_some_kinds_says_nothing_about_the_others(source, folder):
    snapshot = source.resolve(ignore_progress)
    (folder / "model.safetensors").write_bytes(b"weighty")
    assert source.materialise(replace(snapshot, files=snapshot.of_kind("config")), ignore_progress) == folder


def test_a_link_inside_the_folder_is_followed(source, folder):
    (folder / "model.safetensors").rename(folder / "blob")
    (folder / "model.safetensors").symlink_to("blob")
    snapshot = source.resolve(ignore_progress)
    assert snapshot.of_kind("weights")[0].sha256 == hashlib.sha256(FILES["model.safetensors"]).hexdigest()


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside"])
def test_a_link_that_leaves_the_folder_is_refused(source, folder, tmp_path, target):
    (tmp_path / "outside").write_text("secret")
    snapshot = source.resolve(ignore_progress)
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").symlink_to(target)
    assert "tokenizer.json" in refused("PATH_ESCAPE", source.resolve, ignore_progress).message
    refused("PATH_ESCAPE", source.materialise, snapshot, ignore_progress)


def test_a_git_lfs_pointer_is_named_with_the_size_of_the_real_file(source, folder):
    snapshot = source.resolve(ignore_progress)
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4976698672\n"
    (folder / "model.safetensors").write_text(pointer)
    for action, args in ((source.resolve, ()), (source.materialise, (snapshot,))):
        error = refused("LFS_POINTER", action, *args, ignore_progress)
        assert "4976698672" in error.why
        assert "git lfs pull" in error.hint


def test_a_pickle_is_refused_and_not_run(source, folder, tmp_path):
    canary = tmp_path / "canary"
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(f"cos\nsystem\n(S'touch {canary}'\ntR.".encode())
    refused("PICKLE_ONLY", source.resolve, ignore_progress)
    assert not canary.exists()


@pytest.mark.parametrize("vocab_file", ["../../../../root/.cache/huggingface/token", "/etc/passwd", "..\\secret", ".."])
def test_a_tokenizer_that_points_elsewhere_is_refused(source, folder, vocab_file):
    (folder / "tokenizer_config.json").write_text(json.dumps({"vocab_file": vocab_file}))
    refused("PATH_ESCAPE", source.resolve, ignore_progress)


def test_a_tokenizer_that_names_its_own_files_is_accepted(source, folder):
    (folder / "tokenizer_config.json").write_text(json.dumps({"vocab_file": "vocab.json", "merges_file": None}))
    assert "tokenizer_config.json" in [file.path for file in source.resolve(ignore_progress).files]


def test_a_folder_that_is_not_there_is_told_with_where_it_was_looked_up(tmp_path):
    source = FolderSource("./absent", tmp_path / "absent", digests=DigestCache(tmp_path / "digests.sqlite"))
    error = refused("NOT_FOUND", source.resolve, ignore_progress)
    assert error.where == str(tmp_path / "absent")


def test_a_dangling_link_is_unreadable_not_forgotten(source, folder):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("gone")
    error = refused("UNREADABLE", source.resolve, ignore_progress)
    assert "model.safetensors" in error.where


def test_what_is_no_file_is_never_opened(source, folder):
    before = source.resolve(ignore_progress)
    os.mkfifo(folder / "vocab.json")
    assert source.resolve(ignore_progress) == before
