import json
from dataclasses import replace
from pathlib import Path

import pytest

from builder.errors import SourceError
from builder.lock import Lock, load_lock, make_lock
from builder.model.snapshot import SnapshotFile
from builder.recipe import load_recipe
from builder.store import LocalStore
from tests.tiny_model import RECIPE, write_tiny_recipe


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def lock(tmp_path: Path, store: LocalStore) -> Lock:
    return make_lock(load_recipe(write_tiny_recipe(tmp_path)), store)


def test_a_lock_reads_back_as_it_was_written(lock: Lock, tmp_path: Path) -> None:
    lock.write(tmp_path / "tiny.lock.json")
    assert load_lock(tmp_path / "tiny.lock.json") == lock


def test_the_file_is_sorted_and_has_one_fact_a_line(lock: Lock, tmp_path: Path) -> None:
    file = tmp_path / "tiny.lock.json"
    lock.write(file)
    assert file.read_text() == json.dumps(json.loads(file.read_text()), indent=2, sort_keys=True) + "\n"


def test_it_pins_the_files_that_builds_use_and_the_models_configuration(lock: Lock) -> None:
    pinned = [file.path for file in lock.snapshot.files]
    assert pinned == ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    assert lock.config["hidden_size"] == 48


def test_no_lock_is_none_and_a_damaged_one_an_error(lock: Lock, tmp_path: Path) -> None:
    file = tmp_path / "tiny.lock.json"
    assert load_lock(file) is None
    lock.write(file)
    for damaged in ("", "{", "[]", "{}", file.read_text().replace('"schema": 1', '"schema": 2')):
        file.write_text(damaged)
        with pytest.raises(SourceError) as error:
            load_lock(file)
        assert error.value.code == "LOCK_DAMAGED"


def test_a_lock_covers_the_recipe_until_it_asks_for_something_else(lock: Lock, tmp_path: Path) -> None:
    recipe = tmp_path / "tiny.yaml"
    assert lock.covers(load_recipe(recipe))
    recipe.write_text(RECIPE.replace("max_batch_size: 4", "max_batch_size: 5"))
    assert lock.covers(load_recipe(recipe))
    recipe.write_text(RECIPE + "package: {base: 'oci:base:py3.11'}\n")
    assert not lock.covers(load_recipe(recipe))
    recipe.write_text(RECIPE.replace("./model", "./other"))
    assert not lock.covers(load_recipe(recipe))


def test_a_new_base_is_pinned_without_looking_at_the_model_again(lock: Lock, tmp_path: Path, store: LocalStore) -> None:
    """Else any change of a recipe would accept whatever the model's source holds by then."""
    (tmp_path / "model" / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (tmp_path / "tiny.yaml").write_text(RECIPE + "package: {base: 'oci:absent:py3.11'}\n")
    now = make_lock(load_recipe(tmp_path / "tiny.yaml"), store, keep=lock)
    assert now.snapshot == lock.snapshot
    assert [item.name for item in now.unresolved] == ["oci:absent:py3.11"]


def test_an_edited_copy_of_the_configuration_is_drift(lock: Lock) -> None:
    edited = replace(lock, config=dict(lock.config) | {"rope_theta": 77777.0})
    assert edited.drift(lock) == ["config: the lock's copy was edited"]


def test_drift_names_the_class_of_each_file(lock: Lock) -> None:
    changed = {
        "config.json": "0" * 64,
        "tokenizer.json": "1" * 64,
    }
    files = tuple(
        replace(file, sha256=changed.get(file.path, file.sha256))
        for file in lock.snapshot.files
        if file.path != "tokenizer_config.json"
    )
    new = SnapshotFile("model-2.safetensors", 1, "2" * 64, "weights")
    now = replace(lock, snapshot=replace(lock.snapshot, files=(*files, new)))
    assert lock.drift(now) == [
        "config: config.json changed",
        "weights: model-2.safetensors added",
        "tokenizer: tokenizer.json changed",
        "tokenizer: tokenizer_config.json removed",
    ]
    assert lock.drift(lock) == []


def test_a_base_that_cannot_be_reached_is_recorded_with_the_reason(tmp_path: Path, store: LocalStore) -> None:
    recipe = write_tiny_recipe(tmp_path, RECIPE + "package: {base: 'oci:absent:py3.11'}\n")
    (unresolved,) = make_lock(load_recipe(recipe), store).unresolved
    assert unresolved.name == "oci:absent:py3.11"
    assert "absent" in unresolved.reason
