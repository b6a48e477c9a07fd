"""The servers that the other integration tests build on."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.integration.services import Dockerd, Registry, require, run_docker_registry, run_dockerd, running

SERVER = """
import http.server, os

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        with open("/cache/written", "w") as file:
            file.write("yes")
        try:
            open("/written", "w")
            root = "writable"
        except OSError:
            root = "read-only"
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"{os.getuid()} {root}".encode())

http.server.HTTPServer(("", 8000), Handler).serve_forever()
"""


@pytest.fixture(scope="module")
def loaded_base(dockerd: Dockerd, base_image: str) -> str:
    """The serving base in the Docker Engine, by its name there."""
    name = "base-cpu:services"
    target = f"docker-daemon:{name}"
    subprocess.run(
        ["skopeo", "copy", "--quiet", "--insecure-policy", "--dest-daemon-host", dockerd.host, base_image, target],
        check=True,
    )
    return name


def get(url: str) -> httpx.Response:
    """The first answer of a server that is still starting."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return httpx.get(url, trust_env=False)
        except httpx.TransportError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def network_links() -> list[str]:
    return sorted(path.name for path in Path("/sys/class/net").iterdir())


def test_a_container_serves_as_uid_1000_on_a_published_port_with_a_read_only_root(
    dockerd: Dockerd, loaded_base: str
) -> None:
    container = dockerd.client.containers.run(
        loaded_base,
        ["python3.11", "-c", SERVER],
        detach=True,
        user="1000",
        read_only=True,
        tmpfs={"/cache": "mode=1777"},
        ports={"8000/tcp": ("127.0.0.1", None)},
    )
    try:
        container.reload()
        port = container.ports["8000/tcp"][0]["HostPort"]
        assert get(f"http://127.0.0.1:{port}/").text == "1000 read-only"
    finally:
        container.remove(force=True)


def test_the_registry_answers_and_deletes(docker_registry: Registry, base_image: str) -> None:
    url = f"http://{docker_registry.host}/v2/"
    assert get(url).status_code == 200

    target = f"docker://{docker_registry.reference('services/base')}:1"
    copy = ["skopeo", "copy", "--quiet", "--insecure-policy", "--dest-tls-verify=false", base_image, target]
    subprocess.run(copy, check=True)
    accept = {"Accept": "application/vnd.oci.image.manifest.v1+json"}
    digest = httpx.head(f"{url}services/base/manifests/1", headers=accept).headers["docker-content-digest"]
    assert httpx.delete(f"{url}services/base/manifests/{digest}").status_code == 202
    assert httpx.head(f"{url}services/base/manifests/1", headers=accept).status_code == 404


def test_the_engine_pulls_from_the_registry(dockerd: Dockerd, docker_registry: Registry, loaded_base: str) -> None:
    name = docker_registry.reference("services/pulled")
    image = dockerd.client.images.get(loaded_base)
    image.tag(name, "1")
    dockerd.client.images.push(name, "1")
    dockerd.client.images.remove(f"{name}:1")
    assert dockerd.client.images.pull(name, "1").id == image.id


def test_services_run_beside_others_and_leave_nothing_behind(dockerd: Dockerd, tmp_path: Path) -> None:
    links = network_links()
    with run_dockerd() as second, run_docker_registry(tmp_path) as registry:
        assert second.client.ping()
        assert dockerd.client.ping()
        assert get(f"http://{registry.host}/v2/").status_code == 200
    assert network_links() == links
    assert not second.log.parent.exists()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://{registry.host}/v2/", trust_env=False)


def test_a_server_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    script = """
import os, sys
from pathlib import Path
from tests.integration.services import running

with running(["sleep", "600"], Path(sys.argv[1]), ready=lambda: True) as process:
    print(process.pid, flush=True)
    os.kill(os.getpid(), 9)
"""
    command = [sys.executable, "-c", script, str(tmp_path / "log")]
    started = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    server = Path("/proc", started.stdout.strip(), "cmdline")
    deadline = time.monotonic() + 30
    while server.exists() and server.read_bytes() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not server.exists() or not server.read_bytes()  # a zombie that nobody reaped has no command line


def test_a_server_that_ends_at_once_is_reported_with_its_output(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError, match=r"(?s)ls ended \(2\).*nowhere"),
        running(["ls", "/nowhere"], tmp_path / "log", ready=lambda: False),
    ):
        pass


def test_a_missing_program_is_named_with_its_package() -> None:
    with pytest.raises(RuntimeError, match="apt-get install some-package"):
        require("no-such-program", "some-package")
