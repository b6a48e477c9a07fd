"""Archives that want to write elsewhere, or to hide something: each is refused, and nothing is written outside."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.errors import VerificationError
from builder.image.tar import Entry, tar_chunks
from builder.registry.untar import unpack

ROOT = "opt/engine-builder"


def member(name: str, kind: bytes = tarfile.REGTYPE, **values: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    for key, value in values.items():
        setattr(info, key, value)
    return info


def archive(*members: tarfile.TarInfo, form: int = tarfile.PAX_FORMAT) -> bytes:
    raw = b"".join(m.tobuf(form) + (b"x" * m.size + bytes(-m.size % 512) if m.isfile() else b"") for m in members)
    return raw + bytes(1024)


def pieces(content: bytes, size: int) -> Iterator[bytes]:
    return (content[start : start + size] for start in range(0, len(content), size))


@pytest.mark.parametrize("size", [1, 511, 512, 513, 100_000])
def test_our_own_archives_come_out_as_they_went_in(tmp_path: Path, size: int) -> None:
    long = "deep/" * 30 + "ein-Name-über-hundert-Zeichen"
    entries = [
        Entry(f"{ROOT}/models/run", 3, b"run", executable=True),
        Entry(f"{ROOT}/empty"),
        Entry(f"{ROOT}/{long}", 600, b"y" * 600),
        Entry(f"{ROOT}/models/link", link="../empty"),
    ]
    unpack(pieces(b"".join(tar_chunks(entries)), size), ROOT, tmp_path, "here")
    assert (tmp_path / "models/run").read_bytes() == b"run"
    assert (tmp_path / "models/run").stat().st_mode & 0o100
    assert not (tmp_path / "empty").stat().st_mode & 0o111
    assert (tmp_path / long).read_bytes() == b"y" * 600
    assert (tmp_path / "models/link").readlink() == Path("../empty")


def test_unpacking_again_over_an_unfinished_pull_works(tmp_path: Path) -> None:
    content = b"".join(tar_chunks([Entry(f"{ROOT}/a/b", 3, b"new"), Entry(f"{ROOT}/l", link="a")]))
    (tmp_path / "a").mkdir()
    (tmp_path / "a/b").write_text("half of something longer")
    (tmp_path / "l").symlink_to("elsewhere")
    unpack(iter((content,)), ROOT, tmp_path, "here")
    assert (tmp_path / "a/b").read_text() == "new"
    assert (tmp_path / "l").readlink() == Path("a")


@pytest.mark.parametrize(
    "members",
    [
        [member("/etc/passwd", size=1)],
        [member(f"{ROOT}/../../etc/passwd", size=1)],
        [member(f"{ROOT}/..", size=1)],
        [member("opt/other/file", size=1)],
        [member("opt", size=1)],
        [member(ROOT, size=1)],
        [member(f"{ROOT}//file", size=1)],
        [member(f"{ROOT}/./file", size=1)],
        [member(f"{ROOT}/a\\b", size=1)],
        [member(f"{ROOT}/link", tarfile.SYMTYPE, linkname="/etc")],
        [member(f"{ROOT}/link", tarfile.SYMTYPE, linkname="../x")],
        [member(f"{ROOT}/link", tarfile.SYMTYPE, linkname="")],
        [member(f"{ROOT}/a", tarfile.SYMTYPE, linkname="."), member(f"{ROOT}/b", tarfile.SYMTYPE, linkname="a/..")],
        [member(f"{ROOT}/a", tarfile.SYMTYPE, linkname="b"), member(f"{ROOT}/a/file", size=1)],
        [member(f"{ROOT}/a", size=1), member(f"{ROOT}/a/file", size=1)],
        [member(f"{ROOT}/a/file", size=1), member(f"{ROOT}/a", size=1)],
        [member(f"{ROOT}/a/file", size=1), member(f"{ROOT}/a", tarfile.SYMTYPE, linkname="b")],
        [member(f"{ROOT}/a", size=1), member(f"{ROOT}/a", size=1)],
        [member(f"{ROOT}/hard", tarfile.LNKTYPE, linkname=f"{ROOT}/a")],
        [member(f"{ROOT}/device", tarfile.BLKTYPE)],
        [member(f"{ROOT}/device", tarfile.CHRTYPE)],
        [member(f"{ROOT}/pipe", tarfile.FIFOTYPE)],
        [member(f"{ROOT}/sparse", tarfile.GNUTYPE_SPARSE)],
        [member(f"{ROOT}/file", size=1, pax_headers={"GNU.sparse.realsize": "99999999999"})],
        [member(f"{ROOT}/file", size=1, pax_headers={"path": "../../x"})],
        [member(f"{ROOT}/file", size=1, pax_headers={"path": f"{ROOT}/a\0b"})],
        [member(f"{ROOT}/file", size=1, pax_headers={"size": "-5"})],
        [member("whatever", tarfile.XGLTYPE)],
    ],
    ids=str,
)
def test_a_hostile_archive_is_refused(tmp_path: Path, members: list[tarfile.TarInfo]) -> None:
    inside = tmp_path / "in/side"
    inside.mkdir(parents=True)
    with pytest.raises(VerificationError) as caught:
        unpack(iter((archive(*members),)), ROOT, inside, "here")
    assert caught.value.code == "UNSAFE_ARCHIVE"
    assert [path.name for path in tmp_path.rglob("*") if inside not in (path, *path.parents)] == ["in"]


def test_a_long_name_in_gnus_form_is_refused(tmp_path: Path) -> None:
    content = archive(member(f"{ROOT}/" + "x" * 200, size=1), form=tarfile.GNU_FORMAT)
    with pytest.raises(VerificationError):
        unpack(iter((content,)), ROOT, tmp_path, "here")


def test_a_giant_extended_header_is_refused_before_it_is_read(tmp_path: Path) -> None:
    header = member("x", tarfile.XHDTYPE, size=1 << 40).tobuf(tarfile.GNU_FORMAT)
    with pytest.raises(VerificationError, match="unpacked safely") as caught:
        unpack(iter((header,)), ROOT, tmp_path, "here")
    assert "extended header of" in (caught.value.why or "")


@pytest.mark.parametrize("length", [0, 100, 512, 1000])
def test_a_truncated_archive_is_refused(tmp_path: Path, length: int) -> None:
    content = archive(member(f"{ROOT}/file", size=600))[:length]
    with pytest.raises(VerificationError):
        unpack(iter((content,)), ROOT, tmp_path, "here")


def refusal(content: bytes, folder: Path) -> str | None:
    try:
        unpack(iter((content,)), ROOT, folder, "here")
    except VerificationError as error:
        return error.code
    return None


@given(st.binary(max_size=3000))
def test_noise_is_refused_or_empty(tmp_path_factory: pytest.TempPathFactory, noise: bytes) -> None:
    folder = tmp_path_factory.mktemp("noise")
    assert refusal(noise, folder) in ("UNSAFE_ARCHIVE", None)
    assert list(folder.iterdir()) == []


@given(st.integers(0, 511), st.integers(0, 255))
def test_a_header_with_a_wrong_byte_never_writes_outside(
    tmp_path_factory: pytest.TempPathFactory, position: int, value: int
) -> None:
    folder = tmp_path_factory.mktemp("flip") / "inside"
    folder.mkdir()
    content = bytearray(archive(member(f"{ROOT}/file", size=600)))
    content[position] = value
    assert refusal(bytes(content), folder) in ("UNSAFE_ARCHIVE", None)
    assert [path.name for path in folder.parent.iterdir()] == ["inside"]


def test_the_standard_library_agrees_on_what_is_inside(tmp_path: Path) -> None:
    content = archive(member(f"{ROOT}/a", size=5), member(f"{ROOT}/b/c", size=0))
    unpack(iter((content,)), ROOT, tmp_path, "here")
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        sizes = {m.name.removeprefix(f"{ROOT}/"): m.size for m in tar.getmembers()}
    assert {p.relative_to(tmp_path).as_posix(): p.stat().st_size for p in tmp_path.rglob("*") if p.is_file()} == sizes
