from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from builder.errors import StorageError, VerificationError
from builder.oci.descriptor import INDEX, Descriptor
from builder.oci.layout import LayoutRepository
from builder.oci.manifest import Index

BLOB = Descriptor.of("x", b"content")


def content() -> Iterator[bytes]:
    return iter((b"con", b"tent"))


def index_of(title: str) -> bytes:
    return Index((), {"title": title}).to_bytes()


@pytest.fixture
def layout(tmp_path: Path) -> LayoutRepository:
    return LayoutRepository(tmp_path / "deep/layout")


def test_nothing_is_written_by_looking(layout: LayoutRepository) -> None:
    assert layout.tags() == []
    assert layout.get_manifest("1.0") is None
    assert not layout.has_blob(BLOB)
    assert not layout.root.exists()


def test_a_blob_is_stored_under_its_digest(layout: LayoutRepository) -> None:
    progress: list[int] = []
    layout.put_blob(BLOB, content, progress.append)
    layout.put_blob(BLOB, content, progress.append)
    path = layout.root / "blobs/sha256" / BLOB.digest.removeprefix("sha256:")
    assert path.read_bytes() == b"content"
    assert b"".join(layout.open_blob(BLOB)) == b"content"
    assert sum(progress) == 2 * BLOB.size
    assert json.loads((layout.root / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}


def test_a_blob_with_another_digest_leaves_nothing(layout: LayoutRepository) -> None:
    with pytest.raises(VerificationError):
        layout.put_blob(BLOB, lambda: iter((b"another",)))
    assert not layout.has_blob(BLOB)
    assert list((layout.root / "ingest").iterdir()) == []


def test_a_damaged_blob_is_found_when_it_is_read(layout: LayoutRepository) -> None:
    layout.put_blob(BLOB, content)
    (layout.root / "blobs/sha256" / BLOB.digest.removeprefix("sha256:")).write_bytes(b"CONTENT")
    with pytest.raises(VerificationError):
        list(layout.open_blob(BLOB))


def test_a_missing_blob_is_one_clear_error(layout: LayoutRepository) -> None:
    with pytest.raises(StorageError) as caught:
        list(layout.open_blob(BLOB))
    assert caught.value.code == "BLOB_MISSING"


def test_a_tag_moves_and_other_tags_stay(layout: LayoutRepository) -> None:
    layout.put_manifest(index_of("one"), INDEX, "1.0")
    layout.put_manifest(index_of("two"), INDEX, "2.0")
    layout.put_manifest(index_of("three"), INDEX, "1.0")
    assert layout.tags() == ["1.0", "2.0"]
    for tag, title in (("1.0", "three"), ("2.0", "two")):
        stored = layout.get_manifest(tag)
        assert stored is not None
        assert stored.content == index_of(title)


def test_a_manifest_without_tag_is_found_by_digest_only(layout: LayoutRepository) -> None:
    digest = Descriptor.of(INDEX, index_of("one")).digest
    layout.put_manifest(index_of("one"), INDEX, digest)
    assert layout.tags() == []
    assert layout.get_manifest(digest) is not None


def test_many_writers_lose_no_tag(layout: LayoutRepository) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: layout.put_manifest(index_of(str(n % 3)), INDEX, f"v{n:02}"), range(24)))
    assert layout.tags() == [f"v{n:02}" for n in range(24)]


def test_leftovers_of_a_crash_are_swept_but_not_those_in_use(layout: LayoutRepository) -> None:
    layout.put_blob(BLOB, content)
    leftover, used = layout.root / "ingest/dead", layout.root / "ingest/alive"
    leftover.write_bytes(b"half")
    with open(used, "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        layout.put_blob(Descriptor.of("x", b"more"), lambda: iter((b"more",)))
        assert used.exists()
    assert not leftover.exists()


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(StorageError) as caught:
        LayoutRepository(tmp_path).put_blob(BLOB, content)
    assert caught.value.code == "NOT_A_LAYOUT"
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_damaged_index_is_one_clear_error(layout: LayoutRepository) -> None:
    layout.put_blob(BLOB, content)
    (layout.root / "index.json").write_text("{")
    with pytest.raises(StorageError) as caught:
        layout.tags()
    assert caught.value.code == "BAD_MANIFEST"
