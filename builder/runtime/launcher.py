"""Start Triton on loopback ports of its own, watch it, and stop it.

Triton comes from the image (`/opt/tritonserver`) or from the wheel `nvidia-pytriton`, whose Python stubs must be put
beside the backend, one per Python version. Whatever is written lies in one private folder below the cache and in
shared memory under a private prefix; both go when Triton stops. The served tree itself is only read.
"""

from __future__ import annotations

import ctypes
import http.client
import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from builder.errors import HostError, ToolchainError
from builder.runtime.bundle import Bundle

IMAGE_ROOT = Path("/opt/engine-builder")
"""The folder that paths in `config.pbtxt` are written for."""

_LOOPBACK = "127.0.0.1"
_EXIT_TIMEOUT_SECONDS = 5
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 (Triton's own place)


@dataclass(frozen=True)
class Installation:
    """A Triton on this machine. `stub`: the Python stub to put beside the backend, where it isn't there already."""

    binary: Path
    backends: Path
    libraries: tuple[Path, ...] = ()
    stub: Path | None = None


def find_triton() -> Installation:
    """The `tritonserver` of the image, on PATH, or of the wheel. Raises HostError where there is none that fits."""
    on_path = shutil.which("tritonserver", path=f"{os.environ.get('PATH', '')}:/opt/tritonserver/bin")
    if on_path:
        binary = Path(on_path).resolve()
        return Installation(binary, binary.parents[1] / "backends")
    package = importlib.util.find_spec("pytriton")
    if package is None or not package.submodule_search_locations:
        raise HostError(
            "Triton isn't installed",
            why="there is no tritonserver on PATH, in /opt/tritonserver, or from the wheel nvidia-pytriton",
            hint="pip install 'engine-builder[serve]'",
            code="NO_TRITON",
        )
    folder = Path(package.submodule_search_locations[0])
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = folder / "tritonserver" / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.exists():
        raise HostError(
            f"Triton can't run models in Python {version}",
            where=stub.parents[1],
            why="the wheel nvidia-pytriton has no stub for this version",
            hint="use Python 3.11 or 3.12",
            code="NO_PYTHON_STUB",
        )
    return Installation(
        folder / "tritonserver" / "bin" / "tritonserver",
        folder / "tritonserver" / "backends",
        (folder.parent / "nvidia_pytriton.libs",),
        stub,
    )


class Triton:
    """A running server for one bundle."""

    def __init__(self, bundle: Bundle, cache: Path, installation: Installation) -> None:
        """Starts the process; it ends with the thread that calls this. Raises HostError for an unwritable cache."""
        self.http_port, self.grpc_port, self.metrics_port = _free_ports(3)
        self._shared_memory_prefix = f"engine-builder-{os.getpid()}-{secrets.token_hex(4)}"
        self._tail: deque[str] = deque(maxlen=200)
        self._folder = _private_folder(cache)
        try:
            command = self._command(bundle, installation)
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=_environment(installation),
                start_new_session=True,  # Ctrl-C is for us alone; we stop Triton after the last answer
                preexec_fn=_die_with_parent,
                text=True,
                errors="replace",
            )
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        self._cpu_seconds = 0.0
        self._log = threading.Thread(target=self._pass_log_on, name="triton-log", daemon=True)
        self._log.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def http_url(self) -> str:
        return f"{_LOOPBACK}:{self.http_port}"

    @property
    def grpc_url(self) -> str:
        return f"{_LOOPBACK}:{self.grpc_port}"

    @property
    def metrics_url(self) -> str:
        return f"{_LOOPBACK}:{self.metrics_port}"

    def poll(self) -> int | None:
        """The exit status, or None while it runs."""
        return self._process.poll()

    def is_working(self) -> bool:
        """Whether its processes have used more than a tenth of a second of a CPU since this was last asked."""
        before, self._cpu_seconds = self._cpu_seconds, _cpu_seconds(self.pid)
        return self._cpu_seconds - before > 0.1

    def is_ready(self) -> bool:
        """True once all models are loaded."""
        with suppress(OSError, http.client.HTTPException):
            return _get(self.http_port, "/v2/health/ready")[0] == http.HTTPStatus.OK
        return False

    def metrics(self) -> str:
        """Triton's own metrics in Prometheus text; empty where they can't be had."""
        with suppress(OSError, http.client.HTTPException):
            return _get(self.metrics_port, "/metrics")[1]
        return ""

    def failure(self, message: str) -> ToolchainError:
        """An error with what Triton itself said last."""
        status = self.poll()
        if status is not None:
            self._log.join(timeout=5)
        state = "it still runs" if status is None else f"exit status {status}"
        log = list(self._tail)
        return ToolchainError(
            message, why="\n".join([state, *_complaints(log)]), hint=_hint("\n".join(log)), code="TRITON_FAILED"
        )

    def stop(self) -> None:
        """End it, by force if it takes too long, and remove all that it left."""
        if self.poll() is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_EXIT_TIMEOUT_SECONDS + 5)
        with suppress(ProcessLookupError):  # Python stubs outlive a server that died
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self._log.join(timeout=5)
        for region in _SHARED_MEMORY.glob(f"{self._shared_memory_prefix}*"):
            region.unlink(missing_ok=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _command(self, bundle: Bundle, installation: Installation) -> list[str]:
        models = self._folder / "models"
        copy_models(bundle, models)
        backends = installation.backends
        if installation.stub:
            backends = self._folder / "backends"
            _link_backends(installation.backends, installation.stub, backends)
        return [
            str(installation.binary),
            f"--model-repository={models}",
            f"--backend-directory={backends}",
            f"--backend-config=python,shm-region-prefix-name={self._shared_memory_prefix}",
            "--disable-auto-complete-config",
            f"--http-address={_LOOPBACK}",
            f"--http-port={self.http_port}",
            f"--grpc-address={_LOOPBACK}",
            f"--grpc-port={self.grpc_port}",
            f"--metrics-address={_LOOPBACK}",
            f"--metrics-port={self.metrics_port}",
            f"--exit-timeout-secs={_EXIT_TIMEOUT_SECONDS}",
        ]

    def _pass_log_on(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 (for the type checker)
        for line in self._process.stdout:
            self._tail.append(line.rstrip())
            sys.stderr.write(line)
            sys.stderr.flush()


_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    """Runs in the new process: Triton must not outlive us where we are killed outright (prctl(2))."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def copy_models(bundle: Bundle, target: Path) -> None:
    """A copy of the model repository whose parameters name the bundle's own folder.

    A copy also because the stubs leave compiled code beside a `model.py`, whatever the environment says.
    """
    for model in sorted(bundle.models.iterdir()):
        for file in model.rglob("*"):
            if file.is_file():
                copy = target / file.relative_to(bundle.models)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)
        config = text_format.Parse((model / "config.pbtxt").read_text(), ModelConfig())
        for parameter in config.parameters.values():
            path = Path(parameter.string_value)
            if path.is_relative_to(IMAGE_ROOT):
                parameter.string_value = str(bundle.root / path.relative_to(IMAGE_ROOT))
        (target / model.name / "config.pbtxt").write_text(text_format.MessageToString(config))


def _link_backends(backends: Path, stub: Path, target: Path) -> None:
    python = target / "python"
    python.mkdir(parents=True)
    for file in (backends / "python").iterdir():
        (python / file.name).symlink_to(file)
    (python / stub.name).symlink_to(stub)


def _environment(installation: Installation) -> Mapping[str, str]:
    """Ours, so that Triton's Python stubs, which embed libpython, see the packages that we see."""
    libraries = [*map(str, installation.libraries), str(sysconfig.get_config_var("LIBDIR"))]
    if inherited := os.environ.get("LD_LIBRARY_PATH"):
        libraries.append(inherited)
    standard = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    packages = [path for path in sys.path if path not in {"", *standard} and "lib-dynload" not in path]
    return os.environ | {
        "LD_LIBRARY_PATH": ":".join(libraries),
        # Some stubs embed Python in isolated mode: it finds its standard library through PATH, not through PYTHONHOME,
        # and the repository's model.py applies PYTHONPATH itself.
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
        "PYTHONHOME": sys.base_prefix,
        "PYTHONPATH": ":".join(packages),
        "PYTHONNOUSERSITE": "1",
    }


def _cpu_seconds(group: int) -> float:
    """CPU time of all processes in a process group: fields 5, 14 and 15 of /proc/PID/stat (see proc(5))."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[2]) == group:
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _private_folder(cache: Path) -> Path:
    try:
        cache.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="triton-", dir=cache))
    except OSError as error:
        existing = next(path for path in (cache, *cache.parents) if path.exists())
        status = existing.stat()
        raise HostError(
            f"user {os.getuid()} can't write the cache folder {cache}",
            where=cache,
            why=f"{error.strerror}; {existing} has mode {status.st_mode & 0o7777:04o}, "
            f"owner {status.st_uid}:{status.st_gid}",
            hint="mount a writable volume there, or set NIM_CACHE_PATH to a folder that this user can write",
            code="CACHE_NOT_WRITABLE",
        ) from error


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server((_LOOPBACK, 0)) for _ in range(count)]
    try:
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _get(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(_LOOPBACK, port, timeout=5)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def _complaints(log: list[str]) -> list[str]:
    """Triton's error lines, without tracebacks and what it says wherever there is no GPU; else its last lines."""
    errors = [line for line in log if line.startswith(("E", "error:")) and "CUDA" not in line.upper()]
    return [line.partition("\\n\\nAt:")[0] for line in errors[-5:]] or log[-10:]


def _hint(log: str) -> str:
    if "libpython" in log:
        name = f"libpython{sys.version_info.major}.{sys.version_info.minor}"
        return f"install the shared library of this Python ({name}.so; Debian: apt-get install {name})"
    if "No space left on device" in log or "shared memory" in log:
        return "give the container more shared memory, as in docker run --shm-size=1g"
    return "read Triton's log above"
