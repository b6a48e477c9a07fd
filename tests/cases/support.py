"""A public report as a user meets it: a recipe file, a model's folder with a config.json, `engine-builder plan`."""

import contextlib
import io
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml

from builder.cli.main import run
from builder.lock.making import make_lock
from builder.plan import Unit, resolve_units
from builder.recipe import load_recipe
from builder.recipe.composition import merge
from builder.store import LocalStore

CONFIGS = Path(__file__).parents[1] / "configs"

OFFLINE = {"HTTPS_PROXY": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "NO_PROXY": "", "no_proxy": ""}
"""Images stay unresolved, on every machine that the tests run on: nobody listens there."""

RECIPE: dict[str, Any] = {
    "schema": 1,
    "name": "case",
    "version": "1.0.0",
    "model": {"source": "./model"},
    "toolchain": "trtllm-1.2.1",
    "precision": {"weights": "bf16"},
    "limits": {"max_batch_size": 8, "max_seq_len": 2048, "max_num_tokens": 8192},
    "targets": [{"sku": "h100-sxm-80gb"}],
}
"""What a case's recipe is laid over: mappings are merged, anything else is replaced."""

AS_PUBLISHED = {"weights": "as-published"}
PYTORCH = {"flow": "pytorch", "serving": {"family": "llmapi"}}
TEXTS = {"dataset": "file:texts.jsonl"}
"""Sections of recipes. The texts lie beside every case's recipe, for precisions that are measured on some."""

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
"""What config.json says of a quantised checkpoint."""


@dataclass(frozen=True)
class Found:
    """One finding as `plan --format json` prints it."""

    code: str
    severity: str
    message: str
    suggestion: str
    where: str
    values: Mapping[str, Any]
    waived: str | None

    @property
    def refuses(self) -> bool:
        return self.severity != "warn" and self.waived is None

    @property
    def words(self) -> str:
        """All that it tells a reader."""
        return f"{self.message}\n{self.suggestion}"


@dataclass(frozen=True)
class Planned:
    """What a plan of one unit says."""

    exit_code: int
    unit: Mapping[str, Any]
    findings: tuple[Found, ...]

    def __getitem__(self, code: str) -> Found:
        """The finding with this code; of several the first."""
        return next(finding for finding in self.findings if finding.code == code)

    @property
    def codes(self) -> set[str]:
        return {finding.code for finding in self.findings}

    @property
    def refusing(self) -> set[str]:
        """The codes of what refuses the unit."""
        return {finding.code for finding in self.findings if finding.refuses}

    @property
    def refused(self) -> bool:
        """Whether program and person are told that the unit can't work: exit code 3, and `refused` in the JSON."""
        assert (self.exit_code == 3) is self.unit["refused"] is bool(self.refusing)
        return bool(self.unit["refused"])


@dataclass(frozen=True)
class Failed:
    """An error that ended a command: its exit code, and what it printed."""

    exit_code: int
    code: str
    words: str


def config_of(name: str, **changes: Any) -> dict[str, Any]:
    """A published config.json, `ORG--NAME` as in tests/configs, with some keys replaced."""
    config: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text())
    return config | changes


def write_case(folder: Path, config: Mapping[str, Any] | str, **recipe: Any) -> Path:
    """A recipe in `folder`, its sections laid over `RECIPE`, and beside it the model's folder with its config.json.

    `sku` and other keys of a target come in `target`. Nothing of a model is there but its configuration. What a case
    in this folder had pinned before is forgotten.
    """
    model = folder / "model"
    model.mkdir(parents=True, exist_ok=True)
    (folder / "texts.jsonl").write_text('{"text": "a text to measure with"}\n')
    (folder / "case.lock.json").unlink(missing_ok=True)
    (model / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    target = {"sku": "h100-sxm-80gb"} | recipe.pop("target", {})
    content = merge(RECIPE, recipe) | {"targets": [target]}
    file = folder / "case.yaml"
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    return file


def command(*arguments: str | Path) -> tuple[int, str, str]:
    """Run one command of `engine-builder` in this process: exit code, stdout, stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), patch.dict(os.environ, OFFLINE):
        exit_code = run([str(argument) for argument in arguments])
    return exit_code, out.getvalue(), err.getvalue()


def run_plan(file: Path) -> Planned:
    """`engine-builder plan --format json` of a recipe with one unit, which is locked on the way."""
    exit_code, out, err = command("plan", "--recipe", file, "--store", file.parent / "store", "--format", "json")
    assert out, err
    (unit,) = json.loads(out)["units"]
    fields = Found.__dataclass_fields__
    findings = (Found(**{key: value for key, value in found.items() if key in fields}) for found in unit["findings"])
    return Planned(exit_code, unit, tuple(findings))


def plan(folder: Path, config: Mapping[str, Any] | str, **recipe: Any) -> Planned:
    """Write a case and plan it; see `write_case`."""
    return run_plan(write_case(folder, config, **recipe))


def explain(folder: Path, config: Mapping[str, Any] | str, **recipe: Any) -> dict[str, Any]:
    """What `engine-builder explain --format json` says of a case's unit; see `write_case`."""
    file = write_case(folder, config, **recipe)
    exit_code, out, err = command("explain", "*", "--recipe", file, "--store", folder / "store", "--format", "json")
    assert exit_code in (0, 3), err
    (unit,) = json.loads(out)["units"]
    explained: dict[str, Any] = unit
    return explained


def failure(folder: Path, config: Mapping[str, Any] | str, **recipe: Any) -> Failed:
    """The error that planning a case ends with; see `write_case`."""
    return failed(write_case(folder, config, **recipe))


def failed(file: Path) -> Failed:
    """The error that planning a recipe ends with."""
    exit_code, out, err = command("plan", "--recipe", file, "--store", file.parent / "store", "--format", "json")
    assert not out, out
    found = re.search(r"^error\[([A-Z0-9_]+)\]: (.*)", err, re.MULTILINE | re.DOTALL)
    assert found, err
    return Failed(exit_code, found[1], found[2])


def unit_of(folder: Path, config: Mapping[str, Any] | str, **recipe: Any) -> Unit:
    """The unit of a case, for public functions that take one; see `write_case`."""
    loaded = load_recipe(write_case(folder, config, **recipe))
    with patch.dict(os.environ, OFFLINE):
        return resolve_units(loaded, make_lock(loaded, LocalStore(folder / "store")))[0]
