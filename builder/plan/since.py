"""Recipes and locks as they were at a git revision, to compare plans."""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from builder.errors import UsageError
from builder.plan.keys import StagePlan, difference

_FILES = (":(top,glob)**/*.yaml", ":(top,glob)**/*.yml", ":(top,glob)**/*.lock.json")


Stages = Mapping[str, StagePlan]


@dataclass(frozen=True)
class Comparison:
    """Units that are new, gone, or have a stage with another key; for the latter, what changed, stage by stage."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: Mapping[str, Mapping[str, tuple[str, ...]]]

    @property
    def affected(self) -> frozenset[str]:
        return frozenset(self.added) | frozenset(self.changed)


def compare(before: Mapping[str, Stages], now: Mapping[str, Stages]) -> Comparison:
    """Which units a change of recipes and locks affects: units by id, with their stages. Nothing needs to be built."""
    changed: dict[str, dict[str, tuple[str, ...]]] = {}
    for name in now.keys() & before.keys():
        stages = {}
        for stage, plan in now[name].items():
            was = before[name].get(stage)
            if was is None or was.derivation != plan.derivation:
                stages[stage] = tuple(difference(was.inputs, plan.inputs)) if was else ("new stage",)
        if stages:
            changed[name] = stages
    return Comparison(
        added=tuple(name for name in now if name not in before),
        removed=tuple(name for name in before if name not in now),
        changed={name: changed[name] for name in now if name in changed},
    )


@contextmanager
def checked_out(path: Path, revision: str) -> Iterator[Path]:
    """`path` (a recipe or a folder of recipes) as it was at a revision; it may not have existed then.

    Only recipes and locks are taken out of the repository. Raises UsageError where git can't tell.
    """
    folder = path if path.is_dir() else path.parent
    top = Path(_git(folder, "rev-parse", "--show-toplevel").decode().rstrip("\n"))
    commit = _git(folder, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}").decode().strip()
    listed = _git(folder, "ls-tree", "-r", "--name-only", "-z", "--full-tree", commit).decode().split("\0")
    wanted = [name for name in listed if name.endswith((".yaml", ".yml", ".lock.json"))]
    with TemporaryDirectory(prefix="engine-builder-since-") as temporary:
        root = Path(temporary)
        if wanted:
            archive = _git(top, "archive", "--format=tar", commit, "--", *_patterns(wanted))
            with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
                tar.extractall(root, filter="data")
        yield root / path.resolve().relative_to(top.resolve())


def _patterns(wanted: list[str]) -> list[str]:
    """Of the pathspecs only those that match something: git refuses the others."""
    suffixes = {".yaml": _FILES[0], ".yml": _FILES[1], ".lock.json": _FILES[2]}
    return [pattern for suffix, pattern in suffixes.items() if any(name.endswith(suffix) for name in wanted)]


def _git(folder: Path, *arguments: str) -> bytes:
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, check=False)  # noqa: S607
    except FileNotFoundError:
        raise UsageError("git isn't installed", hint="--since compares with a git revision", code="GIT") from None
    except NotADirectoryError:
        raise UsageError("there is no such folder", where=folder, code="GIT") from None
    if done.returncode:
        raise UsageError(
            "git can't find the revision to compare with",
            where=folder,
            why=done.stderr.decode(errors="replace").strip().partition("\n")[0],
            hint="--since takes a branch, tag or commit of the recipes' repository; in CI fetch its history",
            code="GIT",
        )
    return done.stdout
