"""Folders of our own cache that are made once, whole or not at all, by one process at a time."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from builder.errors import disk_errors


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """`folder`, after `make(empty folder)` filled it if it wasn't there.

        PARENT/NAME            exists only whole: flushed, then renamed into place
        PARENT/NAME.partial    left over only by a crash, and cleared by the next run
        PARENT/NAME.lock       held by the process that makes it; others wait, then find it made

    Raises HostError for a full or read-only disk.
    """
    if folder.is_dir():
        return folder
    partial = folder.with_name(f"{folder.name}.partial")
    with disk_errors(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with open(folder.with_name(f"{folder.name}.lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.is_dir():  # another process made it while we waited
                return folder
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            try:
                make(partial)
                _flush(partial)
                partial.rename(folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    return folder


def _flush(folder: Path) -> None:
    """To the disk before the rename makes it count, so that a power cut can't leave empty files that we trust."""
    for path in (*folder.iterdir(), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
