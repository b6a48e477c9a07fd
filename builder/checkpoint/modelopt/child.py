"""The worker's life, seen from its parent.

It gets no secrets, no network and no folder of ours to look around in; nothing of it is left when `run` returns or
raises, and nothing when this process is killed. Its news are on its standard output, of the rest the end is kept.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import IO, Any

from builder.checkpoint.modelopt.complaints import complaint, ended
from builder.errors import disk_errors

WORKER = (sys.executable, "-P", "-m", "builder.checkpoint.modelopt")

_PASSED_ON = (
    *("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "XDG_CACHE_HOME", "LD_LIBRARY_PATH"),
    *("CUDA_HOME", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR"),
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS"),
)
_SET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONHASHSEED": "0",  # the library keeps names in sets
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # the same sums in every run
}
_TAIL_LINES = 40


def run(
    job: Mapping[str, Any],
    advance: Callable[[int], None],
    command: Sequence[str] = WORKER,
    environ: Mapping[str, str] = os.environ,
) -> dict[str, Any]:
    """Do the job in a process of its own, and return its facts. `advance` is told the texts that are done.

    The errors are those of `complaints`.
    """
    with disk_errors(Path(environ.get("TMPDIR", "/tmp"))), TemporaryDirectory() as empty:  # noqa: S108 - named only
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=empty,
            env=environment(environ),
            start_new_session=True,  # the terminal's Ctrl-C is ours to pass on
        )
        try:
            return _talk(child, {**job, "parent": os.getpid()}, _Progress(len(job["texts"]), advance))
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # and what it started
            child.wait()
            for pipe in (child.stdin, child.stdout, child.stderr):
                if pipe is not None:
                    with suppress(BrokenPipeError):
                        pipe.close()


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What the worker gets of our environment: what finds libraries and GPUs, and nothing that may be a secret."""
    found = {name: environ[name] for name in _PASSED_ON if name in environ}
    paths = [str(Path(path).absolute()) for path in sys.path if path]
    return {**found, **_SET, "PYTHONPATH": os.pathsep.join(paths)}


class _Progress:
    """Texts that are done; calibration may run all of them several times."""

    def __init__(self, texts: int, advance: Callable[[int], None]) -> None:
        self._texts, self._advance = texts, advance
        self._passes, self._ran, self._told = 1, 0, 0

    def passes(self, count: int) -> None:
        self._passes = max(1, count)

    def ran(self, count: int) -> None:
        self._ran += count
        self._tell(min(self._ran // self._passes, self._texts))

    def done(self) -> None:
        self._tell(self._texts)

    def _tell(self, texts: int) -> None:
        if texts > self._told:
            self._advance(texts - self._told)
            self._told = texts


def _talk(child: subprocess.Popen[bytes], job: Mapping[str, Any], progress: _Progress) -> dict[str, Any]:
    if child.stdin is None or child.stdout is None or child.stderr is None:
        raise AssertionError("there are pipes to all of it")
    last: deque[bytes] = deque(maxlen=_TAIL_LINES)
    listener = Thread(target=_keep, args=(child.stderr, last), daemon=True)
    listener.start()
    with suppress(BrokenPipeError):  # it says why on its way out
        child.stdin.write(json.dumps(job).encode())
        child.stdin.close()
    facts: dict[str, Any] | None = None
    for line in child.stdout:
        match _news(line):
            case {"passes": int(count)}:
                progress.passes(count)
            case {"texts": int(count)}:
                progress.ran(count)
            case {"facts": dict(facts)}:
                pass
            case {"error": str(kind), "message": str(message)}:
                raise complaint(kind, message, job)
    status = child.wait()
    if facts is None or status != 0:
        listener.join(timeout=5)
        lines = [line.decode(errors="replace").strip() for line in last]
        raise ended(status, next((line for line in reversed(lines) if line), ""), job)
    progress.done()
    return facts


def _news(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None  # none of ours


def _keep(pipe: IO[bytes], last: deque[bytes]) -> None:
    with suppress(ValueError):  # it was closed
        for line in iter(lambda: pipe.readline(1 << 16), b""):
            last.append(line)
