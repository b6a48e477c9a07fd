"""`hf://` through the real client against a Hub-shaped server: what is pinned, what is refused, what survives."""

from __future__ import annotations

import hashlib
import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from builder.errors import HostError, SourceError
from builder.model.safetensors import TensorIndex, encode_header
from builder.model.snapshot import Snapshot
from builder.model.sources import checks
from builder.model.sources.hub import HubSource
from builder.store import DigestCache
from builder.store.digests import ignore_progress
from tests.integration.hub_server import HubServer, running_hub

REPO = "acme/tiny-llama"
WEIGHTS = bytes(range(256)) * 64
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "tokenizer_config.json": b'{"bos_token": "<s>"}',
    "chat_template.jinja": b"{{ messages }}",
    "additional_chat_templates/tool_use.jinja": b"{{ tools }}",
    "model.safetensors": WEIGHTS,
    "README.md": b"# Tiny",
    ".gitattributes": b"*.safetensors filter=lfs",
    "modeling_tiny.py": b"import os",
    "pytorch_model.bin": b"pickle",
    "consolidated.safetensors": b"the same weights again",
    "original/params.json": b"{}",
}
LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4976698672\n"
SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
PINNED = [
    "additional_chat_templates/tool_use.jinja",
    "chat_template.jinja",
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
]


def safetensors(tensors: dict[str, tuple[str, tuple[int, ...]]]) -> bytes:
    """A file of BF16 tensors, all zero."""
    return encode_header(tensors, {}) + bytes(sum(2 * math.prod(shape) for _, shape in tensors.values()))


def sharded() -> dict[str, bytes]:
    """Two shards of a tensor each, and their index."""
    index = {"metadata": {}, "weight_map": {"t1": SHARDS[0], "t2": SHARDS[1]}}
    shards = {shard: safetensors({f"t{number}": ("BF16", (2, 2))}) for number, shard in enumerate(SHARDS, 1)}
    return shards | {"model.safetensors.index.json": json.dumps(index).encode()}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "hub"


@pytest.fixture
def digests(tmp_path: Path) -> DigestCache:
    return DigestCache(tmp_path / "digests.sqlite")


def source(hub: HubServer, cache: Path, digests: DigestCache, revision: str = "main", repo: str = REPO) -> HubSource:
    return HubSource(repo, revision, digests=digests, endpoint=hub.endpoint, cache_dir=cache)


def refused(code: str, action: object, *args: object) -> SourceError:
    with pytest.raises(SourceError) as caught:
        action(*args)  # type: ignore[operator]
    assert caught.value.code == code, caught.value.render()
    return caught.value


