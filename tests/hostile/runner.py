"""Runs the command line in processes of its own, under limits, and says how they ended and what they took.

This file is also the program that does so: a small process that forks. Linux counts what the parent held into a
child's largest memory, so that children of a test run, which is large, can't be measured. The commands are loaded
once, before the forks: starting Python anew for every case would take most of the time.
"""

import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CPU_SECONDS = 4
"""More than any refusal needs, on a slow machine with a coverage tool as well; a loop never gets there."""

WALL_SECONDS = 30
ADDRESS_SPACE = 8 << 30

LOADED = (
    *("cli.validate", "cli.lock", "cli.plan", "cli.explain"),
    *("build.preparation", "model.sources.folder", "oci.client", "oci.repository"),
)


@dataclass(frozen=True)
class Ended:
    """How a process ended. `code` is negative for a signal; `peak_bytes` is the largest memory that it held at once."""

    code: int
    stdout: str
    stderr: str
    peak_bytes: int
    cpu_seconds: float
    seconds: float


class Runner:
    """A warm process that forks one child per command."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONPATH": ".", **env},
            text=True,
        )

    def __call__(self, *arguments: str | Path) -> Ended:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(list(map(str, arguments))) + "\n")
        process.stdin.flush()
        return Ended(**json.loads(process.stdout.readline()))

    def close(self) -> None:
        self._process.communicate(timeout=WALL_SECONDS)


def cold(*arguments: str | Path) -> Ended:
    """The same for one process that is started as a user does."""
    command = [sys.executable, __file__, *map(str, arguments)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    return Ended(**json.loads(done.stdout))


def _serve() -> None:
    for module in LOADED:
        importlib.import_module(f"builder.{module}")
    from builder import catalog
    from builder.model.families import families

    catalog.gpus(), catalog.toolchains(), families()
    for line in sys.stdin:
        print(json.dumps(_forked(json.loads(line), warm=True)), flush=True)


def _forked(arguments: Sequence[str], *, warm: bool) -> dict[str, object]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.monotonic()
        if not (pid := os.fork()):
            _child(arguments, out.fileno(), err.fileno(), warm=warm)
        signal.signal(signal.SIGALRM, lambda *_: os.kill(pid, signal.SIGKILL))
        signal.alarm(WALL_SECONDS)
        _, status, usage = os.wait4(pid, 0)
        signal.alarm(0)
        seconds = time.monotonic() - start
        shown = []
        for file in (out, err):
            file.seek(0)
            shown.append(file.read().decode(errors="backslashreplace"))
    return {
        "code": os.waitstatus_to_exitcode(status),
        "stdout": shown[0],
        "stderr": shown[1],
        "peak_bytes": usage.ru_maxrss << 10,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "seconds": seconds,
    }


def _child(arguments: Sequence[str], out: int, err: int, *, warm: bool) -> None:
    code = 1
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        if not warm:
            os.execv(sys.executable, [sys.executable, "-m", "builder", *arguments])
        from builder.cli.main import run

        code = run(list(arguments))
        sys.stdout.flush()
    except BaseException as error:
        os.write(2, f"Traceback: {error!r}".encode())
    finally:
        os._exit(code)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(_forked(sys.argv[1:], warm=False)))
    else:
        _serve()
