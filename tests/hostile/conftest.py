"""A warm process for all tests of this folder, and a good model to spoil."""

import contextlib
import io
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from builder.cli.main import run
from builder.errors import SourceError
from builder.lock import making
from tests.hostile.runner import Runner
from tests.tiny_model import write_tiny_model

NOBODY_TO_ASK = {"HF_HUB_OFFLINE": "1", "https_proxy": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"}
"""Nothing is looked up outside: who tries is refused at once."""


@pytest.fixture(scope="session")
def builder_process() -> Iterator[Runner]:
    runner = Runner(NOBODY_TO_ASK)
    yield runner
    runner.close()


@pytest.fixture(scope="session")
def good_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("good") / "model")


@pytest.fixture(autouse=True)
def _tidy(tmp_path: Path) -> Iterator[None]:
    """Some of the files are large: they don't stay until pytest removes them."""
    yield
    shutil.rmtree(tmp_path, ignore_errors=True)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all: nothing is ever built in it, and making its database takes longer than most refusals."""
    return tmp_path_factory.mktemp("store")


Inside = Callable[..., tuple[int, str, str]]


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch) -> Inside:
    """Runs a command in this process, which is quick: its exit code, stdout and stderr. Registries don't answer."""

    def nobody(uses: Mapping[str, object], _: Path) -> dict[str, SourceError]:
        return {name: SourceError("nobody answers", code="NO_NETWORK") for name in uses}

    monkeypatch.setattr(making, "pin_images", nobody)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def run_inside(*arguments: str | Path) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(list(map(str, arguments)))
        return code, out.getvalue(), err.getvalue()

    return run_inside
