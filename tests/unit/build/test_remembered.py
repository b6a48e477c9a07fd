"""Plans are remembered until something that they were made from changes."""

import json
import os
import time
from pathlib import Path

import pytest

from builder.build import remembered
from builder.build.overview import UnitOverview, overview
from builder.errors import RecipeError
from builder.store import LocalStore
from tests.tiny_model import RECIPE, write_tiny_recipe


class Reporter:
    def stage(self, unit: str, stage: str, total_bytes: int | None) -> object:
        return lambda count: None

    def done(self, unit: str, stage: str, outcome: str) -> None:
        pass


class Plans:
    """A recipe with a base that it extends, and its plan; every plan that isn't remembered is counted."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import builder.build.preparation as preparation

        self.made = 0
        real = preparation.prepare_recipe

        def counted(*arguments: object) -> object:
            self.made += 1
            return real(*arguments)

        monkeypatch.setattr(preparation, "prepare_recipe", counted)
        self.store = LocalStore(folder / "store")
        self.recipe = write_tiny_recipe(folder, f"extends: _base.yaml\n{RECIPE}")
        self.base = folder / "_base.yaml"
        self.base.write_text("serving: {max_queue_size: 7}\n")
        self()  # locks it
        self.age()
        self()
        self.made = 0

    def __call__(self) -> list[UnitOverview]:
        return overview(self.recipe, self.store, False, Reporter())

    def age(self) -> None:
        """Make every file as old as files are when somebody plans the next time."""
        for file in self.recipe.parent.glob("*.*"):
            os.utime(file, (time.time() - 100, time.time() - 100))

    def change(self, file: Path, old: str, new: str) -> None:
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))
        self.age()


@pytest.fixture
def plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plans:
    return Plans(tmp_path, monkeypatch)


def test_an_unchanged_recipe_isnt_planned_again_and_says_the_same(plans: Plans) -> None:
    first, second = plans(), plans()
    assert plans.made == 0
    assert first == second
    assert first[0].id == "tiny/fp32-tp1/cpu"


def test_a_changed_recipe_is_planned_again(plans: Plans) -> None:
    before = plans()[0].stages["engine"].derivation
    plans.change(plans.recipe, "max_batch_size: 4", "max_batch_size: 5")
    assert plans()[0].stages["engine"].derivation != before
    assert plans.made == 1


def test_a_changed_base_is_planned_again(plans: Plans) -> None:
    before = plans()[0].stages["repository"].derivation
    plans.change(plans.base, "7", "8")
    assert plans()[0].stages["repository"].derivation != before


def test_a_changed_lock_is_planned_again(plans: Plans) -> None:
    lock = plans.recipe.with_suffix(".lock.json")
    digest = next(file["sha256"] for file in json.loads(lock.read_text())["model"]["files"] if "token" in file["path"])
    before = plans()[0].stages["repository"].derivation
    plans.change(lock, digest, "0" * 64)
    assert plans()[0].stages["repository"].derivation != before


def test_a_recipe_that_became_wrong_is_refused(plans: Plans) -> None:
    plans.change(plans.recipe, "max_batch_size: 4", "max_batch_size: four")
    with pytest.raises(RecipeError):
        plans()


def test_a_base_that_is_gone_is_missed(plans: Plans) -> None:
    plans.base.unlink()
    with pytest.raises(RecipeError, match="no file"):
        plans()


def test_another_engine_builder_plans_again(plans: Plans, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "program_digest", lambda: "another")
    plans()
    assert plans.made == 1


def test_what_is_in_the_store_is_looked_at_every_time(plans: Plans) -> None:
    (before,) = plans()
    assert before.to_do == ["checkpoint", "engine", "repository", "image"]
    derivation = before.stages["checkpoint"].derivation
    artifact = plans.store.root / "artifacts" / "checkpoint" / derivation
    artifact.mkdir(parents=True)
    manifest = {"stage": "checkpoint", "key": derivation, "digest": "d" * 64, "files": []}
    (artifact / "manifest.json").write_text(json.dumps(manifest))
    note = plans.store.root / "derivations" / "checkpoint" / derivation
    note.parent.mkdir(parents=True)
    note.write_text(derivation)
    assert plans()[0].to_do == ["engine", "repository", "image"]
    assert plans.made == 0


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"program": 1, "files": 2, "plan": 3}'])
def test_a_damaged_entry_is_as_good_as_none(plans: Plans, content: str) -> None:
    (entry,) = (plans.store.root / "plans").iterdir()
    entry.write_text(content)
    assert plans()[0].id == "tiny/fp32-tp1/cpu"
    assert plans.made == 1


def test_a_file_that_was_just_written_isnt_remembered(plans: Plans) -> None:
    plans.change(plans.recipe, "max_batch_size: 4", "max_batch_size: 5")
    os.utime(plans.recipe, (time.time() + 1, time.time() + 1))
    plans()
    plans()
    assert plans.made == 2


def test_findings_quote_the_path_as_it_was_given(plans: Plans, monkeypatch: pytest.MonkeyPatch) -> None:
    plans.change(plans.recipe, "max_seq_len: 128", "max_seq_len: 1024")
    monkeypatch.chdir(plans.recipe.parent)
    whole = plans()
    plans.recipe = Path("tiny.yaml")
    assert whole[0].findings[0]["where"].startswith("/")
    assert plans()[0].findings[0]["where"].startswith("tiny.yaml:")


def test_a_store_that_cant_be_written_remembers_nothing_and_plans_all_the_same(plans: Plans) -> None:
    folder = plans.store.root / "plans"
    for entry in folder.iterdir():
        entry.unlink()
    folder.rmdir()
    folder.write_text("in the way")
    assert plans()[0].id == "tiny/fp32-tp1/cpu"
    assert plans.made == 1
