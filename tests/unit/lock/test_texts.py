"""Texts beside a recipe: pinned by file, and checked again when they are used."""

import os
from pathlib import Path

import pytest

from builder.errors import RecipeError, SourceError, UsageError
from builder.lock import Lock, local_files, names_needed
from builder.lock.drift import check_lock
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


def refused(code: str, folder: Path, store: LocalStore, more: str) -> SourceError:
    with pytest.raises(SourceError) as caught:
        locked(folder, store, more)
    assert caught.value.code == code, caught.value.render()
    return caught.value


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_every_text_of_a_folder_is_pinned_and_nothing_else(tmp_path: Path, store: LocalStore) -> None:
    first = write(tmp_path / "texts/data/train.jsonl", '{"text": "a"}\n')
    write(tmp_path / "texts/b.csv", "text\nb\n")
    write(tmp_path / "texts/README.md", "about")
    write(tmp_path / "texts/.git/config.json", "{}")
    write(tmp_path / "texts/LICENSE.txt", "as is")
    write(tmp_path / "texts/dataset_infos.json", "{}")
    write(tmp_path / "texts/raw/0a1b", '{"text": "linked"}\n')
    (tmp_path / "texts/data/test.jsonl").symlink_to("../raw/0a1b")
    recipe, lock = locked(tmp_path, store, CALIBRATION)
    files = {file.path: file.sha256 for file in lock.calibration["file:texts"].files}
    assert files.keys() == {"b.csv", "data/test.jsonl", "data/train.jsonl"}
    assert files["data/train.jsonl"] == hash_file(first).sha256
    assert pinned_texts("file:texts", recipe, lock, store) == tmp_path / "texts"


def test_a_folder_without_texts_is_unresolved(tmp_path: Path, store: LocalStore) -> None:
    write(tmp_path / "texts/README.md", "about")
    _, lock = locked(tmp_path, store, CALIBRATION)
    assert "there are no texts" in str(lock.unresolved_reason("file:texts"))


def test_a_link_that_leaves_the_folder_is_refused(tmp_path: Path, store: LocalStore) -> None:
    write(tmp_path / "secret.jsonl", "secret")
    write(tmp_path / "texts/a.jsonl", "a")
    (tmp_path / "texts/b.jsonl").symlink_to("../secret.jsonl")
    assert refused("PATH_ESCAPE", tmp_path, store, CALIBRATION).where == str(tmp_path / "texts/b.jsonl")


def test_a_pointer_in_place_of_a_text_is_refused(tmp_path: Path, store: LocalStore) -> None:
    """A clone without Git LFS: the pointer would be measured with, and nobody would know."""
    write(tmp_path / "texts/a.txt", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n")
    assert "git lfs pull" in str(refused("LFS_POINTER", tmp_path, store, CALIBRATION).hint)


def test_more_texts_than_a_lock_has_places_for_are_refused(
    tmp_path: Path, store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_files, "MOST_TEXTS", 2)
    for name in "abc":
        write(tmp_path / f"texts/{name}.txt", name)
    assert "there are 3 texts" in refused("TOO_MANY_FILES", tmp_path, store, CALIBRATION).message


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, store: LocalStore) -> None:
    (tmp_path / "texts").mkdir()
    os.mkfifo(tmp_path / "texts/a.txt")
    assert refused("UNREADABLE", tmp_path, store, CALIBRATION).where == str(tmp_path / "texts/a.txt")


def test_the_text_of_qualify_is_pinned_like_calibration_data(tmp_path: Path, store: LocalStore) -> None:
    write(tmp_path / "text.txt", "what users write")
    recipe, lock = locked(tmp_path, store, QUALIFY)
    assert "file:text.txt" in lock.calibration
    assert "file:text.txt" in names_needed(recipe, 0)
    assert pinned_texts("file:text.txt", recipe, lock, store) == tmp_path / "text.txt"


