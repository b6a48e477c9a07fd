"""Real servers for the tests, each with folders, ports and a network of its own, so that none meets another.

Every function here is a context manager that starts one and stops it. A server also dies with the test process,
however that ends (`setpriv --pdeathsig`).
"""

from __future__ import annotations

import ipaddress
import json
import os
import random
import re
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import docker

PATH = os.environ["PATH"] + ":/usr/sbin:/sbin"


@dataclass(frozen=True)
class Dockerd:
    """A Docker Engine whose containers are reached at ports published on loopback; nothing routes them outside."""

    host: str
    """What `docker --host` and DOCKER_HOST take."""
    client: docker.DockerClient
    log: Path


@dataclass(frozen=True)
class Registry:
    """A plain-HTTP OCI distribution registry that allows deletion."""

    host: str
    """"127.0.0.1:PORT"."""
    storage: Path
    log: Path

    def reference(self, repository: str) -> str:
        return f"{self.host}/{repository}"


@contextmanager
def run_dockerd() -> Iterator[Dockerd]:
    """A Docker Engine of its own, with its data in a temporary folder. Needs root."""
    for program, package in (("dockerd", "docker.io"), ("ip", "iproute2")):
        require(program, package)
    require_root("dockerd")
    # Not pytest's temporary folder: sockets have short names only.
    with tempfile.TemporaryDirectory(prefix="dockerd-") as name, _bridge() as bridge:
        folder = Path(name)
        configuration, log, socket = folder / "daemon.json", folder / "log", folder / "docker.sock"
        configuration.write_text("{}")  # instead of this machine's
        command = ["dockerd", "--config-file", str(configuration), "--host", f"unix://{socket}"]
        command += ["--data-root", str(folder / "data"), "--exec-root", str(folder / "exec")]
        command += ["--pidfile", str(folder / "pid"), "--bridge", bridge, "--containerd-namespace", bridge]
        # Published ports go through docker-proxy alone: the machine's firewall and routing stay as they are.
        command += [
            "--bridge",
            bridge,
            "--iptables=false",
            "--ip6tables=false",
            "--ip-masq=false",
            "--ip-forward=false",
        ]
        host = f"unix://{socket}"
        with running(command, log, ready=lambda: "API listen on" in log.read_text()):
            client = docker.DockerClient(base_url=host, timeout=300)
            try:
                yield Dockerd(host, client, log)
            finally:
                client.close()


@contextmanager
def run_docker_registry(folder: Path) -> Iterator[Registry]:
    """Debian's docker-registry on a free port of loopback, with its storage in `folder`."""
    require("docker-registry", "docker-registry")
    storage, log, configuration = folder / "storage", folder / "registry.log", folder / "registry.json"
    configuration.write_text(  # JSON is YAML
        json.dumps(
            {
                "version": 0.1,
                "log": {"level": "info"},
                "storage": {"filesystem": {"rootdirectory": str(storage)}, "delete": {"enabled": True}},
                "http": {"addr": "127.0.0.1:0", "secret": "not one"},
            }
        )
    )

    def address() -> re.Match[str] | None:
        return re.search(r"listening on (127\.0\.0\.1:\d+)", log.read_text())

    with running(["docker-registry", "serve", str(configuration)], log, ready=lambda: address() is not None):
        match = address()
        assert match is not None
        yield Registry(match[1], storage, log)


@contextmanager
def running(
    command: Sequence[str], log: Path, ready: Callable[[], bool], seconds: float = 60
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server until the block ends; enters the block when `ready`. What it prints goes to `log`."""
    with open(log, "wb") as output:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", *command],
            env={"PATH": PATH, "HOME": str(log.parent)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + seconds
        while not ready():
            if process.poll() is not None or time.monotonic() > deadline:
                state = "runs, but isn't ready" if process.returncode is None else f"ended ({process.returncode})"
                raise RuntimeError(f"{command[0]} {state}; its last lines:\n{log.read_text()[-3000:]}")
            time.sleep(0.05)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def require(program: str, package: str) -> None:
    """Fail, with what to install, unless the program is there."""
    if shutil.which(program, path=PATH) is None:
        raise RuntimeError(f"{program} isn't installed: `make test` installs it, or apt-get install {package}")


def require_root(program: str) -> None:
    if os.geteuid() != 0:
        raise RuntimeError(f"{program} needs root: run the integration tests as root")


@contextmanager
def _bridge() -> Iterator[str]:
    """A network bridge with a small subnet that nothing here routes to yet."""
    routes = json.loads(_ip("-json", "-4", "route"))
    taken = [ipaddress.ip_network(route["dst"]) for route in routes if route["dst"] != "default"]
    subnets = list(ipaddress.ip_network("172.16.0.0/12").subnets(new_prefix=24))
    random.shuffle(subnets)
    subnet = next(subnet for subnet in subnets if not any(subnet.overlaps(other) for other in taken))
    name = f"eb{secrets.token_hex(4)}"
    _ip("link", "add", name, "type", "bridge")
    try:
        _ip("address", "add", f"{subnet[1]}/24", "dev", name)
        _ip("link", "set", name, "up")
        yield name
    finally:
        _ip("link", "delete", name)


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], env={"PATH": PATH}, check=True, capture_output=True, text=True)
    return done.stdout
