"""`engine-builder lock` as a user runs it, against a Hub and a registry on localhost."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builder.oci.descriptor import CONFIG, INDEX, LAYER_TAR_GZIP, MANIFEST, Descriptor, sha256_digest
from builder.oci.http import HttpRepository
from builder.oci.manifest import Index, Manifest
from builder.oci.reference import Reference
from tests.command import engine_builder
from tests.integration.hub_server import HubServer
from tests.integration.services import Registry
from tests.tiny_model import RECIPE, write_tiny_model

REPO, ADAPTER, TEXTS = "acme/tiny", "acme/sql-adapter", "datasets/acme/texts"
HUB_RECIPE = RECIPE.replace("./model", f"hf://{REPO}, revision: main")
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, bytes]:
    """The tiny model, as a repository of the Hub holds it."""
    return {path.name: path.read_bytes() for path in write_tiny_model(tmp_path / "model").iterdir()}


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    file = tmp_path / "tiny.yaml"
    file.write_text(HUB_RECIPE)
    return file


@pytest.fixture
def run(hub: HubServer, recipe: Path, tmp_path: Path) -> Run:
    """Runs a command for the recipe with that Hub."""

    def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        env = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "hf"), "HF_TOKEN": "", **environment}
        return engine_builder(*command, "--recipe", recipe, store=tmp_path / "store", env=env)

    return run


def lock_of(recipe: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(recipe.with_suffix(".lock.json").read_text())
    return data


def done(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 0, result.stderr
    return result.stdout + result.stderr


def failed(result: subprocess.CompletedProcess[str], code: str) -> str:
    assert result.returncode == 4, result.stderr
    assert f"error[{code}]" in result.stderr, result.stderr
    return result.stderr


class TestPinning:
    def test_commit_files_tensors_tokenizer_and_template_are_pinned_without_the_weights(
        self, hub: HubServer, files: dict[str, bytes], run: Run, recipe: Path
    ) -> None:
        commit = hub.push(REPO, files)
        done(run("lock"))
        model = lock_of(recipe)["model"]
        assert model["revision"] == commit
        assert [file["path"] for file in model["files"]] == [
            "config.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
        ]
        assert (model["tensors"]["count"], model["tensors"]["embedding_rows"]) == (21, 260)
        assert model["tokenizer"]["max_token_id"] == 259
        assert model["chat_template"]["file"] == "tokenizer_config.json"
        assert hub.bytes_sent["model.safetensors"] < len(files["model.safetensors"])
        assert "up to date" in done(run("lock"))

    def test_a_token_is_used_and_written_nowhere(
        self, hub: HubServer, files: dict[str, bytes], run: Run, tmp_path: Path
    ) -> None:
        hub.push(REPO, files, token="hf_secret_canary")
        output = done(run("lock", HF_TOKEN="hf_secret_canary"))
        assert "hf_secret_canary" not in output
        written = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert not [path for path in written if b"hf_secret_canary" in path.read_bytes()]

    def test_adapters_and_texts_of_the_hub_are_pinned_and_can_be_missing(
        self, hub: HubServer, files: dict[str, bytes], run: Run, recipe: Path
    ) -> None:
        """What can't be reached is unresolved; once it can, it is pinned, and the model stays as it was pinned."""
        recipe.write_text(
            HUB_RECIPE
            + f"lora: {{adapters: [{{name: sql, source: 'hf://{ADAPTER}'}}]}}\n"
            + f"calibration: {{dataset: 'hf://{TEXTS}'}}\n"
        )
        commit = hub.push(REPO, files)
        adapter = {"adapter_config.json": b'{"r": 8}', "adapter_model.safetensors": (2).to_bytes(8, "little") + b"{}"}
        hub.push(ADAPTER, adapter, gated=True)
        hub.push(TEXTS, {"train.parquet": b"texts", "README.md": b""})
        hub.faults["acme/texts/revision/main"] = "status-500"
        done(run("lock"))
        unresolved = lock_of(recipe)["unresolved"]
        assert sorted(unresolved) == [f"hf://{ADAPTER}", f"hf://{TEXTS}"]
        assert f"{hub.endpoint}/{ADAPTER}" in unresolved[f"hf://{ADAPTER}"]
        hub.faults.clear()
        hub.push(REPO, files | {"README.md": b"new"})
        done(run("lock", HF_TOKEN="hf_member"))
        data = lock_of(recipe)
        assert data["unresolved"] == {}
        assert data["model"]["revision"] == commit
        assert data["models"][f"hf://{ADAPTER}"]["config"] == {"r": 8}
        assert [file["path"] for file in data["calibration"][f"hf://{TEXTS}"]["files"]] == ["train.parquet"]
        hub.push(TEXTS, {"train.parquet": b"other texts"})
        assert f"calibration: hf://{TEXTS} changed" in failed(run("lock", "--check", HF_TOKEN="hf_member"), "DRIFT")


