"""The command line as a user runs it: another process, whose output and exit code count."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
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


def signalled_in_stage(arguments: list[str | Path], stage: str, number: signal.Signals, store: Path) -> tuple[int, str]:
    """Run a command and send it a signal as soon as it works on a stage; its exit code and stderr.

    The process is stopped first, to see that it was caught before the stage was sealed; where it wasn't, the store is
    left as it is and -1 comes back.
    """
    process = subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        env=environment(store),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    sealed = store / "artifacts" / stage
    while process.poll() is None:
        if any(name.startswith(f"{stage}-") for name in _names(store / "work")):
            process.send_signal(signal.SIGSTOP)
            caught = not _names(sealed)
            process.send_signal(number)
            process.send_signal(signal.SIGCONT)
            _, stderr = process.communicate(timeout=60)
            return (process.returncode if caught else -1), stderr
        time.sleep(0.0005)
    process.communicate()
    return -1, ""


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