class TestResolve:
    def test_pins_the_commit_and_every_file_that_a_build_can_need(self, hub, cache, digests):
        commit = hub.push(REPO, FILES)
        snapshot = source(hub, cache, digests).resolve(ignore_progress)
        assert (snapshot.source, snapshot.revision) == (f"hf://{REPO}", commit)
        assert [file.path for file in snapshot.files] == PINNED
        for file in snapshot.files:
            assert file.size == len(FILES[file.path])
            assert file.sha256 == hashlib.sha256(FILES[file.path]).hexdigest()
        assert [file.path for file in snapshot.of_kind("weights")] == ["model.safetensors"]

    def test_takes_the_sha256_of_large_files_from_the_metadata_without_downloading_them(self, hub, cache, digests):
        hub.push(REPO, FILES)
        source(hub, cache, digests).resolve(ignore_progress)
        assert hub.downloads("model.safetensors") == 0
        assert hub.downloads("README.md") == hub.downloads("pytorch_model.bin") == 0

    def test_a_moved_branch_gives_another_snapshot_and_the_old_one_stays_available(self, hub, cache, digests):
        first = hub.push(REPO, FILES)
        before = source(hub, cache, digests).resolve(ignore_progress)
        second = hub.push(REPO, FILES | {"model.safetensors": WEIGHTS[::-1]})
        after = source(hub, cache, digests).resolve(ignore_progress)
        assert (before.revision, after.revision) == (first, second)
        folder = source(hub, cache, digests).materialise(before, ignore_progress)
        assert (folder / "model.safetensors").read_bytes() == WEIGHTS

    def test_a_commit_can_be_asked_for_by_its_name(self, hub, cache, digests):
        first = hub.push(REPO, FILES)
        hub.push(REPO, FILES | {"config.json": b"{}"})
        assert source(hub, cache, digests, first).resolve(ignore_progress).revision == first

    def test_an_unknown_repository_is_named(self, hub, cache, digests):
        error = refused("REPO_NOT_FOUND", source(hub, cache, digests).resolve, ignore_progress)
        assert REPO in error.message
        assert "hf auth login" in error.hint

    def test_an_unknown_revision_is_told_apart_from_an_unknown_repository(self, hub, cache, digests):
        hub.push(REPO, FILES)
        error = refused("REVISION_NOT_FOUND", source(hub, cache, digests, "v9").resolve, ignore_progress)
        assert "v9" in error.where

    def test_a_gated_repository_names_the_page_where_the_licence_is_accepted(self, hub, cache, digests):
        hub.push(REPO, FILES, gated=True)
        error = refused("GATED", source(hub, cache, digests).resolve, ignore_progress)
        assert f"{hub.endpoint}/{REPO}" in error.hint

    def test_a_failing_hub_is_reported_with_its_status(self, hub, cache, digests):
        hub.push(REPO, FILES)
        hub.faults["/revision/main"] = "status-500"
        error = refused("HUB_FAILED", source(hub, cache, digests).resolve, ignore_progress)
        assert "500" in error.message

    def test_a_redirect_loop_ends(self, hub, cache, digests):
        hub.push(REPO, FILES)
        hub.faults["/revision/main"] = "redirect-loop"
        error = refused("HUB_FAILED", source(hub, cache, digests).resolve, ignore_progress)
        assert "redirect" in error.why

    def test_no_network_is_one_clear_message(self, cache, digests):
        with running_hub() as server:
            pass
        error = refused("NO_NETWORK", source(server, cache, digests).resolve, ignore_progress)
        assert server.endpoint in error.message
        assert "HTTPS_PROXY" in error.hint

    @pytest.mark.parametrize("name", ["../../etc/passwd", "/abs/file", "a/../../b", "C:\\Windows\\x", "a\nb"])
    def test_a_file_name_that_leaves_the_folder_is_refused_before_any_download(self, hub, cache, digests, name):
        hub.push(REPO, FILES | {name: b"x"})
        refused("PATH_ESCAPE", source(hub, cache, digests).resolve, ignore_progress)
        assert not any("/resolve/" in request for request in hub.requests)

    @pytest.mark.parametrize(
        ("names", "code"),
        [
            (["adapter_config.json", "adapter_model.safetensors"], "ADAPTER_ONLY"),
            (["model-Q4_K_M.gguf"], "GGUF_ONLY"),
            (["config.json", "pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"], "PICKLE_ONLY"),
            (["README.md"], "WEIGHTS_MISSING"),
            (["model.safetensors"], "CONFIG_MISSING"),
        ],
    )
    def test_a_repository_without_usable_weights_is_refused_by_its_list_of_files(
        self, hub, cache, digests, names, code
    ):
        hub.push(REPO, dict.fromkeys(names, b"x"))
        refused(code, source(hub, cache, digests).resolve, ignore_progress)
        assert not any("/resolve/" in request for request in hub.requests)

    def test_a_small_file_with_other_bytes_than_the_hub_lists_is_never_pinned(self, hub, cache, digests):
        commit = hub.push(REPO, FILES)
        hub.faults["config.json"] = "other-bytes"
        refused("SHA_MISMATCH", source(hub, cache, digests).resolve, ignore_progress)
        hub.faults.clear()
        snapshot = source(hub, cache, digests).resolve(ignore_progress)
        (damaged,) = cache.rglob(f"snapshots/{commit}/config.json")
        damaged.resolve().write_bytes(b"damaged on this disk")
        assert source(hub, cache, digests).resolve(ignore_progress) == snapshot

    def test_a_tokenizer_that_points_to_a_file_of_this_machine_is_refused(self, hub, cache, digests):
        secret = json.dumps({"vocab_file": "../../../../root/.cache/huggingface/token"}).encode()
        hub.push(REPO, FILES | {"tokenizer_config.json": secret})
        error = refused("PATH_ESCAPE", source(hub, cache, digests).resolve, ignore_progress)
        assert "vocab_file" in error.message

    def test_of_several_copies_of_the_weights_only_that_with_the_index_is_pinned(self, hub, cache, digests):
        files = FILES | sharded() | {"metal/model.bin": b"x", "model-Q4_K_M.gguf": b"x"}
        del files["model.safetensors"]
        hub.push(REPO, files)
        snapshot = source(hub, cache, digests).resolve(ignore_progress)
        assert [file.path for file in snapshot.of_kind("weights")] == [*SHARDS, "model.safetensors.index.json"]

    def test_shards_that_the_index_names_and_the_repository_lacks_are_counted_and_named(self, hub, cache, digests):
        names = [f"model-{number:05}-of-00030.safetensors" for number in range(1, 31)]
        index = {"weight_map": {f"t{number}": name for number, name in enumerate(names)}}
        files = {"config.json": b"{}", "model.safetensors.index.json": json.dumps(index).encode()}
        hub.push(REPO, files | dict.fromkeys(names[:15], b"x"))
        error = refused("SHARD_MISSING", source(hub, cache, digests).resolve, ignore_progress)
        assert "15 of 30" in error.message
        assert "model-00016-of-00030.safetensors" in error.message
        assert hub.downloads(names[0]) == 0

    def test_files_of_two_commits_are_never_mixed(self, hub, cache, digests):
        hub.push(REPO, FILES)
        hub.faults["tokenizer.json"] = "other-commit"
        error = refused("MOVED", source(hub, cache, digests).resolve, ignore_progress)
        assert "tokenizer.json" in error.message

    def test_a_branch_that_moves_during_the_look_up_changes_nothing(self, hub, cache, digests):
        first = hub.push(REPO, FILES)
        hub.after_listing = lambda: hub.push(REPO, FILES | {"config.json": b'{"other": 1}'})
        snapshot = source(hub, cache, digests).resolve(ignore_progress)
        assert snapshot.revision == first
        (config,) = snapshot.of_kind("config")
        assert config.sha256 == hashlib.sha256(FILES["config.json"]).hexdigest()

    def test_a_small_file_that_is_replaced_after_the_listing_is_refused(self, hub, cache, digests):
        hub.push(REPO, dict(FILES))
        hub.after_listing = lambda: hub.replace(REPO, "config.json", b'{"other": 1}')
        refused("SHA_MISMATCH", source(hub, cache, digests).resolve, ignore_progress)

    def test_an_adapter_is_pinned_where_one_is_asked_for(self, hub, cache, digests):
        hub.push(REPO, {"adapter_config.json": b'{"r": 8}', "adapter_model.safetensors": b"x", "README.md": b""})
        adapter = HubSource(REPO, "main", digests=digests, content="adapter", endpoint=hub.endpoint, cache_dir=cache)
        assert [file.kind for file in adapter.resolve(ignore_progress).files] == ["config", "weights"]
        hub.push(REPO, FILES)
        refused("NOT_AN_ADAPTER", adapter.resolve, ignore_progress)

    def test_texts_are_pinned_whole_without_documentation_and_code(self, hub, cache, digests):
        files = {"README.md": b"", "data.py": b"", "data/train.parquet": b"p", "small.jsonl": b"{}"}
        hub.push(f"datasets/{REPO}", files)
        texts = HubSource(REPO, "main", digests=digests, content="dataset", endpoint=hub.endpoint, cache_dir=cache)
        snapshot = texts.resolve(ignore_progress)
        assert snapshot.source == f"hf://datasets/{REPO}"
        assert [file.path for file in snapshot.files] == ["data/train.parquet", "small.jsonl"]
        assert hub.downloads("train.parquet") == 0
        folder = texts.materialise(snapshot, ignore_progress)
        assert (folder / "data/train.parquet").read_bytes() == b"p"

    def test_texts_may_be_larger_than_any_file_that_is_read_whole(self, hub, cache, digests, monkeypatch):
        monkeypatch.setattr(checks, "MOST_WORD_BYTES", 1000)
        hub.push(f"datasets/{REPO}", {"train.parquet": bytes(1001), "small.jsonl": bytes(1001)})
        texts = HubSource(REPO, "main", digests=digests, content="dataset", endpoint=hub.endpoint, cache_dir=cache)
        folder = texts.materialise(texts.resolve(ignore_progress), ignore_progress)
        assert (folder / "train.parquet").stat().st_size == 1001
        hub.push(REPO, FILES | {"tokenizer.json": bytes(1001)})
        refused("UNREADABLE", source(hub, cache, digests).resolve, ignore_progress)


