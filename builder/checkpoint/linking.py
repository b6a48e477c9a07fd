"""A file in two places without copying its bytes."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from pathlib import Path

_FICLONE = 0x40049409
"""ioctl of Linux: both files share their blocks until one of them is written (btrfs, XFS, bcachefs)."""

_CANNOT = (errno.EXDEV, errno.EOPNOTSUPP, errno.EPERM, errno.EMLINK, errno.EINVAL, errno.ENOTTY, errno.EACCES)


def link_file(source: Path, target: Path, *, share: bool) -> None:
    """Make `target` hold what `source` holds: as a clone where the file system can, else as another name of the file.

    `share` allows that second name, which also shares later changes and permissions: for caches whose files never
    change, never for folders that someone edits. What can't be linked, on another file system for example, is copied.
    Raises OSError as copying does.
    """
    real = source.resolve()
    if _clone(real, target):
        return
    if share:
        try:
            os.link(real, target)
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
        else:
            return
    shutil.copyfile(real, target)


def _clone(source: Path, target: Path) -> bool:
    with open(source, "rb") as reader, open(target, "wb") as writer:
        try:
            fcntl.ioctl(writer.fileno(), _FICLONE, reader.fileno())
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
        else:
            return True
    target.unlink()
    return False