class TestDrift:
    @pytest.mark.parametrize(
        ("path", "content", "class_", "words"),
        [
            ("config.json", None, "configuration", "configuration: config.json changed"),
            ("tokenizer.json", None, "tokenizer", "tokenizer or template: tokenizer.json changed"),
            ("chat_template.jinja", b"{{ x }}", "tokenizer", "tokenizer or template: chat_template.jinja added"),
            ("README.md", b"rewritten", "documentation", "documentation only: revision"),
            ("model.safetensors", None, "weights", "weights: model.safetensors changed"),
        ],
    )
    def test_each_class_is_told_and_an_upgrade_changes_nothing_else(
        self,
        hub: HubServer,
        files: dict[str, bytes],
        run: Run,
        recipe: Path,
        tmp_path: Path,
        path: str,
        content: bytes | None,
        class_: str,
        words: str,
    ) -> None:
        hub.push(REPO, files)
        done(run("lock"))
        assert "no drift" in done(run("lock", "--check"))
        before = lock_of(recipe)
        if path == "model.safetensors":
            content = (write_tiny_model(tmp_path / "new", seed=1) / path).read_bytes()
        hub.push(REPO, files | {path: content or files[path] + b"\n"})
        shown = failed(run("lock", "--check"), "DRIFT")
        assert words in shown
        report = run("lock", "--check", "--format", "json")
        assert report.returncode == 4
        (checked,) = json.loads(report.stdout)["locks"]
        assert [change["class"] for change in checked["drift"]] == [class_]
        assert lock_of(recipe) == before
        done(run("lock", "--upgrade"))
        done(run("lock", "--check"))
        after = lock_of(recipe)
        assert after["model"].pop("revision") != before["model"].pop("revision")
        kept = {file["path"]: file for file in before["model"].pop("files") if file["path"] != path}
        assert {file["path"]: file for file in after["model"].pop("files") if file["path"] != path} == kept
        if path == "chat_template.jinja":
            assert after["model"].pop("chat_template") != before["model"].pop("chat_template")
        assert after == before

    def test_a_file_replaced_under_the_same_name_and_commit_is_never_built(
        self, hub: HubServer, files: dict[str, bytes], run: Run, tmp_path: Path
    ) -> None:
        hub.push(REPO, files)
        done(run("lock"))
        hub.replace(
            REPO, "model.safetensors", (write_tiny_model(tmp_path / "new", seed=1) / "model.safetensors").read_bytes()
        )
        assert "model.safetensors" in failed(run("build", "--frozen"), "DRIFT")
        assert "weights: model.safetensors changed" in failed(run("lock", "--check"), "DRIFT")


