"""The runtime layer with real wheels: the same wherever it is made, and all that the runtime needs."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from builder.image.wheels import install_runtime
from tests.integration.services import Dockerd

IMPORT_EVERYTHING = """
import importlib, pkgutil, sys
import builder

def fail(name):
    raise

for module in pkgutil.walk_packages(builder.__path__, "builder.", onerror=fail):
    if not module.name.startswith("builder.runtime.models."):  # these run inside Triton's python backend
        importlib.import_module(module.name)
import jinja2, prometheus_client, starlette.applications, tokenizers, tritonclient.grpc.aio, uvicorn
outside = {name for name, module in sys.modules.items() if "dist-packages" in (getattr(module, "__file__", "") or "")}
print(sorted(outside))
"""


def tree(folder: Path) -> dict[str, tuple[int, str]]:
    """Every file and folder below, with its mode and the digest of its content."""
    return {
        path.relative_to(folder).as_posix(): (
            path.stat().st_mode,
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
        )
        for path in folder.rglob("*")
    }


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runtime layer for the base's Python."""
    folder = tmp_path_factory.mktemp("layer")
    install_runtime("3.11", folder)
    return folder


@pytest.fixture(scope="module")
def loaded_base(dockerd: Dockerd, base_image: str) -> str:
    target = "docker-daemon:base-cpu:runtime"
    copy = ["skopeo", "copy", "--quiet", "--insecure-policy", "--dest-daemon-host", dockerd.host, base_image, target]
    subprocess.run(copy, check=True)
    return "base-cpu:runtime"


def in_the_base(dockerd: Dockerd, base: str, layer: Path, command: list[str], environment: dict[str, str]) -> str:
    """What the command prints in a container of the base, as UID 1000, with the layer mounted."""
    output: bytes = dockerd.client.containers.run(
        base,
        command,
        user="1000",
        read_only=True,
        environment=environment,
        volumes={str(layer): {"bind": "/layer", "mode": "ro"}},
        remove=True,
    )
    return output.decode()


def test_another_folder_umask_and_cache_give_the_same_tree(layer: Path, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        install_runtime(
            "3.11", tmp_path / "runtime", environment=os.environ | {"UV_CACHE_DIR": str(tmp_path / "cache")}
        )
    finally:
        os.umask(before)
    assert tree(tmp_path / "runtime") == tree(layer)


def test_the_layer_of_another_python_holds_its_extension_modules(tmp_path: Path) -> None:
    install_runtime("3.12", tmp_path)
    modules = [path.name for path in tmp_path.rglob("*.cpython-*.so")]
    assert "_multiarray_umath.cpython-312-x86_64-linux-gnu.so" in modules
    assert [name for name in modules if ".cpython-312-" not in name] == []


def test_the_layer_holds_no_scripts_caches_or_notes_of_the_installer(layer: Path) -> None:
    names = {path.name for path in layer.rglob("*")}
    assert {"__pycache__", "RECORD", "INSTALLER", "REQUESTED", ".lock", "uv_cache.json"}.isdisjoint(names)
    assert not (layer / "bin").exists()
    assert not any(path.is_symlink() for path in layer.rglob("*"))
    assert {path.name for path in (layer / "builder").iterdir()} == {
        "__init__.py",
        "errors.py",
        "reference",
        "runtime",
    }


def test_the_runtime_imports_from_the_base_and_the_layer_alone(dockerd: Dockerd, loaded_base: str, layer: Path) -> None:
    command = ["python3.11", "-c", IMPORT_EVERYTHING]
    assert in_the_base(dockerd, loaded_base, layer, command, {"PYTHONPATH": "/layer"}) == "[]\n"


def test_the_triton_server_and_its_stub_find_their_libraries(dockerd: Dockerd, loaded_base: str, layer: Path) -> None:
    triton = "/layer/pytriton/tritonserver"
    stub = f"{triton}/python_backend_stubs/3.11/triton_python_backend_stub"
    command = ["ldd", f"{triton}/bin/tritonserver", f"{triton}/backends/python/libtriton_python.so", stub]
    libraries = in_the_base(
        dockerd, loaded_base, layer, command, {"LD_LIBRARY_PATH": "/layer/nvidia_pytriton.libs:/layer/pytriton"}
    )
    assert "libpython3.11.so.1.0 => /" in libraries
    assert [line for line in libraries.splitlines() if "not found" in line] == []
