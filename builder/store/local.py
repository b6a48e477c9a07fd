"""The local store: a directory that holds the sealed output of every stage.

    STORE/
      artifacts/STAGE/KEY/          one artifact; exists only whole (renamed into place)
        files/…                     what the stage wrote, read-only
        manifest.json               {"stage", "key", "digest", "files": [{"path", "size", "sha256"}]}
        facts.json                  how it was made: duration, host, command; outside the digest
      derivations/STAGE/KEY         a text file: the content key under which the artifact lies, and its digest
      plans/…                       plans of recipes that haven't changed; see `builder.build.remembered`
      history/UNIT/STAGE.json       the inputs of the last build of that unit, to explain a miss
      work/STAGE-KEY[.sealed]/      a workspace; left over only by a crash, and cleared by the next run
      locks/STAGE-KEY               held by the process that builds this key
      digests.sqlite                digests of files in other caches (see `DigestCache`)

KEY of an artifact is its content key; see `builder.plan.keys`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from builder.errors import HostError, StorageError, disk_errors
from builder.store.digests import DigestCache, FileDigest, hash_file
from builder.store.files import write_atomically

_ELSEWHERE = "choose another store with --store"


def default_store_root() -> Path:
    """$ENGINE_BUILDER_STORE, or `engine-builder` in the XDG cache folder."""
    if configured := os.environ.get("ENGINE_BUILDER_STORE"):
        return Path(configured)
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return Path(cache).expanduser() / "engine-builder"
    except RuntimeError:
        raise HostError(
            "this user has no home folder", hint="say where artifacts go with --store or ENGINE_BUILDER_STORE"
        ) from None


@dataclass(frozen=True)
class FileEntry:
    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Artifact:
    """A sealed output of a stage. `digest` covers the names, sizes and contents of its files."""

    stage: str
    key: str
    digest: str
    root: Path
    entries: tuple[FileEntry, ...]

    @property
    def files(self) -> Path:
        return self.root / "files"

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.entries)

    @cached_property
    def facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads((self.root / "facts.json").read_text())
        return facts


@dataclass
class Workspace:
    """Where a stage writes. Digests that it computed on the way save the sealing a second read."""

    path: Path
    digests: dict[str, FileDigest] = field(default_factory=dict)

    def record(self, path: str, digest: FileDigest) -> None:
        self.digests[path] = digest


class LocalStore:
    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        # Plans ask thousands of times: joining text is much faster than joining paths.
        self._artifacts, self._derivations = f"{self.root}/artifacts/", f"{self.root}/derivations/"
        with disk_errors(self.root, _ELSEWHERE):
            self.root.mkdir(parents=True, exist_ok=True)

    @cached_property
    def digest_cache(self) -> DigestCache:
        return DigestCache(self.root / "digests.sqlite")

    # reading

    def get(self, stage: str, key: str) -> Artifact | None:
        """The artifact with this content key, or None."""
        name = f"{self._artifacts}{stage}/{key}/manifest.json"
        try:
            with open(name, "rb") as file:
                manifest = json.loads(file.read())
            root = self.root / "artifacts" / stage / key
            entries = tuple(FileEntry(**entry) for entry in manifest["files"])
            return Artifact(stage, key, manifest["digest"], root, entries)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(
                "the manifest of an artifact is damaged",
                where=name,
                why=f"{type(error).__name__}: {error}",
                hint="remove its folder and build again",
                code="ARTIFACT_DAMAGED",
            ) from error

    def find(self, stage: str, derivation: str) -> Artifact | None:
        """The artifact that this derivation key led to, or None."""
        note = self._note(stage, derivation)
        return self.get(stage, note[0]) if note else None

    def find_digest(self, stage: str, derivation: str) -> str | None:
        """The digest of that artifact, or None; what is in it isn't looked at."""
        note = self._note(stage, derivation)
        if note is None:
            return None
        if len(note) == 2:
            return note[1] if os.access(f"{self._artifacts}{stage}/{note[0]}/manifest.json", os.F_OK) else None
        artifact = self.get(stage, note[0])
        return artifact.digest if artifact else None

    def _note(self, stage: str, derivation: str) -> list[str] | None:
        try:
            with open(f"{self._derivations}{stage}/{derivation}", "rb") as file:
                return file.read().decode().split() or None
        except FileNotFoundError:
            return None

    def history(self, unit: str, stage: str) -> dict[str, Any] | None:
        """The inputs of the last build of this stage for this unit, or None."""
        try:
            inputs: dict[str, Any] = json.loads((self.root / "history" / unit / f"{stage}.json").read_text())
        except (FileNotFoundError, ValueError):
            return None
        return inputs

    # writing

    def remember(self, stage: str, derivation: str, artifact: Artifact) -> None:
        """Note that this derivation key leads to that artifact."""
        write_atomically(
            self.root / "derivations" / stage / derivation, f"{artifact.key} {artifact.digest}\n", _ELSEWHERE
        )

    def remember_inputs(self, unit: str, stage: str, inputs: Mapping[str, Any]) -> None:
        """Note what this stage was last built from for this unit; see `history`."""
        if self.history(unit, stage) != inputs:
            write_atomically(self.root / "history" / unit / f"{stage}.json", _dump(inputs), _ELSEWHERE)

    @contextmanager
    def building(self, stage: str, key: str) -> Iterator[Workspace]:
        """An empty workspace for this key, with the key's lock held; removed again unless sealed."""
        name = f"{stage}-{key}"
        path, sealed = self.root / "work" / name, self.root / "work" / f"{name}.sealed"

        def clear() -> None:
            for left in (path, sealed):
                shutil.rmtree(left, ignore_errors=True)

        with disk_errors(self.root, _ELSEWHERE), self._lock(name):
            try:  # from here on: an interruption may come as soon as there is a folder
                clear()
                path.mkdir(parents=True)
                yield Workspace(path)
            finally:
                clear()

    def seal(self, stage: str, key: str, workspace: Workspace, facts: Mapping[str, Any]) -> Artifact:
        """Turn a finished workspace into an artifact: manifest last, then one rename."""
        sealed = self.root / "work" / f"{stage}-{key}.sealed"
        sealed.mkdir()
        entries = []
        for path in sorted(workspace.path.rglob("*")):
            if path.is_dir() and not path.is_symlink():
                continue
            name = path.relative_to(workspace.path).as_posix()
            if path.is_symlink() or not path.is_file():
                raise StorageError("a stage may only write plain files", where=path)
            known = workspace.digests.get(name) or hash_file(path)
            if known.size != path.stat().st_size:
                raise StorageError(
                    "a file isn't as long as the stage said",
                    where=path,
                    why=f"{path.stat().st_size} bytes, expected {known.size}",
                )
            path.chmod(0o444)
            entries.append(FileEntry(name, known.size, known.sha256))
        digest = digest_of(entries)
        workspace.path.rename(sealed / "files")
        (sealed / "facts.json").write_text(_dump(facts))
        manifest = {"stage": stage, "key": key, "digest": digest, "files": [vars(entry) for entry in entries]}
        (sealed / "manifest.json").write_text(_dump(manifest))
        _sync_tree(sealed)
        target = self.root / "artifacts" / stage / key
        target.parent.mkdir(parents=True, exist_ok=True)
        sealed.rename(target)
        return Artifact(stage, key, digest, target, tuple(entries))

    def note(self, artifact: Artifact, facts: Mapping[str, Any]) -> None:
        """Add to what is known of an artifact: what was found out after it was made. Its digest stays as it is."""
        known = self.get(artifact.stage, artifact.key)
        if known is not None:
            with self._lock(f"{artifact.stage}-{artifact.key}"):
                path = known.root / "facts.json"
                write_atomically(path, _dump({**json.loads(path.read_text()), **facts}), _ELSEWHERE)

    @contextmanager
    def _lock(self, name: str) -> Iterator[None]:
        path = self.root / "locks" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def digest_of(entries: list[FileEntry]) -> str:
    """SHA-256 over the lines "SHA256  SIZE  PATH" sorted by path: anyone can recompute it."""
    lines = [f"{entry.sha256}  {entry.size}  {entry.path}\n" for entry in sorted(entries, key=lambda e: e.path)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _sync_tree(root: Path) -> None:
    """Flush a tree to disk before the rename makes it count, so that a power cut can't leave it empty."""
    for path in [root, *root.rglob("*")]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _dump(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=1, sort_keys=True) + "\n"