class TestRateLimit:
    def test_retry_after_is_honoured(self, hub, cache, digests):
        hub.push(REPO, FILES)
        hub.limits["/revision/main"] = [1, 1]
        begun = time.monotonic()
        source(hub, cache, digests).resolve(ignore_progress)
        assert time.monotonic() - begun >= 1

    @pytest.mark.parametrize("path", ["/revision/main", "config.json"])
    def test_a_wait_of_an_hour_is_an_error_at_once(self, hub, cache, digests, path):
        hub.push(REPO, FILES)
        hub.limits[path] = [3600, 1000]
        begun = time.monotonic()
        error = refused("RATE_LIMITED", source(hub, cache, digests).resolve, ignore_progress)
        assert time.monotonic() - begun < 5
        assert "3600 s" in error.why

    def test_a_limit_that_stays_ends_in_an_error(self, hub, cache, digests):
        hub.push(REPO, FILES)
        hub.limits["/revision/main"] = [0, 1000]
        refused("RATE_LIMITED", source(hub, cache, digests).resolve, ignore_progress)


class TestTensors:
    def read(self, hub: HubServer, cache: Path, digests: DigestCache) -> TensorIndex:
        model = source(hub, cache, digests)
        return model.tensors(model.resolve(ignore_progress))

    def test_headers_are_read_without_the_weights(self, hub, cache, digests):
        """A header longer than the first look, and weights that are much larger than both."""
        tensors = {f"a.tensor.with.a.long.name.{number}": ("BF16", (64, 64)) for number in range(1000)}
        content = encode_header(tensors, {}) + bytes(8192 * 1000)
        hub.push(REPO, FILES | {"model.safetensors": content})
        index = self.read(hub, cache, digests)
        assert len(index.tensors) == 1000
        assert sum(info.nbytes for info in index.tensors.values()) == 8192 * 1000
        assert hub.bytes_sent["model.safetensors"] < 200_000
        assert not list(cache.rglob("model.safetensors"))

    def test_a_server_that_ignores_ranges_is_read_as_far_as_needed(self, hub, cache, digests):
        hub.push(REPO, FILES | {"model.safetensors": safetensors({"t": ("BF16", (2, 2))})})
        hub.faults["model.safetensors"] = "no-ranges"
        assert list(self.read(hub, cache, digests).tensors) == ["t"]

    def test_shards_are_joined_as_the_index_says(self, hub, cache, digests):
        files = FILES | sharded()
        del files["model.safetensors"]
        hub.push(REPO, files)
        tensors = self.read(hub, cache, digests).tensors
        assert {name: info.file.name for name, info in tensors.items()} == {"t1": SHARDS[0], "t2": SHARDS[1]}

    def test_an_index_that_names_the_wrong_shard_is_refused(self, hub, cache, digests):
        files = (
            FILES | sharded() | {"model.safetensors.index.json": b'{"weight_map": {"t9": "%s"}}' % SHARDS[0].encode()}
        )
        del files["model.safetensors"]
        hub.push(REPO, files)
        refused("INDEX_MISMATCH", self.read, hub, cache, digests)

    @pytest.mark.parametrize(
        ("content", "code"),
        [
            ((1 << 63).to_bytes(8, "little") + b"{}", "SAFETENSORS_HEADER"),
            ((1000).to_bytes(8, "little") + b"{}", "SAFETENSORS_HEADER"),
            ((2).to_bytes(8, "little") + b"[]", "SAFETENSORS_HEADER"),
            (LFS_POINTER, "LFS_POINTER"),
            (b"abc", "SAFETENSORS_HEADER"),
        ],
    )
    def test_damaged_headers_are_refused_without_a_download(self, hub, cache, digests, content, code):
        hub.push(REPO, FILES | {"model.safetensors": content})
        refused(code, self.read, hub, cache, digests)

    @pytest.mark.parametrize("other", [b"short", WEIGHTS[::-1]])
    def test_weights_that_are_replaced_under_the_same_name_are_refused(self, hub, cache, digests, other):
        hub.push(REPO, FILES | {"model.safetensors": safetensors({"t": ("BF16", (2, 2))})})
        model = source(hub, cache, digests)
        snapshot = model.resolve(ignore_progress)
        hub.replace(REPO, "model.safetensors", other)
        refused("MOVED", model.tensors, snapshot)

    def test_the_token_stays_with_the_hub(self, hub, cache, digests, monkeypatch):
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        hub.push(REPO, FILES | {"model.safetensors": safetensors({"t": ("BF16", (2, 2))})}, token="hf_secret")
        self.read(hub, cache, digests)
        assert any("/resolve/" in path for path in hub.authorized)
        assert not any(path.startswith("/cdn/") for path in hub.authorized)