class TestNetwork:
    def test_offline_what_is_pinned_stays_and_what_cannot_be_checked_is_told(
        self, hub: HubServer, files: dict[str, bytes], run: Run, recipe: Path
    ) -> None:
        hub.push(REPO, files)
        done(run("lock"))
        hub.requests.clear()
        assert "up to date" in done(run("lock", HF_HUB_OFFLINE="1"))
        shown = done(run("lock", "--check", HF_HUB_OFFLINE="1"))
        assert f"not checked: hf://{REPO}" in shown
        assert "HF_HUB_OFFLINE" in shown
        lock = recipe.with_suffix(".lock.json")
        lock.write_text(lock.read_text().replace('"rope_theta": 10000.0', '"rope_theta": 77777.0'))
        assert "config.json" in failed(run("lock", "--check", HF_HUB_OFFLINE="1"), "DRIFT")
        assert hub.requests == []

    def test_offline_a_build_takes_the_files_from_the_cache(
        self, hub: HubServer, files: dict[str, bytes], run: Run, tmp_path: Path
    ) -> None:
        hub.push(REPO, files)
        done(run("build"))
        hub.requests.clear()
        done(run("build", "--store", str(tmp_path / "another store"), HF_HUB_OFFLINE="1"))
        assert hub.requests == []

    def test_offline_a_model_that_was_never_pinned_is_an_error(self, run: Run, recipe: Path) -> None:
        assert "HF_HUB_OFFLINE" in failed(run("lock", HF_HUB_OFFLINE="1"), "OFFLINE")
        assert not recipe.with_suffix(".lock.json").exists()

    def test_a_revoked_token_is_told_with_the_variable_that_it_came_from(
        self, hub: HubServer, files: dict[str, bytes], run: Run
    ) -> None:
        hub.push(REPO, files)
        shown = failed(run("lock", HF_TOKEN="hf_expired"), "UNAUTHORIZED")
        assert "the variable HF_TOKEN" in shown
        assert "hf_expired" not in shown

    def test_a_gated_repository_names_the_page_where_its_licence_is_accepted(
        self, hub: HubServer, files: dict[str, bytes], run: Run
    ) -> None:
        hub.push(REPO, files, gated=True)
        assert f"accept the licence at {hub.endpoint}/{REPO}" in failed(run("lock"), "GATED")

    def test_a_rate_limit_is_waited_for_but_not_for_an_hour(
        self, hub: HubServer, files: dict[str, bytes], run: Run
    ) -> None:
        hub.push(REPO, files)
        hub.limits["/revision/main"] = [3600, 1]
        begun = time.monotonic()
        assert "3600 s" in failed(run("lock"), "RATE_LIMITED")
        assert time.monotonic() - begun < 20
        hub.limits["/revision/main"] = [1, 1]
        done(run("lock"))


def push_image(registry: Registry, name: str, *, python: str) -> str:
    """An index over an image for amd64 and one for arm64; its digest."""
    repository = HttpRepository(Reference.parse(registry.reference(name)))
    entries = []
    for architecture in ("amd64", "arm64"):
        settings = {"Env": [f"PYTHON_VERSION={python}"]}
        config = json.dumps({"os": "linux", "architecture": architecture, "config": settings}).encode()
        layer = f"layer for {architecture}".encode()
        for media_type, content in ((CONFIG, config), (LAYER_TAR_GZIP, layer)):
            repository.put_blob(Descriptor.of(media_type, content), lambda content=content: iter((content,)))
        manifest = Manifest(Descriptor.of(CONFIG, config), (Descriptor.of(LAYER_TAR_GZIP, layer),)).to_bytes()
        repository.put_manifest(manifest, MANIFEST, sha256_digest(manifest))
        platform = {"os": "linux", "architecture": architecture}
        entries.append(Descriptor.from_json({**Descriptor.of(MANIFEST, manifest).to_json(), "platform": platform}, ""))
    index = Index(tuple(entries)).to_bytes()
    repository.put_manifest(index, INDEX, "1")
    return sha256_digest(index)


