"""Hostile recipes, each planned in a process of its own: a clear error, within bounds, and nothing half-written."""

import re
from pathlib import Path

import pytest

from tests.hostile.endings import assert_planned, assert_refused, assert_whole, strict_json
from tests.hostile.recipes import LAYOUTS, NO_BASE, PLACED, TEXTS, write, write_text
from tests.hostile.runner import Runner, cold

VALID = ("a second byte-order mark", "a name of dots", "a version that takes long to match")
"""They look strange, and nothing is wrong with them."""

WITHOUT_A_LINE = ("100 MB of YAML", "100 MB of one list", "one byte too many", "extends a name of 4000 letters")
"""What is wrong is the file as a whole."""

AS_A_USER = (
    "100 MB of YAML",
    "80,000 values",
    "aliases of aliases",
    "block lists, deeply",
    "a sexagesimal number of 200 kB",
    "1000 targets, the last is wrong",
)


def folder_of(tmp_path: Path, good_model: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "model").symlink_to(good_model)
    return folder


@pytest.mark.parametrize("name", [name for name in TEXTS if name not in VALID])
def test_a_hostile_recipe_is_refused_with_its_line(
    tmp_path: Path, store: Path, good_model: Path, builder_process: Runner, name: str
) -> None:
    folder = folder_of(tmp_path, good_model)
    recipe, before = write_text(folder, name), set(folder.rglob("*"))
    ended = builder_process("plan", "--recipe", recipe, "--store", store)
    place = assert_refused(ended, 2, 4)
    if ended.code == 2 and name not in WITHOUT_A_LINE:
        assert re.fullmatch(re.escape(str(recipe)) + r":\d+(:\d+)?", place)
    assert_whole(folder, before)


@pytest.mark.parametrize("name", VALID)
def test_a_strange_recipe_is_planned(
    tmp_path: Path, store: Path, good_model: Path, builder_process: Runner, name: str
) -> None:
    recipe = write_text(folder_of(tmp_path, good_model), name)
    assert_planned(
        builder_process("plan", "--recipe", recipe, "--store", store, "--format", "json"),
    )


@pytest.mark.parametrize("name", PLACED)
def test_a_recipe_that_is_no_file_of_ours_is_refused(
    tmp_path: Path, store: Path, good_model: Path, builder_process: Runner, name: str
) -> None:
    folder = folder_of(tmp_path, good_model)
    recipe = PLACED[name](folder)
    before = set(folder.rglob("*"))
    assert_refused(builder_process("plan", "--recipe", recipe, "--store", store), 2)
    assert_whole(folder, before)


@pytest.mark.parametrize("name", [*LAYOUTS, *NO_BASE])
def test_a_base_image_that_cannot_be_read_is_planned_as_unresolved(
    tmp_path: Path, store: Path, good_model: Path, builder_process: Runner, name: str
) -> None:
    folder = folder_of(tmp_path, good_model)
    recipe = LAYOUTS[name](folder) if name in LAYOUTS else write(folder, NO_BASE[name]())
    ended = builder_process("plan", "--recipe", recipe, "--store", store, "--format", "json")
    assert_planned(ended)
    findings = strict_json(ended.stdout)["units"][0]["findings"]
    assert any(finding["code"] == "UNRESOLVED" and "oci:" in finding["message"] for finding in findings)


@pytest.mark.parametrize("name", AS_A_USER)
def test_a_command_from_its_start_takes_no_more(tmp_path: Path, good_model: Path, name: str) -> None:
    recipe = write_text(folder_of(tmp_path, good_model), name)
    assert_refused(cold("validate", "--recipe", recipe), 2)


@pytest.mark.parametrize("command", ["lock", "explain", "validate"])
@pytest.mark.parametrize("name", ["aliases of aliases", "a key twice", "UTF-16 with its mark", "200,000 digits"])
def test_every_command_refuses_alike(
    tmp_path: Path, store: Path, builder_process: Runner, command: str, name: str
) -> None:
    recipe = write_text(tmp_path / "in", name)
    arguments = ["*"] if command == "explain" else []
    store = [] if command == "validate" else ["--store", store]
    assert_refused(builder_process(command, *arguments, "--recipe", recipe, *store), 2)
    assert list((tmp_path / "in").iterdir()) == [recipe]
