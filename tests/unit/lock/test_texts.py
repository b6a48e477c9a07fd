"""Texts beside a recipe: pinned by file, and checked again when they are used."""

from pathlib import Path

import pytest

from builder.errors import SourceError
from builder.lock import Lock, names_needed
from builder.lock.making import make_lock
from builder.lock.texts import pinned_texts
from builder.recipe import Recipe, load_recipe
from builder.store import LocalStore, hash_file
from tests.tiny_model import RECIPE, write_tiny_recipe

CALIBRATION = "calibration: {dataset: 'file:texts'}\n"
QUALIFY = "qualify: {perplexity: {text: 'file:text.txt'}}\n"


def locked(folder: Path, store: LocalStore, more: str) -> tuple[Recipe, Lock]:
    recipe = load_recipe(write_tiny_recipe(folder, RECIPE + more))
    return recipe, make_lock(recipe, store)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_every_text_of_a_folder_is_pinned_and_nothing_else(tmp_path: Path, store: LocalStore) -> None:
    first = write(tmp_path / "texts/data/train.jsonl", '{"text": "a"}\n')
    write(tmp_path / "texts/b.csv", "text\nb\n")
    write(tmp_path / "texts/README.md", "about")
    write(tmp_path / "texts/.git/config.json", "{}")
    (tmp_path / "texts/link.jsonl").symlink_to("/etc/passwd")
    recipe, lock = locked(tmp_path, store, CALIBRATION)
    files = {file.path: file.sha256 for file in lock.calibration["file:texts"].files}
    assert files.keys() == {"b.csv", "data/train.jsonl"}
    assert files["data/train.jsonl"] == hash_file(first).sha256
    assert pinned_texts("file:texts", recipe, lock, store) == tmp_path / "texts"


def test_a_folder_without_texts_is_unresolved(tmp_path: Path, store: LocalStore) -> None:
    write(tmp_path / "texts/README.md", "about")
    _, lock = locked(tmp_path, store, CALIBRATION)
    assert "there are no texts" in str(lock.unresolved_reason("file:texts"))


def test_the_text_of_qualify_is_pinned_like_calibration_data(tmp_path: Path, store: LocalStore) -> None:
    write(tmp_path / "text.txt", "what users write")
    recipe, lock = locked(tmp_path, store, QUALIFY)
    assert "file:text.txt" in lock.calibration
    assert "file:text.txt" in names_needed(recipe, 0)
    assert pinned_texts("file:text.txt", recipe, lock, store) == tmp_path / "text.txt"


@pytest.mark.parametrize("change", ["other", "cut", "gone"])
def test_e14_a_text_that_is_no_longer_the_pinned_one_is_found(tmp_path: Path, store: LocalStore, change: str) -> None:
    """https://github.com/huggingface/huggingface_hub/issues/3643: right size, wrong content; and other ways."""
    text = write(tmp_path / "texts/a.txt", "as it was pinned")
    recipe, lock = locked(tmp_path, store, CALIBRATION)
    if change == "gone":
        text.unlink()
    else:
        text.write_text({"other": "as it was PINNED", "cut": "as it was"}[change])
    with pytest.raises(SourceError) as caught:
        pinned_texts("file:texts", recipe, lock, store)
    assert caught.value.code == "DRIFT"
    assert str(caught.value.where) == str(text)


def test_a_text_that_the_lock_does_not_hold_is_asked_for(tmp_path: Path, store: LocalStore) -> None:
    recipe, lock = locked(tmp_path, store, "")
    with pytest.raises(SourceError) as caught:
        pinned_texts("file:text.txt", recipe, lock, store)
    assert caught.value.code == "UNRESOLVED"