class TestImages:
    def test_an_index_is_pinned_with_the_manifest_of_each_platform_and_its_drift_is_told(
        self,
        hub: HubServer,
        files: dict[str, bytes],
        run: Run,
        recipe: Path,
        docker_registry: Registry,
    ) -> None:
        hub.push(REPO, files)
        name = f"{docker_registry.host}/lock/base:1"
        digest = push_image(docker_registry, "lock/base", python="3.11.9")
        recipe.write_text(f"{HUB_RECIPE}package: {{base: '{name}'}}\n")
        done(run("lock"))
        pinned = lock_of(recipe)["images"][name]
        assert (pinned["index"], pinned["python"]) == (digest, "3.11")
        assert list(pinned["platforms"]) == ["linux/amd64", "linux/arm64"]
        for image in pinned["platforms"].values():
            assert image["digest"].startswith("sha256:")
            assert image["size"] > 0
        done(run("lock", "--check"))
        push_image(docker_registry, "lock/base", python="3.11.10")
        assert f"image: {name} changed" in failed(run("lock", "--check"), "DRIFT")
        done(run("lock", "--upgrade"))
        assert lock_of(recipe)["images"][name]["index"] != digest

    def test_a_registry_that_cannot_be_reached_is_quick_and_unresolved_with_a_stable_reason(
        self, hub: HubServer, files: dict[str, bytes], run: Run, recipe: Path
    ) -> None:
        hub.push(REPO, files)
        recipe.write_text(f"{HUB_RECIPE}package: {{base: '127.0.0.1:9/absent:1'}}\n")
        begun = time.monotonic()
        done(run("lock"))
        assert time.monotonic() - begun < 20
        before = recipe.with_suffix(".lock.json").read_bytes()
        assert "no connection" in json.loads(before)["unresolved"]["127.0.0.1:9/absent:1"]
        done(run("lock"))
        assert recipe.with_suffix(".lock.json").read_bytes() == before
        done(run("lock", "--check"))

    def test_an_image_that_was_pinned_and_cannot_be_asked_for_is_kept_by_an_upgrade_and_fails_a_check(
        self, hub: HubServer, files: dict[str, bytes], run: Run, recipe: Path
    ) -> None:
        hub.push(REPO, files)
        recipe.write_text(f"{HUB_RECIPE}package: {{base: '127.0.0.1:9/absent:1'}}\n")
        done(run("lock"))
        lock = recipe.with_suffix(".lock.json")
        data, digest = json.loads(lock.read_text()), f"sha256:{'a' * 64}"
        platforms = {"linux/amd64": {"digest": digest, "size": 1}}
        data["images"] = {"127.0.0.1:9/absent:1": {"index": None, "platforms": platforms, "python": "3.11"}}
        data["unresolved"] = {}
        lock.write_text(json.dumps(data, indent=2, sort_keys=True) + "\n")
        pinned = lock.read_bytes()
        assert "127.0.0.1:9/absent:1" in failed(run("lock", "--check"), "NOT_CHECKED")
        assert "kept as pinned" in done(run("lock", "--upgrade"))
        assert lock.read_bytes() == pinned


class TestWithoutWeights:
    def test_a_folder_with_a_configuration_alone_is_planned_and_not_built(self, run: Run, recipe: Path) -> None:
        model = write_tiny_model(recipe.parent / "model")
        (model / "model.safetensors").unlink()
        recipe.write_text(RECIPE)
        done(run("lock"))
        assert "weights" in lock_of(recipe)["unresolved"]
        done(run("plan"))
        assert "weights" in failed(run("build"), "UNRESOLVED")

    def test_a_damaged_lock_is_mended_by_an_upgrade_alone(self, run: Run, recipe: Path) -> None:
        write_tiny_model(recipe.parent / "model")
        recipe.write_text(RECIPE)
        recipe.with_suffix(".lock.json").write_text('{"schema": 1}')
        assert "lock --upgrade" in failed(run("lock"), "LOCK_OUTDATED")
        done(run("lock", "--upgrade"))
        assert lock_of(recipe)["schema"] == 2
