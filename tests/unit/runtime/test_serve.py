import socket
import subprocess
import sys
from pathlib import Path

import pytest

from builder.errors import HostError
from builder.runtime.__main__ import main
from builder.runtime.bundle import Bundle
from builder.runtime.serve import serve


def test_a_port_in_use_is_explained_before_anything_starts(bundle: Bundle, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(HostError) as caught:
            serve(bundle.root, cache=tmp_path / "cache", host="127.0.0.1", port=port)
    assert caught.value.exit_code == 8
    assert caught.value.code == "PORT_IN_USE"
    assert str(port) in caught.value.message
    assert "NIM_SERVER_PORT" in str(caught.value.hint)
    assert not (tmp_path / "cache").exists()


def test_the_entry_point_prints_the_error_and_returns_its_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--root", str(tmp_path)], {}) == 7
    printed = capsys.readouterr().err
    assert "error[NO_BUNDLE]" in printed
    assert "Traceback" not in printed


ORPHANS = """
import os, subprocess, sys, time
from builder.runtime.serve import reap_orphans

own = subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])
orphan = os.fork()
if orphan == 0:
    os._exit(3)
while own.returncode is None or os.path.exists(f"/proc/{orphan}"):
    reap_orphans(own.pid, own.poll)
    time.sleep(0.01)
sys.exit(own.returncode)
"""


def test_orphans_are_collected_but_our_own_child_is_left_to_its_owner() -> None:
    """In a process of its own, since it would collect the children of other tests."""
    assert subprocess.run([sys.executable, "-c", ORPHANS], timeout=60).returncode == 7
