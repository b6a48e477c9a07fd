"""The runtime layer of an image: hash-pinned wheels and our own shipped rooms, as one site-packages folder.

The wheels come from the package index that uv is configured for, as `requirements-X.Y.txt` beside this file pins
them (`make lock-runtime` writes it), for the Python of the image's base, which need not be the one that runs this.
The same pins and the same source give the same files, wherever and whenever they are installed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from builder.errors import BuilderError, HostError, SourceError, UsageError, disk_errors

PYTHON_VERSIONS = ("3.11", "3.12")
PLATFORM = "x86_64-manylinux_2_36"
"""What the wheels must run on: glibc 2.36 is that of Debian bookworm, the oldest base."""

SHIPPED = ("__init__.py", "errors.py", "reference", "runtime")
"""The parts of `builder` that an image carries."""

_PACKAGE = Path(__file__).parents[1]
_INSTALLER_NOTES = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_build.json", "uv_cache.json")


def install_runtime(python_version: str, folder: Path, *, environment: Mapping[str, str] = os.environ) -> None:
    """Fill `folder`, new or empty, with what `import builder.runtime` needs in an image with that Python ("3.11").

    Raises UsageError for a Python that we have no pins for, SourceError (`NO_NETWORK`, `SHA_MISMATCH` or
    `WHEELS`) where the wheels can't be had, and HostError where they don't fit on the disk.
    """
    requirements = _requirements(python_version)
    import uv  # plans ask this module for a digest only

    command = [uv.find_uv_bin(), "pip", "install", "--quiet", "--no-progress", "--color", "never"]
    command += ["--requirements", str(requirements), "--require-hashes", "--no-deps", "--only-binary", ":all:"]
    command += ["--target", str(folder), "--no-compile-bytecode"]
    # Files linked from uv's cache would share their modes with every other environment of this machine.
    command += ["--link-mode", "copy"]
    command += ["--python", sys.executable, "--python-version", python_version, "--python-platform", PLATFORM]
    # Where models come from as wheels, these do too; otherwise the index is uv's own affair.
    index = environment.get("ENGINE_BUILDER_INDEX_URL") or environment.get("PIP_INDEX_URL")
    environment = {**environment, "UV_DEFAULT_INDEX": index} if index else environment
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise _failure(done.stderr, requirements)
    with disk_errors(folder):
        _remove_installer_notes(folder)
        for name, source in _shipped_files():
            target = folder / "builder" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
        _normalise_modes(folder)


def runtime_digest(python_version: str) -> str:
    """SHA-256 (hex) of what `install_runtime` would install: the pins and our shipped files. Installs nothing."""
    requirements = _requirements(python_version)
    files = [(requirements.name, requirements), *_shipped_files()]
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {name}\n" for name, path in files]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _requirements(python_version: str) -> Path:
    if python_version not in PYTHON_VERSIONS:
        raise UsageError(
            f"no runtime for Python {python_version}",
            why=f"the runtime's wheels are pinned for Python {' and '.join(PYTHON_VERSIONS)}",
            hint="choose a base image with one of these, labelled io.engine-builder.python",
            code="RUNTIME_PYTHON",
        )
    return Path(__file__).with_name(f"requirements-{python_version}.txt")


def _shipped_files() -> Iterator[tuple[str, Path]]:
    """(name below `builder/`, file) in a fixed order."""
    for part in SHIPPED:
        root = _PACKAGE / part
        for path in [root] if root.is_file() else sorted(root.rglob("*")):
            if path.is_file() and path.parent.name != "__pycache__":
                yield path.relative_to(_PACKAGE).as_posix(), path


def _remove_installer_notes(folder: Path) -> None:
    """Remove what tells of this installation: scripts with its interpreter's path, uv's notes, compiled caches."""
    shutil.rmtree(folder / "bin", ignore_errors=True)
    (folder / ".lock").unlink(missing_ok=True)
    for information in folder.glob("*.dist-info"):
        for name in _INSTALLER_NOTES:
            (information / name).unlink(missing_ok=True)
    for cache in list(folder.rglob("__pycache__")):
        shutil.rmtree(cache)


def _normalise_modes(folder: Path) -> None:
    """0755 for folders and programs, 0644 for the rest, whatever this process' umask is."""
    for path in [folder, *folder.rglob("*")]:
        executable = path.is_dir() or path.stat().st_mode & 0o111
        path.chmod(0o755 if executable else 0o644)


def _failure(output: str, requirements: Path) -> BuilderError:
    """The error that uv's output stands for."""
    why = output.strip()
    if "No space left on device" in output or "Disk quota exceeded" in output:
        return HostError("the disk is full", why=why, hint="free some space; the next run continues", code="DISK_FULL")
    if "Hash mismatch" in output:
        return SourceError(
            "a wheel of the runtime isn't the pinned one",
            where=requirements,
            why=why,
            hint="find out why the package index serves another file before you trust it",
            code="SHA_MISMATCH",
        )
    if "Failed to fetch" in output or "error sending request" in output or "network was disabled" in output:
        return SourceError(
            "can't reach the package index for the runtime's wheels",
            why=why,
            hint="check the network, or name another index with UV_DEFAULT_INDEX",
            code="NO_NETWORK",
        )
    return SourceError(
        "can't install the runtime's wheels",
        where=requirements,
        why=why,
        hint="check that the package index (UV_DEFAULT_INDEX) has them all",
        code="WHEELS",
    )
