"""What a stage may use besides its unit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.errors import SourceError
from builder.model.snapshot import FileKind
from builder.plan import Unit
from builder.store import Artifact, LocalStore, Workspace
from builder.store.digests import Advance


@dataclass(frozen=True)
class Context:
    """`inputs` are the artifacts of the stages below.

    `fetch` brings pinned model files of some kinds to this machine and returns their folder. `progress` takes a number
    of bytes and returns what is told as they are done. `facts` takes what is worth knowing of how the output was made.
    """

    workspace: Workspace
    inputs: Mapping[str, Artifact]
    facts: dict[str, Any]
    fetch: Callable[[tuple[FileKind, ...]], Path]
    progress: Callable[[int], Advance]
    store: LocalStore


def check_lock(unit: Unit, source: Path) -> None:
    """What was planned with must be what the model says: keys know the file's digest, not the lock's copy of it."""
    if unit.lock.copies_differ(source):
        raise SourceError(
            "the lock's copy of the model's configuration isn't what the model has",
            where=unit.recipe.lock_file,
            why="it was edited, or merged badly",
            hint="pin anew with `engine-builder lock --upgrade`",
            code="DRIFT",
        )
