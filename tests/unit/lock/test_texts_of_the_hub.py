"""Data sets of the Hub as calibration texts: pinned by commit and digest, brought here, read."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import constants

from builder.checkpoint.calibration import read_texts
from builder.errors import SourceError
from builder.lock import Lock, load_lock
from builder.lock.drift import check_lock
from builder.lock.making import make_lock
from builder.lock.texts import pinned_texts
from builder.model.sources import hub_repository
from builder.recipe import Recipe, load_recipe
from builder.store import LocalStore, hash_file
from tests.integration.hub_server import HubServer, hub
from tests.tiny_model import RECIPE, write_tiny_recipe

__all__ = ["hub"]

REPO, NAME = "datasets/acme/texts", "hf://datasets/acme/texts"
TRAIN = b'{"text": "one"}\n{"text": "two"}\n'
FILES = {
    "README.md": b"about",
    "texts.py": b"raise SystemExit",
    "LICENSE.txt": b"as is",
    "dataset_infos.json": b"{}",
    "data/train-00000-of-00001.jsonl": TRAIN,
    "data/test-00000-of-00001.parquet": b"PAR1",
}


@pytest.fixture(autouse=True)
def as_the_hub(hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_repository, "constants", SimpleNamespace(ENDPOINT=hub.endpoint))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return load_recipe(write_tiny_recipe(tmp_path, f"{RECIPE}calibration: {{dataset: '{NAME}'}}\n"))


def pinned(recipe: Recipe, store: LocalStore) -> Lock:
    make_lock(recipe, store).write(recipe.lock_file)
    lock = load_lock(recipe.lock_file)
    assert lock is not None
    return lock


def test_they_are_pinned_by_commit_and_the_split_train_is_brought_and_read(
    hub: HubServer, recipe: Recipe, store: LocalStore
) -> None:
    commit = hub.push(REPO, FILES)
    lock = pinned(recipe, store)
    snapshot = lock.calibration[NAME]
    assert (snapshot.source, snapshot.revision) == (NAME, commit)
    assert {"data/train-00000-of-00001.jsonl", "data/test-00000-of-00001.parquet"} < {f.path for f in snapshot.files}
    assert not {"README.md", "texts.py", "LICENSE.txt"} & {f.path for f in snapshot.files}
    hub.push(REPO, {"train.jsonl": b'{"text": "of a later commit"}\n'})
    folder = pinned_texts(NAME, recipe, lock, store)
    assert read_texts(folder, samples=2, seed=1) == ["one", "two"]
    assert hub.downloads("test-00000-of-00001.parquet") == 0
    (file,) = (file for file in snapshot.files if "train" in file.path)
    assert file.sha256 == hash_file(folder / file.path).sha256


def test_once_here_nobody_is_asked_again(hub: HubServer, recipe: Recipe, store: LocalStore) -> None:
    hub.push(REPO, FILES)
    lock = pinned(recipe, store)
    folder = pinned_texts(NAME, recipe, lock, store)
    hub.requests.clear()
    assert pinned_texts(NAME, recipe, lock, store) == folder
    assert hub.requests == []


def test_a_revision_is_taken_as_it_is_named(hub: HubServer, tmp_path: Path, store: LocalStore) -> None:
    commit = hub.push(REPO, FILES)
    hub.push(REPO, {"train.txt": b"later"})
    name = f"{NAME}@{commit}"
    recipe = load_recipe(write_tiny_recipe(tmp_path, f"{RECIPE}calibration: {{dataset: '{name}'}}\n"))
    lock = pinned(recipe, store)
    assert lock.calibration[name].revision == commit
    assert read_texts(pinned_texts(name, recipe, lock, store), samples=2, seed=1) == ["one", "two"]


def test_where_they_cannot_be_reached_the_lock_says_why(hub: HubServer, recipe: Recipe, store: LocalStore) -> None:
    hub.push(REPO, FILES, gated=True)
    lock = pinned(recipe, store)
    assert f"{hub.endpoint}/{REPO}" in str(lock.unresolved_reason(NAME))
    with pytest.raises(SourceError) as caught:
        pinned_texts(NAME, recipe, lock, store)
    assert caught.value.code == "UNRESOLVED"


def test_a_data_set_without_texts_is_refused_when_it_is_pinned(
    hub: HubServer, recipe: Recipe, store: LocalStore
) -> None:
    hub.push(REPO, {"README.md": b"about", "data.arrow": b"ARROW1", "dataset_infos.json": b"{}"})
    with pytest.raises(SourceError, match="there are no texts in hf://datasets/acme/texts") as caught:
        make_lock(recipe, store)
    assert caught.value.code == "DATA_MISSING"
    assert ".parquet" in str(caught.value.why)


def test_a_later_commit_with_other_texts_is_drift(hub: HubServer, recipe: Recipe, store: LocalStore) -> None:
    hub.push(REPO, FILES)
    pinned(recipe, store)
    hub.push(REPO, FILES | {"README.md": b"told better"})
    assert check_lock(recipe, store).changes == ()
    hub.push(REPO, FILES | {"data/train-00000-of-00001.jsonl": TRAIN.replace(b"one", b"ONE")})
    (change,) = check_lock(recipe, store).changes
    assert str(change) == f"calibration: {NAME} data/train-00000-of-00001.jsonl changed"


@pytest.mark.parametrize("change", [lambda content: content.replace(b"one", b"ONE"), lambda content: content[:-9]])
def test_e14_texts_that_were_damaged_in_the_cache_are_fetched_anew(
    hub: HubServer, recipe: Recipe, store: LocalStore, change: object
) -> None:
    assert callable(change)
    hub.push(REPO, FILES)
    lock = pinned(recipe, store)
    file = pinned_texts(NAME, recipe, lock, store) / "data/train-00000-of-00001.jsonl"
    file.write_bytes(change(TRAIN))
    folder = pinned_texts(NAME, recipe, lock, store)
    assert read_texts(folder, samples=2, seed=1) == ["one", "two"]


@pytest.mark.parametrize("size", ["same", "less"])
def test_e14_texts_that_the_hub_has_replaced_are_refused(
    hub: HubServer, recipe: Recipe, store: LocalStore, size: str
) -> None:
    """https://github.com/huggingface/huggingface_hub/issues/3643: it ends without an error, with other content."""
    hub.push(REPO, {"train.parquet": b"PAR1 as it was pinned"})
    lock = pinned(recipe, store)
    hub.replace(REPO, "train.parquet", b"PAR1 as it was PINNED" if size == "same" else b"PAR1")
    with pytest.raises(SourceError) as caught:
        pinned_texts(NAME, recipe, lock, store)
    assert caught.value.code == "DRIFT", caught.value.render()
    assert "train.parquet" in caught.value.render()


def test_a_text_that_someone_put_into_the_cache_is_drift(hub: HubServer, recipe: Recipe, store: LocalStore) -> None:
    hub.push(REPO, FILES)
    lock = pinned(recipe, store)
    new = pinned_texts(NAME, recipe, lock, store) / "data/train-00001.jsonl"
    new.write_text('{"text": "never pinned"}\n')
    with pytest.raises(SourceError) as caught:
        pinned_texts(NAME, recipe, lock, store)
    assert (caught.value.code, caught.value.where) == ("DRIFT", str(new))
    new.unlink()
    new.symlink_to("/etc/passwd")
    with pytest.raises(SourceError) as caught:
        pinned_texts(NAME, recipe, lock, store)
    assert caught.value.code == "PATH_ESCAPE"
