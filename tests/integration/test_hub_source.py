"""`hf://` through the real client against a Hub-shaped server: what is pinned, what is refused, what survives."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from builder.errors import HostError, SourceError
from builder.model.snapshot import Snapshot
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
PINNED = [
    "additional_chat_templates/tool_use.jinja",
    "chat_template.jinja",
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
]


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

    @pytest.mark.parametrize(("warm", "expected"), [(True, "ok"), (False, "NO_NETWORK")])
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
        assert "hf_expired" not in result.stdout + result.stderr
