"""Plans that are remembered: what recipes and locks come to, until one of their files changes, or engine-builder does.

A plan is a function of the recipe's files, its lock and this program alone. STORE/plans/NAME.json holds it as a
`Record` with the digests of these files; NAME stands for the recipe and for where it was named from, since findings
quote the path. What an entry says is used only if every digest is still right.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from builder.store import LocalStore
from builder.store.files import open_file

Record = Mapping[str, Any]
"""{"units": [...], "stages": {DERIVATION: {"stage", "below", "inputs"}}}: plain JSON."""


_CLOCK_SECONDS = 0.05
"""More than the steps of the clock that file systems take their times from."""


def recall(recipe: Path, store: LocalStore) -> Record | None:
    """The plan of a recipe that was remembered, if it still holds."""
    try:
        with open(_entry(recipe, store), "rb") as file:
            entry = json.loads(file.read())
        if entry["program"] != program_digest():
            return None
        for name, digest in entry["files"].items():
            with open_file(Path(name)) as file:
                if hashlib.sha256(file.read()).hexdigest() != digest:
                    return None
        record: Record = entry["plan"]
        return record
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def remember(recipe: Path, files: Sequence[Path], started: float, plan: Record, store: LocalStore) -> None:
    """Keep the plan of a recipe that was read from `files` since `started` (seconds, as `time.time` counts).

    Nothing is kept where a file is so new that it may have been written after it was read, and in a store that can't be
    written.
    """
    target = Path(_entry(recipe, store))
    partial = target.with_name(f"{target.name}.{os.getpid()}")
    try:
        if any(file.stat().st_mtime > started - _CLOCK_SECONDS for file in files):
            return
        digests = {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
        text = json.dumps({"program": program_digest(), "files": digests, "plan": plan}, allow_nan=False)
        target.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text)
        partial.rename(target)
    except (OSError, ValueError):
        return


def _entry(recipe: Path, store: LocalStore) -> str:
    name = hashlib.sha256(f"{Path.cwd()}\0{recipe}".encode(errors="surrogateescape")).hexdigest()
    return f"{store.root}/plans/{name}.json"


@cache
def program_digest() -> str:
    """Changes with the version, and with every file of an installation that somebody works on."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256(str(root).encode())
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            found = os.stat(f"{folder}/{name}")
            digest.update(f"{folder}/{name} {found.st_size} {found.st_mtime_ns}\n".encode())
    return digest.hexdigest()