class TestMaterialise:
    @pytest.fixture
    def snapshot(self, hub: HubServer, cache: Path, digests: DigestCache) -> Snapshot:
        hub.push(REPO, FILES)
        return source(hub, cache, digests).resolve(ignore_progress)

    def test_gives_a_folder_with_every_pinned_file_and_nothing_that_could_run(self, hub, cache, digests, snapshot):
        folder = source(hub, cache, digests).materialise(snapshot, ignore_progress)
        found = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        assert found == PINNED
        assert all((folder / path).read_bytes() == FILES[path] for path in PINNED)

    def test_reports_exactly_the_bytes_of_the_snapshot_whether_downloaded_or_cached(
        self, hub, cache, digests, snapshot
    ):
        for _ in range(2):
            told: list[int] = []
            source(hub, cache, digests).materialise(snapshot, told.append)
            assert sum(told) == snapshot.size

    def test_a_warm_cache_asks_nobody(self, hub, cache, digests, snapshot):
        source(hub, cache, digests).materialise(snapshot, ignore_progress)
        hub.requests.clear()
        source(hub, cache, digests).materialise(snapshot, ignore_progress)
        assert hub.requests == []

    def test_a_cold_cache_without_network_is_one_clear_message(self, cache, digests, tmp_path):
        with running_hub() as server:
            server.push(REPO, FILES)
            snapshot = source(server, cache, digests).resolve(ignore_progress)
        refused("NO_NETWORK", source(server, tmp_path / "cold", digests).materialise, snapshot, ignore_progress)

    @pytest.mark.parametrize(("warm", "expected"), [(True, "ok"), (False, "OFFLINE")])
    def test_hf_hub_offline_is_honoured(self, hub, cache, digests, snapshot, warm, expected):
        if warm:
            source(hub, cache, digests).materialise(snapshot, ignore_progress)
        program = """if True:
            import json, sys
            from pathlib import Path
            from builder.errors import SourceError
            from builder.model.snapshot import Snapshot
            from builder.model.sources import open_source
            from builder.store import DigestCache
            snapshot = Snapshot.from_json(json.load(sys.stdin))
            here = Path(sys.argv[1])
            source = open_source(snapshot.source, None, base=here, cache=here, digests=DigestCache(here / "d.sqlite"))
            try:
                source.materialise(snapshot, lambda count: None)
                print("ok")
            except SourceError as error:
                print(error.code)
        """
        environment = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(cache), "HF_ENDPOINT": hub.endpoint}
        hub.requests.clear()
        result = subprocess.run(
            [sys.executable, "-c", program, str(cache)],
            input=json.dumps(snapshot.to_json()),
            env=environment,
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        )
        assert result.stdout.strip() == expected
        assert hub.requests == []

    def test_wrong_bytes_of_the_right_length_are_drift_and_both_digests_are_told(self, hub, cache, digests, snapshot):
        hub.faults["model.safetensors"] = "other-bytes"
        error = refused("DRIFT", source(hub, cache, digests).materialise, snapshot, ignore_progress)
        assert "model.safetensors" in error.why
        assert hashlib.sha256(WEIGHTS).hexdigest() in error.why
        assert "sha256" in error.why

    def test_after_wrong_bytes_the_next_run_fetches_the_file_again(self, hub, cache, digests, snapshot):
        hub.faults["model.safetensors"] = "other-bytes"
        refused("DRIFT", source(hub, cache, digests).materialise, snapshot, ignore_progress)
        hub.faults.clear()
        folder = source(hub, cache, digests).materialise(snapshot, ignore_progress)
        assert (folder / "model.safetensors").read_bytes() == WEIGHTS

    @pytest.mark.parametrize("damage", [b"\0" * len(WEIGHTS), WEIGHTS[:100], LFS_POINTER], ids=["bytes", "cut", "lfs"])
    def test_a_file_that_was_damaged_in_the_cache_heals(self, hub, cache, digests, snapshot, damage):
        folder = source(hub, cache, digests).materialise(snapshot, ignore_progress)
        (folder / "model.safetensors").resolve().write_bytes(damage)
        source(hub, cache, digests).materialise(snapshot, ignore_progress)
        assert (folder / "model.safetensors").read_bytes() == WEIGHTS

    def test_a_repository_that_serves_lfs_pointers_is_refused(self, hub, cache, digests):
        hub.push(REPO, FILES | {"tokenizer.json": LFS_POINTER})
        error = refused("LFS_POINTER", source(hub, cache, digests).resolve, ignore_progress)
        assert "4976698672" in error.why

    def test_a_download_that_is_cut_off_continues(self, hub, cache, digests, snapshot):
        hub.faults["model.safetensors"] = "cut-once"
        folder = source(hub, cache, digests).materialise(snapshot, ignore_progress)
        assert hub.cuts > 1
        assert (folder / "model.safetensors").read_bytes() == WEIGHTS

    def test_a_download_that_stays_cut_off_leaves_nothing_under_the_files_name(self, hub, cache, digests, snapshot):
        hub.faults["model.safetensors"] = "cut-always"
        refused("HUB_FAILED", source(hub, cache, digests).materialise, snapshot, ignore_progress)
        assert list(cache.rglob("model.safetensors")) == []
        hub.faults.clear()
        folder = source(hub, cache, digests).materialise(snapshot, ignore_progress)
        assert (folder / "model.safetensors").read_bytes() == WEIGHTS

    def test_an_interruption_stops_every_download_and_the_next_run_continues(self, hub, cache, digests, snapshot):
        def interrupt(count: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            source(hub, cache, digests).materialise(snapshot, interrupt)
        folder = source(hub, cache, digests).materialise(snapshot, ignore_progress)
        assert (folder / "model.safetensors").read_bytes() == WEIGHTS
        assert list(cache.rglob("*.incomplete")) == []

    def test_a_lock_that_names_a_branch_instead_of_a_commit_is_refused(self, hub, cache, digests, snapshot):
        branch = replace(snapshot, revision="main")
        refused("BAD_SNAPSHOT", source(hub, cache, digests).materialise, branch, ignore_progress)

    def test_a_commit_that_is_gone_asks_for_a_new_lock(self, hub, cache, digests, snapshot, tmp_path):
        hub.push(REPO, FILES | {"README.md": b"rewritten"})
        hub.forget(REPO, snapshot.revision)
        cold = source(hub, tmp_path / "cold", digests)
        error = refused("REVISION_NOT_FOUND", cold.materialise, snapshot, ignore_progress)
        assert "lock --upgrade" in error.hint

    @pytest.mark.filterwarnings("ignore:Not enough free disk space")
    def test_a_full_disk_is_told_and_the_next_run_continues(self, hub, small_disk, digests, tmp_path):
        files = FILES | {"model.safetensors": WEIGHTS * 200}
        hub.push(REPO, files)
        snapshot = source(hub, tmp_path / "elsewhere", digests).resolve(ignore_progress)
        with pytest.raises(HostError) as caught:
            source(hub, small_disk, digests).materialise(snapshot, ignore_progress)
        assert caught.value.code == "DISK_FULL"
        assert "HF_HOME" in caught.value.hint
        assert list(small_disk.rglob("model.safetensors")) == []

    @pytest.fixture
    def small_disk(self, tmp_path: Path) -> Iterator[Path]:
        """A file system of 1 MiB."""
        mount = tmp_path / "small"
        mount.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mount)], check=True)
        yield mount
        subprocess.run(["umount", str(mount)], check=True)


