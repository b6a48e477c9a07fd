from __future__ import annotations

import hashlib
import io
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.errors import VerificationError
from builder.image.tar import Entry, link_leaves, tar_chunks

LONG = "deep/" * 30 + "ein-Name-über-hundert-Zeichen"
ENTRIES = [
    Entry("b/run", 3, b"run", executable=True),
    Entry("b/data", 5, b"bytes"),
    Entry("b/link", link="data"),
    Entry("b.txt", 0, b""),
    Entry(LONG, 4, b"long"),
]


def archive(entries: list[Entry]) -> bytes:
    return b"".join(tar_chunks(entries))


def test_the_standard_library_reads_the_archive() -> None:
    with tarfile.open(fileobj=io.BytesIO(archive(ENTRIES))) as tar:
        members = {member.name: member for member in tar.getmembers()}
        assert {name for name, member in members.items() if member.isfile()} == {"b/run", "b/data", "b.txt", LONG}
        data = tar.extractfile("b/data")
        assert data is not None
        assert data.read() == b"bytes"
    assert (members["b/run"].mode, members["b/data"].mode, members["b"].mode) == (0o755, 0o644, 0o755)
    assert members["b/link"].linkname == "data"
    assert {(m.uid, m.gid, m.mtime, m.uname, m.gname) for m in members.values()} == {(0, 0, 0, "", "")}


def test_gnu_tar_reads_the_archive(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(archive(ENTRIES))
    subprocess.run(["tar", "-C", str(tmp_path), "-xf", str(tmp_path / "a.tar")], check=True)
    assert (tmp_path / LONG).read_text() == "long"
    assert (tmp_path / "b/link").read_text() == "bytes"
    assert (tmp_path / "b/run").stat().st_mode & 0o777 == 0o755


def test_each_folder_comes_once_and_before_its_files() -> None:
    with tarfile.open(fileobj=io.BytesIO(archive(ENTRIES))) as tar:
        names = tar.getnames()
    assert len(names) == len(set(names))
    for name in names:
        parent = name.rpartition("/")[0]
        assert not parent or names.index(parent) < names.index(name)


def test_the_bytes_are_the_same_on_every_machine_and_python() -> None:
    assert (
        hashlib.sha256(archive(ENTRIES)).hexdigest()
        == "c7423b2a7e37380db39a4ebfea45e33ad0f842fe1aec799d0c05761039ed2857"
    )


@given(st.permutations(ENTRIES))
def test_the_order_of_the_entries_does_not_matter(entries: list[Entry]) -> None:
    assert archive(entries) == archive(ENTRIES)


def test_a_file_larger_than_eight_gib_has_its_size_in_an_extended_header(tmp_path: Path) -> None:
    size = (8 << 30) + 1
    path = tmp_path / "sparse"
    with open(path, "wb") as file:
        file.truncate(size)
    header = next(tar_chunks([Entry("big", size, path)]))[: 3 * 512]
    member = tarfile.TarInfo.frombuf(header[:512], "utf-8", "strict")
    assert member.type == tarfile.XHDTYPE
    assert b"size=8589934593" in header


@pytest.mark.parametrize("content", [b"shorter", b"and now it is longer", None])
def test_a_file_that_changed_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(VerificationError) as caught:
        archive([Entry("file", 10, path)])
    assert caught.value.code == "LAYER_CHANGED"
    assert caught.value.where == str(path)


@pytest.mark.parametrize(
    ("path", "target", "leaves"),
    [
        ("a/b", "c", False),
        ("a/b", "../c", False),
        ("a/b", "../../c", True),
        ("a", "..", True),
        ("a", "/etc/passwd", True),
        ("a", "", True),
        ("a/b", "c/../..", True),
        ("a/b", "c/../d", True),
    ],
)
def test_links_are_judged_by_where_they_may_lead(path: str, target: str, leaves: bool) -> None:
    assert link_leaves(path, target) is leaves
