"""What ModelOpt exports, made once per session by one child process in each of two environments.

The first is that of the tests, with the ModelOpt of the `dev` extra. From transformers 5 on a mixture of experts is one
module that ModelOpt doesn't export to TensorRT-LLM: for these models there is a second environment, made by uv and kept
in the tests' cache.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pytest
import uv

from tests.integration.oracle.comparison import Checkpoint
from tests.integration.oracle.models import MODELS, SMOLLM2, Model
from tests.integration.smollm2 import SmolLM2

EXPORT = Path(__file__).with_name("export.py")

WITH_EXPERTS = ("nvidia-modelopt==0.37.0", "transformers==4.57.3", "torch==2.13.0")
"""A transformers whose experts are modules of their own, a ModelOpt of its time, and the torch of the tests."""

_UV = {"PIP_FIND_LINKS": "UV_FIND_LINKS", "PIP_INDEX_URL": "UV_DEFAULT_INDEX"}
"""What `make` hands on to uv too."""


@dataclass(frozen=True)
class Exports:
    """The models of one environment; each has a folder of its name in `folder`."""

    folder: Path
    errors: dict[str, str | None]

    def checkpoint(self, model: Model, tp: int = 1, pp: int = 1) -> Checkpoint:
        self.published(model)
        return Checkpoint.load(model.checkpoint(self.folder, tp, pp))

    def published(self, model: Model) -> Path:
        """The Hugging Face model that ours is converted from; fails if ModelOpt couldn't export it."""
        error = self.errors[model.name]
        assert error is None, error
        return model.published(self.folder)


@pytest.fixture
def exports(model: Model, request: pytest.FixtureRequest) -> Exports:
    """Those with the model that the test is for."""
    exports: Exports = request.getfixturevalue("older" if model.older else "newer")
    return exports


@pytest.fixture(scope="session")
def newer(tmp_path_factory: pytest.TempPathFactory, smollm2: SmolLM2) -> Iterator[Exports]:
    folder = tmp_path_factory.mktemp("modelopt")
    (folder / SMOLLM2.name).mkdir()
    (folder / SMOLLM2.name / "source").symlink_to(smollm2.folder)
    yield _exported(Path(sys.executable), folder, [model for model in MODELS if not model.older])
    shutil.rmtree(folder)  # pytest would keep those of the last sessions


@pytest.fixture(scope="session")
def older(tmp_path_factory: pytest.TempPathFactory, test_cache: Path) -> Iterator[Exports]:
    python = _environment(test_cache)
    folder = tmp_path_factory.mktemp("older-modelopt")
    yield _exported(python, folder, [model for model in MODELS if model.older])
    shutil.rmtree(folder)


def _exported(python: Path, folder: Path, models: Sequence[Model]) -> Exports:
    done = subprocess.run(
        [python, "-P", EXPORT],
        input=json.dumps([model.job(folder) for model in models]),
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return Exports(folder, {result["name"]: result["error"] for result in json.loads(done.stdout)})


def _environment(cache: Path) -> Path:
    """The second environment's Python. An environment that isn't whole, or of other versions, is made anew."""
    wanted = json.dumps([sys.version_info[:2], WITH_EXPERTS])
    folder = cache / f"modelopt-{sha256(wanted.encode()).hexdigest()[:16]}"
    python, whole = folder / "bin/python", folder / "whole"
    with open(cache / "modelopt.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not whole.exists():
            shutil.rmtree(folder, ignore_errors=True)
            _uv("venv", "--python", sys.executable, folder)
            _uv("pip", "install", "--python", python, *WITH_EXPERTS)
            whole.touch()
    return python


def _uv(*arguments: str | Path) -> None:
    environment = {uvs: os.environ[pips] for pips, uvs in _UV.items() if pips in os.environ} | os.environ
    done = subprocess.run([uv.find_uv_bin(), *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
