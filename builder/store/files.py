"""Small files that are whole or not there."""

from __future__ import annotations

import os
from pathlib import Path

from builder.errors import disk_errors


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
