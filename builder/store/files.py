"""Small files that are whole or not there, and files of other people, which may be anything."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import IO

from builder.errors import disk_errors


def open_file(path: Path) -> IO[bytes]:
    """A file for reading. Raises OSError, also for a folder, and for pipes and devices, which may never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it isn't a file but a pipe, a socket or a device", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def write_atomically(path: Path, text: str, elsewhere: str = "choose another folder") -> None:
    """Write a text file beside `path` and rename it into place; `elsewhere` is what a full disk's error advises."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    with disk_errors(path, elsewhere):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            partial.write_text(text)
            partial.rename(path)
        finally:
            partial.unlink(missing_ok=True)
