"""The serving bases of `containers/reference`: what an image may count on, made with and without an image registry."""

from __future__ import annotations

import hashlib
import json
import subprocess
import tarfile
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

from tests.integration.services import Dockerd

REFERENCE = Path(__file__).parents[2] / "containers/reference"
CHECK = """
import ctypes, os, ssl, sys
ctypes.CDLL("libpython3.11.so.1.0")
assert ssl.create_default_context().cert_store_stats()["x509_ca"] > 100
open("/opt/nim/.cache/written", "w").close()
print(os.getuid(), os.getgid(), "%d.%d" % sys.version_info[:2])
"""


def layout_of(base_image: str) -> Path:
    return Path(base_image.removeprefix("oci:").rpartition(":")[0])


@pytest.fixture(scope="module")
def layer_names(base_image: str) -> list[str]:
    blobs = layout_of(base_image) / "blobs/sha256"
    largest = max(blobs.iterdir(), key=lambda path: path.stat().st_size)
    with tarfile.open(largest) as layer:
        return layer.getnames()


@pytest.fixture(scope="module")
def loaded_base(dockerd: Dockerd, base_image: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The debootstrap base in the Docker Engine, by its name there, brought as an archive for `docker load`."""
    archive = tmp_path_factory.mktemp("base") / "base.tar"
    target = f"docker-archive:{archive}:base-cpu:debootstrap"
    subprocess.run(["skopeo", "copy", "--quiet", "--insecure-policy", base_image, target], check=True)
    with open(archive, "rb") as file:
        (image,) = dockerd.client.images.load(file)
    assert "base-cpu:debootstrap" in image.tags
    return "base-cpu:debootstrap"


@pytest.fixture(scope="module")
def make_base() -> ModuleType:
    """The script as a module, to try its parts on small trees."""
    spec = spec_from_loader("make_base", SourceFileLoader("make_base", str(REFERENCE / "make-base")))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("user", ["1000", "1000:0", "123456:0"])
def test_python_and_a_writable_cache_await_any_user(dockerd: Dockerd, loaded_base: str, user: str) -> None:
    output = dockerd.client.containers.run(
        loaded_base,
        ["python3.11", "-c", CHECK],
        user=user,
        read_only=True,
        volumes={f"cache-{user.replace(':', '-')}": {"bind": "/opt/nim/.cache"}},
        remove=True,
    )
    uid, gid, version = output.decode().split()
    assert (uid, version) == (user.split(":")[0], "3.11")
    assert gid == (user.split(":")[1] if ":" in user else "1000")


def test_skopeo_reads_the_layout_and_its_label(base_image: str) -> None:
    done = subprocess.run(["skopeo", "inspect", base_image], capture_output=True, text=True, check=True)
    image = json.loads(done.stdout)
    assert image["Labels"] == {"io.engine-builder.python": "3.11"}
    assert (image["Os"], len(image["Layers"])) == ("linux", 1)


def test_the_layout_holds_exactly_the_blobs_that_it_names(base_image: str) -> None:
    layout = layout_of(base_image)
    (entry,) = json.loads((layout / "index.json").read_text())["manifests"]
    manifest = json.loads((layout / "blobs/sha256" / entry["digest"].removeprefix("sha256:")).read_text())
    named = {
        descriptor["digest"]: descriptor["size"] for descriptor in (entry, manifest["config"], *manifest["layers"])
    }
    found = {}
    for blob in (layout / "blobs/sha256").iterdir():
        with open(blob, "rb") as file:
            found[f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"] = blob.stat().st_size
    assert found == named


def test_the_layer_holds_no_caches_logs_or_facts_of_the_machine(layer_names: list[str]) -> None:
    unwanted = ("var/cache/", "var/lib/apt/lists/", "var/log/", "usr/share/man/", "usr/share/locale/", "dev/", "proc/")
    assert [name for name in layer_names if name.startswith(unwanted) or "__pycache__" in name] == []
    assert {"etc/hostname", "etc/resolv.conf", "etc/machine-id"}.isdisjoint(layer_names)
    assert "usr/share/doc/libpython3.11-minimal/copyright" in layer_names


def test_the_same_files_at_another_time_make_the_same_layout(make_base: ModuleType, tmp_path: Path) -> None:
    digests = set()
    for name, order in (("first", "abc"), ("second", "cba")):
        root = tmp_path / name
        root.mkdir()
        for letter in order:
            (root / letter).write_text(letter)
        (root / "link").symlink_to("a")
        (root / "again").hardlink_to(root / "b")
        digests.add(make_base.write_layout(root, tmp_path / f"{name}-layout", "tag", "amd64"))
    assert len(digests) == 1


def test_make_base_refuses_a_folder_that_exists(tmp_path: Path) -> None:
    done = subprocess.run([REFERENCE / "make-base", tmp_path], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == f"make-base: {tmp_path} exists already: remove it, or name another folder\n"


def test_make_base_says_that_it_needs_root(tmp_path: Path) -> None:
    code = (REFERENCE / "make-base").read_text()
    command = ["setpriv", "--reuid", "65534", "--clear-groups", "/usr/bin/env", "python3", "-c", code, "base"]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/tmp")
    assert done.returncode == 1
    assert "run this as root" in done.stderr


def test_make_base_reports_a_mirror_that_it_cannot_reach_and_leaves_nothing(tmp_path: Path) -> None:
    command = [REFERENCE / "make-base", tmp_path / "base", "--mirror", "http://127.0.0.1:9/debian"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "127.0.0.1:9" in done.stderr
    assert "debootstrap failed" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_dockerfile_makes_a_base_from_any_image_with_a_shared_python(dockerd: Dockerd, loaded_base: str) -> None:
    image, _ = dockerd.client.images.build(
        path=str(REFERENCE), tag="base-cpu:dockerfile", buildargs={"PYTHON_IMAGE": loaded_base}
    )
    assert image.labels["io.engine-builder.python"] == "3.11"
    assert image.attrs["Config"]["User"] == "1000"
    output = dockerd.client.containers.run(
        "base-cpu:dockerfile", ["python3.11", "-c", CHECK], user="123456:0", remove=True
    )
    assert output == b"123456 0 3.11\n"