def test_the_text_of_qualify_is_one_file(tmp_path: Path, store: LocalStore) -> None:
    write(tmp_path / "text.txt/a.txt", "a folder")
    _, lock = locked(tmp_path, store, QUALIFY)
    assert lock.unresolved_reason("file:text.txt") == "there is no file text.txt"
    recipe = load_recipe(write_tiny_recipe(tmp_path, RECIPE + QUALIFY.replace("file:text.txt", "hf://datasets/a/b")))
    with pytest.raises(RecipeError, match="not a file: hf://datasets/a/b"):
        make_lock(recipe, store)


@pytest.mark.parametrize("dataset", ["cnn_dailymail", "hf://a/b", "hf://datasets/a", "./texts"])
def test_a_name_that_cannot_be_texts_is_told_before_anything_is_asked(
    tmp_path: Path, store: LocalStore, dataset: str
) -> None:
    recipe = load_recipe(write_tiny_recipe(tmp_path, f"{RECIPE}calibration: {{dataset: '{dataset}'}}\n"))
    (tmp_path / "model/config.json").unlink()
    with pytest.raises(UsageError) as caught:
        make_lock(recipe, store)
    assert "tiny.yaml" in str(caught.value.where)


@pytest.mark.parametrize("change", ["other", "cut", "gone", "new", "hidden"])
def test_e14_a_text_that_is_no_longer_the_pinned_one_is_found(tmp_path: Path, store: LocalStore, change: str) -> None:
    """https://github.com/huggingface/huggingface_hub/issues/3643: right size, wrong content; and other ways.

    A build finds them when it needs the texts, `lock --check` whenever it is asked.
    """
    text = write(tmp_path / "texts/a.txt", "as it was pinned")
    before = text.stat()
    recipe, lock = locked(tmp_path, store, CALIBRATION)
    lock.write(recipe.lock_file)
    assert check_lock(recipe, store).changes == ()
    expected = "changed"
    if change == "gone":
        text.rename(tmp_path / "texts/b.txt")
        expected = "removed"
    elif change == "new":
        text, expected = write(tmp_path / "texts/b.txt", "one more"), "added"
    else:
        text.write_text({"other": "as it was PINNED", "cut": "as it was", "hidden": "as it was PINNED"}[change])
    if change == "hidden":
        os.utime(text, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(SourceError) as caught:
        pinned_texts("file:texts", recipe, lock, store)
    assert caught.value.code == "DRIFT"
    assert caught.value.where == str(text)
    if change in ("other", "cut"):
        assert "sha256" in str(caught.value.why)
    if change != "hidden":  # as far as digests of files are remembered
        assert expected in [found.how for found in check_lock(recipe, store).changes]


def test_a_file_in_place_of_a_folder_is_drift_and_the_other_way_round(tmp_path: Path, store: LocalStore) -> None:
    folder = write(tmp_path / "texts/a.txt", "a").parent
    recipe, lock = locked(tmp_path, store, CALIBRATION)
    folder.rename(tmp_path / "before")
    write(tmp_path / "texts", "a")
    with pytest.raises(SourceError, match="isn't what the lock pins"):
        pinned_texts("file:texts", recipe, lock, store)
    lock = make_lock(recipe, store)
    (tmp_path / "texts").unlink()
    (tmp_path / "before").rename(folder)
    with pytest.raises(SourceError, match="isn't what the lock pins"):
        pinned_texts("file:texts", recipe, lock, store)


def test_texts_that_are_gone_altogether_are_told_as_such(tmp_path: Path, store: LocalStore) -> None:
    text = write(tmp_path / "texts/a.txt", "a")
    recipe, lock = locked(tmp_path, store, CALIBRATION)
    text.unlink()
    text.parent.rmdir()
    with pytest.raises(SourceError) as caught:
        pinned_texts("file:texts", recipe, lock, store)
    assert caught.value.code == "ABSENT"


def test_a_text_that_the_lock_does_not_hold_is_asked_for(tmp_path: Path, store: LocalStore) -> None:
    recipe, lock = locked(tmp_path, store, "")
    with pytest.raises(SourceError) as caught:
        pinned_texts("file:text.txt", recipe, lock, store)
    assert caught.value.code == "UNRESOLVED"
