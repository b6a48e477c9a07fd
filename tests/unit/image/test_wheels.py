"""What goes into the runtime layer, and what is said when its wheels can't be had. Nothing here needs a network."""

from __future__ import annotations

import os
import re
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from builder.errors import HostError, SourceError, UsageError
from builder.image import wheels

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins(python_version: str) -> dict[str, str]:
    text = (ROOT / f"builder/image/requirements-{python_version}.txt").read_text()
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, flags=re.MULTILINE))


def write_wheels(folder: Path, names: dict[str, str]) -> None:
    """Empty wheels of these names and versions, none of which is the pinned one."""
    for name, version in names.items():
        stem = f"{name.replace('-', '_')}-{version}"
        with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
            information = f"{stem}.dist-info"
            wheel.writestr(f"{information}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            wheel.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{information}/RECORD", "")


@pytest.fixture
def offline(tmp_path: Path) -> dict[str, str]:
    """An environment in which uv has neither a network nor a cache, and finds wheels in the folder `links`."""
    (tmp_path / "links").mkdir()
    return {
        **os.environ,
        "UV_OFFLINE": "1",
        "UV_CACHE_DIR": str(tmp_path / "cache"),
        "UV_FIND_LINKS": str(tmp_path / "links"),
    }


@pytest.mark.parametrize("python_version", wheels.PYTHON_VERSIONS)
@pytest.mark.parametrize(
    "declared",
    [
        requirement
        for requirement in map(Requirement, PROJECT["dependencies"] + PROJECT["optional-dependencies"]["serve"])
        if requirement.name in pins("3.11")
    ],
    ids=str,
)
def test_the_pins_are_what_the_project_file_allows(declared: Requirement, python_version: str) -> None:
    assert pins(python_version)[declared.name] in declared.specifier


@pytest.mark.parametrize("python_version", wheels.PYTHON_VERSIONS)
def test_everything_that_the_runtime_asks_for_is_pinned_and_nothing_excluded_is(python_version: str) -> None:
    def names(file: str) -> set[str]:
        lines = (ROOT / "builder/image" / file).read_text().splitlines()
        return {Requirement(line).name for line in lines if line and not line.startswith("#")}

    pinned = set(pins(python_version))
    assert names("requirements.in") <= pinned
    assert names("requirements-excluded.txt").isdisjoint(pinned)


def test_every_pin_has_a_hash() -> None:
    for python_version in wheels.PYTHON_VERSIONS:
        text = (ROOT / f"builder/image/requirements-{python_version}.txt").read_text()
        for block in re.split(r"^(?=[a-z])", text, flags=re.MULTILINE)[1:]:
            assert "--hash=sha256:" in block, block


def test_the_digest_covers_the_shipped_files_and_no_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in wheels.SHIPPED:
        path = tmp_path / part
        path = path if path.suffix else path / "file.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    monkeypatch.setattr(wheels, "_PACKAGE", tmp_path)
    before = wheels.runtime_digest("3.11")

    (tmp_path / "runtime/__pycache__").mkdir()
    (tmp_path / "runtime/__pycache__/file.cpython-311.pyc").write_text("compiled")
    (tmp_path / "model").mkdir()
    (tmp_path / "model/file.py").write_text("not shipped")
    assert wheels.runtime_digest("3.11") == before

    (tmp_path / "runtime/file.py").write_text("changed")
    assert wheels.runtime_digest("3.11") != before


def test_the_digest_differs_between_python_versions() -> None:
    assert wheels.runtime_digest("3.11") != wheels.runtime_digest("3.12")


def test_a_python_without_pins_is_refused_with_those_that_have_some(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no runtime for Python 3\.13") as caught:
        wheels.install_runtime("3.13", tmp_path)
    assert "3.11 and 3.12" in caught.value.render()


@pytest.mark.parametrize("variable", ["UV_DEFAULT_INDEX", "ENGINE_BUILDER_INDEX_URL", "PIP_INDEX_URL"])
def test_an_unreachable_index_is_a_source_error(tmp_path: Path, offline: dict[str, str], variable: str) -> None:
    refusing = {"UV_OFFLINE": "0", variable: "http://127.0.0.1:9/simple", "UV_HTTP_RETRIES": "0"}
    with pytest.raises(SourceError, match="can't reach the package index") as caught:
        wheels.install_runtime("3.11", tmp_path / "runtime", environment=offline | refusing)
    assert caught.value.code == "NO_NETWORK"
    assert "127.0.0.1:9" in caught.value.render()


def test_working_offline_without_the_wheels_is_a_source_error(tmp_path: Path, offline: dict[str, str]) -> None:
    with pytest.raises(SourceError) as caught:
        wheels.install_runtime("3.11", tmp_path / "runtime", environment=offline)
    assert caught.value.code == "NO_NETWORK"


def test_a_wheel_that_is_not_the_pinned_one_is_refused(tmp_path: Path, offline: dict[str, str]) -> None:
    write_wheels(tmp_path / "links", pins("3.11"))
    with pytest.raises(SourceError, match="isn't the pinned one") as caught:
        wheels.install_runtime("3.11", tmp_path / "runtime", environment=offline)
    assert caught.value.code == "SHA_MISMATCH"
    assert "requirements-3.11.txt" in caught.value.render()


def test_a_full_disk_is_a_host_error() -> None:
    error = wheels._failure("error: failed to copy file: No space left on device (os error 28)\n", Path("requirements"))
    assert isinstance(error, HostError)
    assert error.code == "DISK_FULL"
