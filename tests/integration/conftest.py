"""The services that integration tests use, started once per session when the first test asks for one."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from tests.integration.bundle import smollm2_bundle
from tests.integration.hub_server import hub
from tests.integration.services import Dockerd, Registry, require, require_root, run_docker_registry, run_dockerd
from tests.integration.smollm2 import smollm2

__all__ = ["base_image", "docker_registry", "dockerd", "hub", "smollm2", "smollm2_bundle"]

MAKE_BASE = Path(__file__).parents[2] / "containers/reference/make-base"


@pytest.fixture(scope="session")
def dockerd() -> Iterator[Dockerd]:
    """A Docker Engine; it pulls from `docker_registry` (loopback counts as insecure-allowed) and from nowhere else."""
    with run_dockerd() as engine:
        yield engine


@pytest.fixture(scope="session")
def docker_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """An OCI distribution registry. Tests share it: give each its own repository name."""
    with run_docker_registry(tmp_path_factory.mktemp("docker-registry")) as registry:
        yield registry


@pytest.fixture(scope="session")
def base_image(test_cache: Path) -> str:
    """The serving base of the SKU `cpu` as "oci:DIR:TAG"; made anew only when its script changes."""
    require("debootstrap", "debootstrap")
    require_root("debootstrap")
    layout = test_cache / f"base-cpu-{sha256(MAKE_BASE.read_bytes()).hexdigest()[:16]}"
    with open(test_cache / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not layout.exists():
            done = subprocess.run([sys.executable, str(MAKE_BASE), str(layout)], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr[-3000:]
    return f"oci:{layout}:py3.11"
