from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from builder.errors import StorageError, VerificationError
from builder.image.layer import Layer
from builder.image.tar import Entry
from builder.oci.descriptor import LAYER_TAR
from builder.store import Artifact, LocalStore


def make_tree(root: Path, umask: int, mtime: int, order: list[str]) -> Path:
    before = os.umask(umask)
    try:
        for name in order:
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)
            os.utime(path, (mtime, mtime))
        (root / "bin/run").chmod(0o755 & ~umask)
    finally:
        os.umask(before)
    return root


def test_the_same_files_give_the_same_digest_wherever_and_whenever_they_lie(tmp_path: Path) -> None:
    names = ["bin/run", "lib/a", "lib/b/c", "z"]
    one = make_tree(tmp_path / "one", 0o022, 1, names)
    other = make_tree(tmp_path / "elsewhere/other", 0o077, 2_000_000_000, names[::-1])
    assert Layer.from_folder("runtime", one).descriptor == Layer.from_folder("runtime", other).descriptor


def test_a_layer_is_uncompressed_and_knows_its_digest(artifact: Artifact) -> None:
    progress: list[int] = []
    layer = Layer.from_artifact("engine", artifact, advance=progress.append)
    content = b"".join(layer.chunks())
    assert layer.descriptor.digest == f"sha256:{hashlib.sha256(content).hexdigest()}"
    assert layer.descriptor.size == len(content) == sum(progress)
    assert layer.descriptor.media_type == LAYER_TAR
    assert layer.descriptor.annotations == {"io.engine-builder.layer": "engine"}


def test_an_artifact_and_its_folder_give_the_same_layer(artifact: Artifact) -> None:
    assert Layer.from_artifact("engine", artifact) == Layer.from_folder("engine", artifact.files)


def test_a_saved_layer_refers_to_the_store_instead_of_holding_bytes(artifact: Artifact, store: LocalStore) -> None:
    layer = Layer.from_artifact("engine", artifact, executable={"engine/rank0.engine"})
    data = layer.to_json(store)
    assert len(str(data)) < 1000
    assert str(store.root) not in str(data)
    assert Layer.from_json(data, store) == layer


def test_small_contents_and_links_are_saved_in_place(store: LocalStore) -> None:
    layer = Layer.pack("repository", [Entry("a", 2, b"\xff\0"), Entry("b", link="a")])
    assert Layer.from_json(layer.to_json(store), store) == layer


def test_a_layer_of_files_outside_the_store_cannot_be_saved(tmp_path: Path, store: LocalStore) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/file").write_text("x")
    with pytest.raises(StorageError) as caught:
        Layer.from_folder("engine", tmp_path / "folder").to_json(store)
    assert caught.value.code == "NOT_AN_ARTIFACT"


def test_links_inside_a_folder_are_kept(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/a.so.1").write_text("x")
    (tmp_path / "lib/a.so").symlink_to("a.so.1")
    (tmp_path / "lib64").symlink_to("lib")
    layer = Layer.from_folder("runtime", tmp_path, "r")
    assert {(entry.path, entry.link) for entry in layer.entries} == {
        ("r/lib/a.so.1", None),
        ("r/lib/a.so", "a.so.1"),
        ("r/lib64", "lib"),
    }


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside"])
def test_links_that_leave_the_folder_are_refused(tmp_path: Path, target: str) -> None:
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(VerificationError) as caught:
        Layer.from_folder("runtime", tmp_path)
    assert caught.value.code == "LAYER_CONTENT"


def test_what_is_neither_file_nor_link_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(VerificationError):
        Layer.from_folder("runtime", tmp_path)
