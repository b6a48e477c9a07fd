"""`plan`, as people, programs and CI see it."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from builder.build import overview
from builder.cli.main import run
from tests.tiny_model import RECIPE, write_tiny_recipe

ROOT = Path(__file__).parents[3]

GPUS = """\
  - sku: h100-sxm-80gb
    precision: {weights: bf16}
  - sku: l40s-48gb
    precision: {weights: bf16}
    runner: {labels: [gpu-pool, ada]}
  - sku: t4-16gb
    precision: {weights: bf16}
"""


class Plan:
    """A folder of recipes, and its plan."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder / "recipes"
        self.folder.mkdir()
        self.recipe = write_tiny_recipe(self.folder, RECIPE + GPUS)
        self.store = folder / "store"
        self.capsys = capsys

    def __call__(self, *arguments: str, path: Path | None = None, code: int = 3) -> str:
        self.capsys.readouterr()
        done = run(["plan", "--recipe", str(path or self.recipe), "--store", str(self.store), *arguments])
        shown = self.capsys.readouterr()
        assert done == code, shown.err
        return shown.out

    def json(self, *arguments: str, path: Path | None = None, code: int = 3) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self("--format", "json", *arguments, path=path, code=code))
        return document


@pytest.fixture
def plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Plan:
    return Plan(tmp_path, capsys)


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.com"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, check=True)


def test_the_json_follows_its_schema(plan: Plan) -> None:
    schema = json.loads((ROOT / "docs" / "plan.schema.json").read_text())
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema).validate(plan.json())


def test_the_json_of_a_comparison_follows_its_schema(plan: Plan) -> None:
    schema = json.loads((ROOT / "docs" / "plan.schema.json").read_text())
    git(plan.folder, "init", "--quiet")
    git(plan.folder, "commit", "--quiet", "--allow-empty", "--message", "nothing yet")
    document = plan.json("--since", "HEAD")
    Draft202012Validator(schema).validate(document)
    assert len(document["since"]["added"]) == 4


def test_a_matrix_has_a_job_with_labels_for_each_unit_that_can_be_built(plan: Plan) -> None:
    shown = plan("--format", "github")
    assert shown.count("\n") == 1
    jobs = {job["sku"]: job for job in json.loads(shown)["include"]}
    assert set(jobs) == {"cpu", "h100-sxm-80gb", "l40s-48gb"}  # a T4 has no bf16: refused
    assert jobs["cpu"]["runner"] == ["self-hosted", "cpu"]
    assert jobs["h100-sxm-80gb"]["runner"] == ["self-hosted", "gpu", "h100-sxm-80gb"]
    assert jobs["l40s-48gb"]["runner"] == ["gpu-pool", "ada"]
    assert jobs["cpu"]["stages"] == ["checkpoint", "engine", "repository", "image"]


def test_since_lists_affected_units_only(plan: Plan) -> None:
    plan(path=plan.folder)
    git(plan.folder, "init", "--quiet")
    git(plan.folder, "add", ".")
    git(plan.folder, "commit", "--quiet", "--message", "first")
    assert plan("--since", "HEAD", path=plan.folder, code=0) == "no unit is affected\n"
    text = plan.recipe.read_text()
    plan.recipe.write_text(text.replace("runner: {labels", "limits: {max_batch_size: 2}\n    runner: {labels"))
    units = plan.json("--since", "HEAD", path=plan.folder, code=0)["units"]
    assert [unit["sku"] for unit in units] == ["l40s-48gb"]
    shown = plan("--since", "HEAD", code=0)
    assert "changed: tiny/bf16-tp1/l40s-48gb: engine, repository, image (limits.max_batch_size 4 → 2)" in shown


def test_a_finding_of_several_units_is_said_once(plan: Plan) -> None:
    shown = plan()
    assert shown.count("nvcr.io/nvidia/tensorrt-llm/release:1.2.1 isn't pinned") == 1
    assert shown.count("of 3 units") >= 1


def test_many_recipes_are_planned_as_one_is(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    plan()
    text, lock = plan.recipe.read_text(), plan.recipe.with_suffix(".lock.json").read_text()
    for number in range(5):
        (plan.folder / f"more-{number}.yaml").write_text(text.replace("name: tiny", f"name: more-{number}"))
        (plan.folder / f"more-{number}.lock.json").write_text(lock)
    alone = plan.json(path=plan.folder)
    monkeypatch.setattr(overview, "_PARALLEL_FROM", 2)
    monkeypatch.setattr(overview.os, "cpu_count", lambda: 2)
    assert plan.json(path=plan.folder) == alone
    assert len(alone["units"]) == 24


def test_an_error_in_one_of_many_recipes_is_told_whole(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    plan()
    broken = plan.folder / "broken.yaml"
    broken.write_text(plan.recipe.read_text().replace("max_batch_size: 4", "max_batch_size: none"))
    monkeypatch.setattr(overview, "_PARALLEL_FROM", 2)
    monkeypatch.setattr(overview.os, "cpu_count", lambda: 2)
    assert run(["plan", "--recipe", str(plan.folder), "--store", str(plan.store)]) == 2
    assert f"where: {broken}:7:10" in plan.capsys.readouterr().err


def test_two_recipes_with_one_name_are_refused(plan: Plan) -> None:
    plan()
    (plan.folder / "twin.yaml").write_text(plan.recipe.read_text())
    (plan.folder / "twin.lock.json").write_text(plan.recipe.with_suffix(".lock.json").read_text())
    assert run(["plan", "--recipe", str(plan.folder), "--store", str(plan.store)]) == 2
    assert "error[DUPLICATE_UNIT]" in plan.capsys.readouterr().err


def test_a_waived_finding_lets_the_unit_pass_and_stays_on_record(plan: Plan) -> None:
    text = RECIPE.replace("max_seq_len: 128", "max_seq_len: 1024")
    plan.recipe.write_text(text)
    (finding,) = plan.json()["units"][0]["findings"]
    assert (finding["code"], finding["severity"]) == ("SEQ_LEN_GT_MODEL", "refuse-waivable")
    plan.recipe.write_text(text + "waivers: [{code: SEQ_LEN_GT_MODEL, reason: measured in our evaluation}]\n")
    (unit,) = plan.json(code=0)["units"]
    assert unit["refused"] is False
    assert unit["findings"][0]["waived"] == "measured in our evaluation"


def test_a_hard_refusal_cant_be_waived(plan: Plan) -> None:
    plan.recipe.write_text(RECIPE + "parallelism: {tensor: 5}\nwaivers: [{code: TP_HEADS, reason: I insist}]\n")
    findings = {finding["code"]: finding for finding in plan.json()["units"][0]["findings"]}
    assert findings["TP_HEADS"]["waived"] is None
    assert "can't be waived" in findings["WAIVER_WITHOUT_EFFECT"]["message"]
