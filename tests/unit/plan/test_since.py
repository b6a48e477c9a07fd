"""Plans compared with what a git revision held."""

import subprocess
from pathlib import Path

import pytest

from builder.errors import UsageError
from builder.plan import PlannedUnit
from builder.plan.since import Comparison, checked_out, compare
from tests.unit.plan.plans import RECIPE, MakePlan


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.com"]
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one committed recipe."""
    folder = tmp_path / "project"
    (folder / "recipes").mkdir(parents=True)
    (folder / "recipes" / "tiny.yaml").write_text("name: then\n")
    (folder / "notes.txt").write_text("not a recipe\n")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "first")
    return folder


def test_recipes_come_as_they_were(repository: Path) -> None:
    recipe = repository / "recipes" / "tiny.yaml"
    recipe.write_text("name: now\n")
    with checked_out(repository / "recipes", "HEAD") as past:
        assert (past / "tiny.yaml").read_text() == "name: then\n"
        assert sorted(path.name for path in past.parent.iterdir()) == ["recipes"]
    with checked_out(recipe, "HEAD") as past:
        assert past.read_text() == "name: then\n"
    assert recipe.read_text() == "name: now\n"
    assert not past.exists()


def test_a_recipe_that_didnt_exist_then_is_absent(repository: Path) -> None:
    (repository / "recipes" / "new.yaml").write_text("name: new\n")
    with checked_out(repository / "recipes" / "new.yaml", "HEAD") as past:
        assert not past.exists()


@pytest.mark.parametrize("revision", ["nowhere", "--output=stolen", "HEAD~9"])
def test_a_revision_that_git_doesnt_know_is_a_usage_error(repository: Path, revision: str) -> None:
    with pytest.raises(UsageError) as error, checked_out(repository, revision):
        pass
    assert error.value.code == "GIT"
    assert not list(repository.glob("stolen*"))


def test_a_folder_outside_any_repository_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error, checked_out(tmp_path, "HEAD"):
        pass
    assert error.value.code == "GIT"


def compared(before: list[PlannedUnit], now: list[PlannedUnit]) -> Comparison:
    return compare({item.unit.id: item.stages for item in before}, {item.unit.id: item.stages for item in now})


def test_equal_plans_affect_nothing(make_plan: MakePlan) -> None:
    comparison = compared(make_plan(), make_plan())
    assert (comparison.added, comparison.removed, comparison.changed) == ((), (), {})


def test_a_changed_limit_affects_engine_and_what_stands_on_it(make_plan: MakePlan) -> None:
    before = make_plan()
    after = make_plan(RECIPE.replace("max_batch_size: 4", "max_batch_size: 8"))
    changed = compared(before, after).changed["tiny/bf16-tp1/l40s-48gb"]
    assert set(changed) == {"engine", "repository", "image"}
    assert changed["engine"] == ("limits.max_batch_size 4 → 8",)
    assert changed["image"] == ()


def test_a_changed_comment_or_description_affects_nothing(make_plan: MakePlan) -> None:
    before = make_plan()
    assert compared(before, make_plan(f"# new\n{RECIPE}description: for chat\n")).affected == frozenset()


def test_targets_that_come_and_go_are_told(make_plan: MakePlan) -> None:
    before = make_plan()
    comparison = compared(before, make_plan(RECIPE.replace("sku: l40s-48gb", "sku: h100-sxm-80gb")))
    assert comparison.added == ("tiny/bf16-tp1/h100-sxm-80gb",)
    assert comparison.removed == ("tiny/bf16-tp1/l40s-48gb",)


def test_weights_that_changed_in_the_lock_are_named_by_file(make_plan: MakePlan) -> None:
    comparison = compared(make_plan(), make_plan(files={"model.safetensors": "9" * 64}))
    changed = comparison.changed["tiny/bf16-tp1/cpu"]
    assert changed["checkpoint"] == ("model.safetensors 222222222222 → 999999999999",)
    assert "repository" not in changed


def test_a_changed_readme_of_the_model_affects_nothing(make_plan: MakePlan) -> None:
    assert compared(make_plan(), make_plan(files={"README.md": "9" * 64})).affected == frozenset()


def test_a_changed_tokenizer_affects_repository_and_image_alone(make_plan: MakePlan) -> None:
    comparison = compared(make_plan(), make_plan(files={"tokenizer.json": "9" * 64}))
    assert set(comparison.changed["tiny/bf16-tp1/cpu"]) == {"repository", "image"}
