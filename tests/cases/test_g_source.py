"""Reports of class G on sources that change.

https://github.com/noonghunna/club-3090/issues/319: a repository was quantised anew under the same name, and its old
commit is gone. https://github.com/ai-dynamo/modelexpress/issues/598: a branch moved during the download, and files of
two commits were mixed.
"""

import hashlib
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.command import engine_builder
from tests.integration.hub_server import HubServer, running_hub
from tests.tiny_model import RECIPE, write_tiny_model

REPO = "acme/tiny"
Files = dict[str, bytes]
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with running_hub() as server:
        yield server


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return read(write_tiny_model(tmp_path / "model"))


@pytest.fixture
def run(hub: HubServer, tmp_path: Path) -> Run:
    (tmp_path / "case.yaml").write_text(RECIPE.replace("./model", f"hf://{REPO}, revision: main"))

    def run(*arguments: str, home: str = "hf") -> subprocess.CompletedProcess[str]:
        env = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / home), "HF_TOKEN": ""}
        return engine_builder(*arguments, "--recipe", tmp_path / "case.yaml", store=tmp_path / f"store-{home}", env=env)

    return run


def read(folder: Path) -> Files:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def model_of(folder: Path) -> dict[str, Any]:
    model: dict[str, Any] = json.loads((folder / "case.lock.json").read_text())["model"]
    return model


def test_g08_a_branch_is_resolved_once_to_a_commit_whose_files_are_pinned(
    hub: HubServer, files: Files, run: Run, tmp_path: Path
) -> None:
    commit = hub.push(REPO, files)
    done = run("plan")
    assert done.returncode == 0, done.stderr
    model = model_of(tmp_path)
    assert model["revision"] == commit
    assert re.fullmatch(r"[0-9a-f]{40}", commit)
    assert {file["path"] for file in model["files"]} >= {"config.json", "model.safetensors", "tokenizer.json"}
    for file in model["files"]:
        assert file["size"] == len(files[file["path"]])
        assert file["sha256"] == hashlib.sha256(files[file["path"]]).hexdigest()


def test_g08_a_branch_that_moves_midway_leaves_all_files_of_one_commit(
    hub: HubServer, files: Files, run: Run, tmp_path: Path
) -> None:
    first = hub.push(REPO, files)
    other = read(write_tiny_model(tmp_path / "other", seed=1)) | {"tokenizer_config.json": b"{}"}
    hub.after_listing = lambda: hub.push(REPO, other)
    done = run("plan")
    assert done.returncode == 0, done.stderr
    model = model_of(tmp_path)
    assert model["revision"] == first
    assert {file["sha256"] for file in model["files"]} <= {hashlib.sha256(one).hexdigest() for one in files.values()}
    assert not [request for request in hub.requests if "/resolve/main/" in request]


def test_g08_a_later_plan_keeps_to_the_lock_though_the_branch_has_moved(
    hub: HubServer, files: Files, run: Run, tmp_path: Path
) -> None:
    first = hub.push(REPO, files)
    before = json.loads(run("plan", "--format", "json").stdout)["units"][0]["stages"]
    hub.push(REPO, read(write_tiny_model(tmp_path / "other", seed=1)))
    assert json.loads(run("plan", "--format", "json").stdout)["units"][0]["stages"] == before
    assert model_of(tmp_path)["revision"] == first


@pytest.mark.parametrize("gone", ["the commit", "the bytes"])
def test_g08_a_build_fails_when_what_is_pinned_is_gone(
    hub: HubServer, files: Files, run: Run, tmp_path: Path, gone: str
) -> None:
    commit = hub.push(REPO, files)
    assert run("lock").returncode == 0
    other = read(write_tiny_model(tmp_path / "other", seed=1))
    if gone == "the commit":
        hub.push(REPO, other)
        hub.forget(REPO, commit)
    else:
        hub.replace(REPO, "model.safetensors", other["model.safetensors"])
    failed = run("build", "--frozen", home="elsewhere")
    assert failed.returncode == 4
    assert ("error[REVISION_NOT_FOUND]" if gone == "the commit" else "error[DRIFT]") in failed.stderr
    assert model_of(tmp_path)["revision"] == commit


def test_g08_a_commit_may_be_named_itself(hub: HubServer, files: Files, run: Run, tmp_path: Path) -> None:
    first = hub.push(REPO, files)
    hub.push(REPO, files | {"README.md": b"rewritten"})
    recipe = tmp_path / "case.yaml"
    recipe.write_text(recipe.read_text().replace("revision: main", f"revision: {first}"))
    assert run("plan").returncode == 0
    assert model_of(tmp_path)["revision"] == first
