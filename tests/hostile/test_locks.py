"""Lock files of every damage: refused, or read as what they say; never a traceback, never a path out of the model."""

import copy
import json
from pathlib import Path

import pytest

from tests.hostile.conftest import Inside
from tests.hostile.endings import assert_refused, assert_whole, strict_json
from tests.hostile.locks import CHANGES, FILE_NAMES, PLACES, locked, mutations
from tests.hostile.runner import Runner


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return locked(tmp_path / "in")


def lock_of(recipe: Path) -> Path:
    return recipe.with_name("tiny.lock.json")


@pytest.mark.parametrize("name", CHANGES)
def test_a_damaged_lock_is_refused(
    recipe: Path, tmp_path: Path, store: Path, builder_process: Runner, name: str
) -> None:
    lock, before = lock_of(recipe), set(recipe.parent.rglob("*"))
    changed = CHANGES[name](lock.read_text())
    lock.write_bytes(changed if isinstance(changed, bytes) else changed.encode())
    content = lock.read_bytes()
    ended = builder_process("plan", "--recipe", recipe, "--store", store)
    assert assert_refused(ended, 4) == str(lock)
    assert lock.read_bytes() == content
    assert_whole(recipe.parent, before)


@pytest.mark.parametrize("name", PLACES)
def test_a_lock_that_is_no_file_is_refused(
    recipe: Path, tmp_path: Path, store: Path, builder_process: Runner, name: str
) -> None:
    lock = lock_of(recipe)
    lock.unlink()
    PLACES[name](lock)
    ended = builder_process("plan", "--recipe", recipe, "--store", store)
    assert assert_refused(ended, 4) == str(lock)


def test_any_value_in_any_field_of_a_lock_ends_well(recipe: Path, tmp_path: Path, store: Path, inside: Inside) -> None:
    lock, seen = lock_of(recipe), set()
    for path, what, document in mutations(json.loads(lock.read_text())):
        lock.write_text(json.dumps(document))
        code, out, err = inside("plan", "--recipe", recipe, "--store", store, "--frozen", "--format", "json")
        assert code in (0, 3, 4), (path, what, err)
        assert code == 4 or strict_json(out)["units"]
        seen.add(code)
    assert seen == {0, 3, 4}


@pytest.mark.parametrize("name", FILE_NAMES)
def test_a_pinned_file_never_leads_out_of_the_model(
    recipe: Path, tmp_path: Path, store: Path, inside: Inside, name: str
) -> None:
    lock = lock_of(recipe)
    good = json.loads(lock.read_text())
    for number in range(len(good["model"]["files"])):
        document = copy.deepcopy(good)
        document["model"]["files"][number]["path"] = name
        lock.write_text(json.dumps(document))
        code, _, err = inside("plan", "--recipe", recipe, "--store", store, "--frozen")
        assert code == 4
        assert err.startswith("error[PATH_ESCAPE]")
