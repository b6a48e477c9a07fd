from pathlib import Path
from textwrap import dedent

import pytest

from builder.errors import RecipeError
from builder.recipe import Recipe, load_recipe
from builder.selection import find_recipes

GOOD = dedent("""\
    schema: 1
    name: tiny
    version: 1.0.0
    model: {source: ./model}
    toolchain: trtllm-1.2.1
    precision: {weights: bf16}
    limits: {max_batch_size: 4, max_seq_len: 128}
    targets:
      - sku: cpu
      - sku: l40s-48gb
        limits: {max_batch_size: 8}
    """)


def load(tmp_path: Path, text: str) -> Recipe:
    file = tmp_path / "tiny.yaml"
    file.write_text(text)
    return load_recipe(file)


def refused(tmp_path: Path, text: str) -> RecipeError:
    with pytest.raises(RecipeError) as error:
        load(tmp_path, text)
    assert error.value.exit_code == 2
    return error.value


def test_a_target_overrides_values_deeply_and_keeps_the_others(tmp_path: Path) -> None:
    recipe = load(tmp_path, GOOD)
    assert recipe.settings(0).limits.max_batch_size == 4
    assert recipe.settings(1).limits.max_batch_size == 8
    assert recipe.settings(1).limits.max_seq_len == 128


def test_a_value_knows_where_it_was_written(tmp_path: Path) -> None:
    recipe = load(tmp_path, GOOD)
    file = tmp_path / "tiny.yaml"
    assert str(recipe.place("limits", "max_batch_size", target=0)) == f"{file}:7:10"
    assert str(recipe.place("limits", "max_batch_size", target=1)) == f"{file}:11:14"
    assert str(recipe.place("limits", "max_seq_len", target=1)) == f"{file}:7:29"


def test_the_lock_lies_beside_the_recipe_whatever_dots_its_name_has(tmp_path: Path) -> None:
    file = tmp_path / "llama-3.1-8b.yaml"
    file.write_text(GOOD)
    assert load_recipe(file).lock_file == tmp_path / "llama-3.1-8b.lock.json"


@pytest.mark.parametrize(
    ("change", "place", "words"),
    [
        (("max_seq_len: 128", "max_seqlen: 128"), "7:29", ["max_seqlen", "max_seq_len"]),
        (("precision: {weights", "precison: {weights"), "6:1", ["precison", "precision"]),
        (("    limits: {max_batch_size: 8}", "    limit: {}"), "11:5", ["limit", "limits"]),
        (("    limits: {max_batch_size: 8}", "    limits: {max_batchsize: 8}"), "11:14", ["max_batch_size"]),
        (("source: ./model", "sorce: ./model"), "4:9", ["sorce", "source"]),
    ],
)
def test_an_unknown_key_is_named_with_place_and_nearest_key(
    tmp_path: Path, change: tuple[str, str], place: str, words: list[str]
) -> None:
    error = refused(tmp_path, GOOD.replace(*change))
    assert error.code == "UNKNOWN_KEY"
    assert error.where == f"{tmp_path / 'tiny.yaml'}:{place}"
    assert all(word in error.render() for word in words)


@pytest.mark.parametrize(
    ("change", "code", "hint"),
    [
        (("sku: cpu", "sku: l40s"), "UNKNOWN_SKU", "l40s-48gb"),
        (("trtllm-1.2.1", "trtllm-1.2.2"), "UNKNOWN_TOOLCHAIN", "trtllm-1.2.1"),
        (("bf16", "bf61"), "UNKNOWN_PRECISION", "bf16"),
    ],
)
def test_an_unknown_word_of_the_catalog_is_named_with_the_nearest(
    tmp_path: Path, change: tuple[str, str], code: str, hint: str
) -> None:
    error = refused(tmp_path, GOOD.replace(*change))
    assert error.code == code
    assert hint in (error.hint or "")
    assert str(error.where).startswith(f"{tmp_path / 'tiny.yaml'}:")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("version: 1.0.0", "version: 1.10"), "version"),
        (("max_batch_size: 4", "max_batch_size: 0"), "greater than or equal to 1"),
        (("max_batch_size: 4", "max_batch_size: -1"), "greater than or equal to 1"),
        (("max_batch_size: 4", "max_batch_size: '4'"), "valid integer"),
        (("max_batch_size: 4", "max_batch_size: true"), "valid integer"),
        (("max_batch_size: 4", "max_batch_size: 99999999999999999999"), "less than or equal"),
        (("max_seq_len: 128", "max_seq_len: .nan"), "that can be used"),
        (("name: tiny", "name: Tiny Model"), "pattern"),
        (("name: tiny", "name: ../tiny"), "pattern"),
        (("schema: 1", "schema: 2"), "schema"),
        (("schema: 1\n", ""), "'schema' is missing"),
        (("name: tiny", "name: tiny\nname: tiny"), "twice"),
        (("name: tiny", "name: 2026-11-30"), "quotes"),
        (("name: tiny", "name: [tiny"), "valid YAML"),
        (("name: tiny", "name: !!python/object:os.system tiny"), "valid YAML"),
        (("model: {source: ./model}", "model: &a {source: ./model, x: *a}"), "contains itself"),
        (("  - sku: cpu\n", "  - cpu\n"), "targets.0"),
    ],
)
def test_a_bad_value_is_refused_with_its_place(tmp_path: Path, change: tuple[str, str], words: str) -> None:
    error = refused(tmp_path, GOOD.replace(*change))
    assert words in error.render()
    assert str(tmp_path / "tiny.yaml") in (error.where or "")


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "mapping"),
        (b"- a\n", "mapping"),
        (b"\xff\xfe\x00", "UTF-8"),
        (b"a: " + b"[" * 5000, "YAML"),
        (b"x" * (2 << 20), "256 KiB"),
        (
            b"a: &a [1,1,1,1,1,1,1,1,1,1]\n"
            + b"".join(
                b"a%d: &a%d [%s]\n" % (i, i, b",".join([b"*a%d" % (i - 1) if i else b"*a"] * 9)) for i in range(9)
            ),
            "30000",
        ),
    ],
    ids=["empty", "list", "utf-16", "deep", "large", "alias-bomb"],
)
def test_a_hostile_file_ends_in_one_clear_error(tmp_path: Path, raw: bytes, words: str) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_bytes(raw)
    with pytest.raises(RecipeError) as error:
        load_recipe(file)
    assert words in error.value.render()


def test_a_missing_recipe_and_an_empty_folder_are_told(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no such recipe"):
        load_recipe(tmp_path / "absent.yaml")
    with pytest.raises(RecipeError, match="no recipe in this folder"):
        find_recipes(tmp_path)


def test_the_recipes_of_this_project_are_valid() -> None:
    folder = Path(__file__).parents[3] / "recipes"
    assert [load_recipe(file).content.name for file in find_recipes(folder)]
