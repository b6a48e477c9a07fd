import contextlib
import json
import multiprocessing
import os
import shutil
from pathlib import Path

import pytest

from builder.errors import StorageError
from builder.store import FileDigest, LocalStore, hash_file


def build(store: LocalStore, files: dict[str, bytes], stage: str = "engine", key: str = "k1"):
    with store.building(stage, key) as workspace:
        for name, content in files.items():
            path = workspace.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return store.seal(stage, key, workspace, {"seconds": 1})


def test_a_sealed_artifact_is_found_again_with_its_files_and_facts(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    made = build(store, {"a.txt": b"hello", "deep/b.bin": b"\0" * 10})
    found = LocalStore(tmp_path).get("engine", "k1")
    assert found == made
    assert found is not None
    assert (found.files / "deep" / "b.bin").read_bytes() == b"\0" * 10
    assert found.facts == {"seconds": 1}
    assert found.size == 15


def test_the_digest_can_be_recomputed_with_sha256_lines_and_ignores_facts(tmp_path: Path) -> None:
    import hashlib

    one = build(LocalStore(tmp_path / "1"), {"b": b"2", "a": b"1"})
    two = build(LocalStore(tmp_path / "2"), {"a": b"1", "b": b"2"}, key="another")
    line = "".join(f"{hashlib.sha256(c).hexdigest()}  1  {n}\n" for n, c in (("a", b"1"), ("b", b"2")))
    assert one.digest == two.digest == hashlib.sha256(line.encode()).hexdigest()


def test_sealed_files_are_read_only(tmp_path: Path) -> None:
    artifact = build(LocalStore(tmp_path), {"a": b"1"})
    assert (artifact.files / "a").stat().st_mode & 0o777 == 0o444


def test_a_failed_stage_leaves_neither_workspace_nor_artifact(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with contextlib.suppress(KeyboardInterrupt), store.building("engine", "k1") as workspace:
        (workspace.path / "half").write_bytes(b"x")
        raise KeyboardInterrupt
    assert store.get("engine", "k1") is None
    assert list((tmp_path / "work").iterdir()) == []


def test_an_interruption_while_sealing_leaves_nothing_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)

    def interrupted(_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("builder.store.local._sync_tree", interrupted)
    with contextlib.suppress(KeyboardInterrupt):
        build(store, {"a": b"1"})
    assert list((tmp_path / "work").iterdir()) == []
    monkeypatch.undo()
    assert build(store, {"a": b"1"}).size == 1


def test_what_a_crash_left_in_a_workspace_is_gone_in_the_next_run(tmp_path: Path) -> None:
    left = tmp_path / "work" / "engine-k1" / "old"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"from a crash")
    sealed = tmp_path / "work" / "engine-k1.sealed" / "files"
    sealed.mkdir(parents=True)
    artifact = build(LocalStore(tmp_path), {"new": b"1"})
    assert [entry.path for entry in artifact.entries] == ["new"]


def test_a_recorded_digest_is_trusted_but_its_size_is_checked(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with store.building("engine", "k1") as workspace:
        (workspace.path / "a").write_bytes(b"123")
        workspace.record("a", FileDigest("f" * 64, 3))
        assert store.seal("engine", "k1", workspace, {}).entries[0].sha256 == "f" * 64
    with store.building("engine", "k2") as workspace:
        (workspace.path / "a").write_bytes(b"123")
        workspace.record("a", FileDigest("f" * 64, 4))
        with pytest.raises(StorageError, match="isn't as long"):
            store.seal("engine", "k2", workspace, {})


def test_links_are_not_sealed(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with store.building("engine", "k1") as workspace:
        (workspace.path / "link").symlink_to("/etc/passwd")
        with pytest.raises(StorageError, match="plain files"):
            store.seal("engine", "k1", workspace, {})


def test_a_derivation_leads_to_the_artifact_that_it_made(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    artifact = build(store, {"a": b"1"})
    assert store.find("engine", "derivation") is None
    store.remember("engine", "derivation", artifact)
    assert store.find("engine", "derivation") == artifact


def test_a_derivation_whose_artifact_was_removed_is_a_miss(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    artifact = build(store, {"a": b"1"})
    store.remember("engine", "derivation", artifact)
    artifact.root.rename(tmp_path / "elsewhere")
    assert store.find("engine", "derivation") is None


def test_a_damaged_manifest_is_named(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    artifact = build(store, {"a": b"1"})
    (artifact.root / "manifest.json").write_text("{")
    with pytest.raises(StorageError) as error:
        store.get("engine", "k1")
    assert str(artifact.root / "manifest.json") == error.value.where


def _count_builds(root: Path, log: Path) -> None:
    store = LocalStore(root)
    with store.building("engine", "k1") as workspace:
        if store.get("engine", "k1") is None:
            (workspace.path / "a").write_bytes(b"1")
            store.seal("engine", "k1", workspace, {})
            with log.open("a") as file:
                file.write(f"{os.getpid()}\n")


def test_two_processes_build_a_key_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    processes = [
        multiprocessing.get_context("spawn").Process(target=_count_builds, args=(tmp_path / "store", log))
        for _ in range(3)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert len(log.read_text().splitlines()) == 1


def test_the_digest_cache_reads_a_file_again_only_after_it_changed(tmp_path: Path) -> None:
    cache = LocalStore(tmp_path / "store").digest_cache
    file = tmp_path / "weights"
    file.write_bytes(b"one")
    first = cache.digest(file)
    assert first == hash_file(file)
    times = file.stat()
    file.write_bytes(b"two")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert cache.digest(file) == first  # size, mtime and inode are what they were: it wasn't read
    file.write_bytes(b"three")
    assert cache.digest(file) == hash_file(file)


def test_the_manifest_is_plain_json_with_path_size_and_sha256(tmp_path: Path) -> None:
    artifact = build(LocalStore(tmp_path), {"a": b"1"})
    manifest = json.loads((artifact.root / "manifest.json").read_text())
    assert manifest["files"] == [{"path": "a", "sha256": hash_file(artifact.files / "a").sha256, "size": 1}]


def test_the_digest_of_a_found_artifact_is_known_without_reading_it(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with store.building("engine", "k" * 64) as workspace:
        (workspace.path / "rank0.engine").write_bytes(b"engine")
        artifact = store.seal("engine", "k" * 64, workspace, {})
    assert store.find_digest("engine", "d" * 64) is None
    store.remember("engine", "d" * 64, artifact)
    assert store.find_digest("engine", "d" * 64) == artifact.digest
    shutil.rmtree(artifact.root)
    assert store.find_digest("engine", "d" * 64) is None


def test_a_note_without_a_digest_leads_to_the_artifact_too(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with store.building("engine", "k" * 64) as workspace:
        artifact = store.seal("engine", "k" * 64, workspace, {})
    store.remember("engine", "d" * 64, artifact)
    (tmp_path / "derivations" / "engine" / ("d" * 64)).write_text("k" * 64 + "\n")
    assert store.find_digest("engine", "d" * 64) == artifact.digest
