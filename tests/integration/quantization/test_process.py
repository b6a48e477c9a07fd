"""The process that quantises: what it leaves, and a machine that has too little for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.errors import HostError
from builder.store import Workspace
from tests.integration.quantization.support import (
    run_apart,
)
from tests.integration.services import require_root
from tests.integration.smollm2 import SmolLM2


@pytest.fixture
def little_memory() -> Iterator[Path]:
    """A memory cgroup of 300 MB, of version 2 or 1."""
    require_root("a memory cgroup")
    unified = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    group = Path("/sys/fs/cgroup" if unified else "/sys/fs/cgroup/memory") / f"engine-builder-{os.getpid()}"
    group.mkdir()
    (group / ("memory.max" if unified else "memory.limit_in_bytes")).write_text(str(300 << 20))
    yield group
    group.rmdir()


IN_LITTLE_MEMORY = """
import sys
from pathlib import Path
from builder.checkpoint.quantize import Quantization, quantize
from builder.errors import BuilderError
from builder.model.config import load_config
from builder.model.spec import ModelSpec
from builder.store import Workspace

source = Path(sys.argv[1])
spec = ModelSpec.from_config(load_config(source), source / "config.json")
try:
    quantize(source, spec, ["a text"], Quantization("fp8", "bfloat16"), Workspace(Path(sys.argv[2])))
except BuilderError as error:
    print(error.render())
"""


def test_running_out_of_memory_is_told(smollm2: SmolLM2, out: Workspace, little_memory: Path) -> None:
    """The system kills the process that quantises, and not the one that waits for it."""
    enter = f'echo $$ > {little_memory}/cgroup.procs && exec "$@"'
    done = subprocess.run(
        ["sh", "-c", enter, "sh", sys.executable, "-c", IN_LITTLE_MEMORY, str(smollm2.folder), str(out.path)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "error[OUT_OF_MEMORY]: memory ran out while quantising" in done.stdout
    assert "The weights alone take 0.3 GB as bfloat16" in done.stdout


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    require_root("mount")
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize("export_format", ["tensorrt_llm", "hf"])
def test_a_full_disk_is_told(tiny: Path, full_disk: Path, export_format: str) -> None:
    with pytest.raises(HostError) as error:
        run_apart(tiny, Workspace(full_disk), export_format=export_format)
    assert error.value.code == "DISK_FULL"
    assert error.value.where == str(full_disk)


MANY_TEXTS = """
import sys
from pathlib import Path
from builder.checkpoint.quantize import Quantization, quantize
from builder.model.config import load_config
from builder.model.spec import ModelSpec
from builder.store import Workspace

source = Path(sys.argv[1])
spec = ModelSpec.from_config(load_config(source), source / "config.json")
quantize(source, spec, ["a text to run"] * 100_000, Quantization("fp8", "bfloat16"), Workspace(Path(sys.argv[2])))
"""


def test_a_killed_build_leaves_nothing_that_quantises(tiny: Path, out: Workspace) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", MANY_TEXTS, str(tiny), str(out.path)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    worker = _worker_of(parent.pid)
    time.sleep(2)  # it has been told its parent
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 30
    while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{worker}").exists()


def _worker_of(parent: int) -> int:
    """The child that runs the worker; between fork and exec it has the name of its parent."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            for child in children.read_text().split():
                if b"builder.checkpoint.modelopt" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
        time.sleep(0.1)
    raise AssertionError("it started no worker")