class TestToken:
    """The client's own look-up is used, so these run it in a process with that environment."""

    def resolve(self, hub: HubServer, tmp_path: Path, token: str) -> subprocess.CompletedProcess[str]:
        program = """if True:
            import logging, sys
            logging.basicConfig(level=logging.DEBUG)
            from pathlib import Path
            from builder.errors import SourceError
            from builder.model.sources import open_source
            from builder.store import DigestCache
            here = Path(sys.argv[1])
            source = open_source(sys.argv[2], None, base=here, cache=here, digests=DigestCache(here / "d.sqlite"))
            try:
                print(source.resolve(lambda count: None).revision)
            except SourceError as error:
                print(error.render())
        """
        environment = {"HF_TOKEN": token, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_ENDPOINT": hub.endpoint}
        return subprocess.run(
            [sys.executable, "-c", program, str(tmp_path), f"hf://{REPO}"],
            env=environment,
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        )

    def test_the_token_of_the_environment_opens_a_private_repository_and_is_never_shown(self, hub, tmp_path):
        commit = hub.push(REPO, FILES, token="hf_secret")
        result = self.resolve(hub, tmp_path, "hf_secret")
        assert result.stdout.strip() == commit
        assert "hf_secret" not in result.stdout + result.stderr

    def test_an_expired_token_is_told_apart_from_a_missing_repository(self, hub, tmp_path):
        hub.push(REPO, FILES)
        result = self.resolve(hub, tmp_path, "hf_expired")
        assert "error[UNAUTHORIZED]" in result.stdout
        assert "HF_TOKEN" in result.stdout
        assert "hf_expired" not in result.stdout + result.stderr

    def test_a_token_without_access_to_a_gated_repository_is_told_apart_from_none(self, hub, tmp_path):
        commit = hub.push(REPO, FILES, gated=True)
        stranger = self.resolve(hub, tmp_path, "hf_stranger")
        assert "error[GATED]" in stranger.stdout
        assert f"{hub.endpoint}/{REPO}" in stranger.stdout
        assert "HF_TOKEN hasn't been given access" in stranger.stdout
        assert self.resolve(hub, tmp_path, "hf_member").stdout.strip() == commit
