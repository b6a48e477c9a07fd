"""`extends`: files laid over each other."""

from pathlib import Path
from textwrap import dedent

import pytest

from builder.errors import RecipeError
from builder.recipe import Recipe, load_recipe
from builder.selection import find_recipes

BASE = dedent("""\
    schema: 1
    precision: {weights: bf16}
    limits: {max_batch_size: 4, max_seq_len: 128}
    toolchain: trtllm-1.2.1
    targets:
      - sku: cpu
      - sku: l40s-48gb
    """)

OVER = dedent("""\
    extends: _base.yaml
    name: tiny
    version: 1.0.0
    model: {source: ./model}
    limits: {max_seq_len: 256}
    """)


def write(folder: Path, **files: str) -> Path:
    """Write files NAME.yaml, `_` in front of the name for a part; the path of tiny.yaml."""
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder / "tiny.yaml"


def load(folder: Path, over: str = OVER, base: str = BASE, **files: str) -> Recipe:
    return load_recipe(write(folder, tiny=over, _base=base, **files))


def refused(folder: Path, over: str = OVER, base: str = BASE, **files: str) -> RecipeError:
    with pytest.raises(RecipeError) as error:
        load(folder, over, base, **files)
    return error.value


def test_mappings_are_merged(tmp_path: Path) -> None:
    limits = load(tmp_path).settings(0).limits
    assert (limits.max_batch_size, limits.max_seq_len) == (4, 256)


def test_each_value_keeps_the_place_where_it_was_written(tmp_path: Path) -> None:
    recipe = load(tmp_path)
    assert str(recipe.place("limits", "max_batch_size")) == f"{tmp_path}/_base.yaml:3:10"
    assert str(recipe.place("limits", "max_seq_len")) == f"{tmp_path}/tiny.yaml:5:10"


def test_lists_are_replaced_whole(tmp_path: Path) -> None:
    recipe = load(tmp_path, OVER + "targets: [{sku: a100-sxm-80gb}]\n")
    assert [target.sku for target in recipe.content.targets] == ["a100-sxm-80gb"]
    assert str(recipe.place("targets", 0, "sku")) == f"{tmp_path}/tiny.yaml:6:12"
    assert ("targets", 1) not in recipe.document.places


def test_later_files_win_over_earlier_ones_and_the_recipe_over_both(tmp_path: Path) -> None:
    over = OVER.replace("extends: _base.yaml", "extends: [_base.yaml, _more.yaml]").replace("max_seq_len: 256", "")
    recipe = load(tmp_path, over, _more="limits: {max_batch_size: 9, max_seq_len: 99}\n")
    assert recipe.settings(0).limits.max_batch_size == 9
    assert recipe.settings(0).limits.max_seq_len == 99


def test_paths_are_relative_to_the_file_that_names_them(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "inner.yaml").write_text("limits: {max_num_tokens: 77}\n")
    (tmp_path / "parts" / "outer.yaml").write_text(f"extends: inner.yaml\n{BASE}")
    recipe = load(tmp_path, OVER.replace("_base.yaml", "parts/outer.yaml"))
    assert recipe.settings(0).limits.max_num_tokens == 77
    assert [file.name for file in recipe.files] == ["tiny.yaml", "outer.yaml", "inner.yaml"]


def test_an_error_names_the_file_that_it_is_in(tmp_path: Path) -> None:
    error = refused(tmp_path, base=BASE.replace("max_batch_size: 4", "max_batch_size: many"))
    assert error.where == f"{tmp_path}/_base.yaml:3:10"


def test_a_cycle_is_refused_with_its_way(tmp_path: Path) -> None:
    error = refused(tmp_path, base="extends: tiny.yaml\n" + BASE)
    assert error.code == "EXTENDS_CYCLE"
    assert error.why == "tiny.yaml → _base.yaml → tiny.yaml"


def test_a_file_that_extends_itself_is_a_cycle(tmp_path: Path) -> None:
    assert refused(tmp_path, OVER.replace("_base.yaml", "./tiny.yaml")).code == "EXTENDS_CYCLE"


def test_one_base_may_be_reached_on_two_ways(tmp_path: Path) -> None:
    over = OVER.replace("extends: _base.yaml", "extends: [_one.yaml, _two.yaml]")
    part = "extends: _base.yaml\n"
    assert load(tmp_path, over, _one=part, _two=part).content.name == "tiny"


def test_an_explosion_of_bases_is_refused(tmp_path: Path) -> None:
    parts = {f"_part{n}": f"extends: [_part{n + 1}.yaml, _part{n + 1}.yaml]\n" for n in range(30)}
    error = refused(tmp_path, OVER.replace("_base.yaml", "_part0.yaml"), **parts, _part30=BASE)
    assert error.code == "EXTENDS_DEPTH"


@pytest.mark.parametrize(
    ("name", "code"),
    [("absent.yaml", "EXTENDS_MISSING"), ("/etc/passwd", "EXTENDS_FILE"), ("../secret.txt", "EXTENDS_FILE")],
)
def test_what_cant_be_extended_is_named_at_its_place(tmp_path: Path, name: str, code: str) -> None:
    error = refused(tmp_path, OVER.replace("_base.yaml", name))
    assert error.code == code
    assert error.where is not None
    assert error.where.startswith(f"{tmp_path}/tiny.yaml:1:")


def test_parts_in_a_folder_of_recipes_arent_recipes(tmp_path: Path) -> None:
    write(tmp_path, tiny=OVER, _base=BASE)
    assert [file.name for file in find_recipes(tmp_path)] == ["tiny.yaml"]


def test_all_files_together_have_a_bounded_size(tmp_path: Path) -> None:
    many = "engine:\n" + "".join(f"  k{number}: 1\n" for number in range(20_000))
    error = refused(tmp_path, over=OVER.replace("_base.yaml", "[_base.yaml, _a.yaml, _b.yaml]"), _a=many, _b=many)
    assert (error.code, "with all that it extends" in error.message) == ("EXTENDS_SIZE", True)
