"""The command line as a user runs it: another process, whose output and exit code count."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

COMMAND = [sys.executable, "-m", "builder"]


def environment(store: Path, changes: Mapping[str, str] | None = None) -> dict[str, str]:
    return {**os.environ, "ENGINE_BUILDER_STORE": str(store), **(changes or {})}


def engine_builder(
    *arguments: str | Path, store: Path, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)], cwd=cwd, env=environment(store, env), capture_output=True, text=True
    )


def signalled(
    arguments: Sequence[str | Path],
    number: signal.Signals,
    store: Path,
    *,
    when: Callable[[], bool],
    env: Mapping[str, str] | None = None,
) -> tuple[int, str]:
    """Run a command and send it a signal as soon as `when` holds; its exit code and stderr.

    The process is stopped first and `when` asked again, to be sure that it was caught there. Where it wasn't, it is
    killed, and -1 comes back: what it has done by then is left as it is.
    """
    process = subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        env=environment(store, env),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    while process.poll() is None:
        if when():
            process.send_signal(signal.SIGSTOP)
            caught = when()
            process.send_signal(number if caught else signal.SIGKILL)
            process.send_signal(signal.SIGCONT)
            _, stderr = process.communicate(timeout=60)
            return (process.returncode if caught else -1), stderr
        time.sleep(0.0005)
    process.communicate()
    return -1, ""
