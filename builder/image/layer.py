"""A layer of an image: which files it has, and its digest. The bytes stay where they are until they are published."""

from __future__ import annotations

import base64
import hashlib
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.errors import StorageError, VerificationError
from builder.image.tar import Entry, link_leaves, tar_chunks
from builder.oci.descriptor import LAYER_TAR, Descriptor
from builder.oci.stream import Advance, ignore_progress
from builder.store import Artifact, LocalStore

ANNOTATIONS = "io.engine-builder."
ROLE = ANNOTATIONS + "layer"

BUNDLE_ROOT = "opt/engine-builder"
"""Where the served tree lies in an image."""


@dataclass(frozen=True)
class Layer:
    """`descriptor.digest` is the diff_id as well, since layers aren't compressed."""

    role: str
    entries: tuple[Entry, ...]
    descriptor: Descriptor

    @classmethod
    def pack(cls, role: str, entries: Iterable[Entry], advance: Advance = ignore_progress) -> Layer:
        """Read everything once to know the digest."""
        entries = tuple(sorted(entries, key=lambda entry: entry.path))
        digest = hashlib.sha256()
        size = 0
        for chunk in tar_chunks(entries):
            digest.update(chunk)
            size += len(chunk)
            advance(len(chunk))
        descriptor = Descriptor(LAYER_TAR, f"sha256:{digest.hexdigest()}", size, {ROLE: role})
        return cls(role, entries, descriptor)

    @classmethod
    def from_artifact(
        cls,
        role: str,
        artifact: Artifact,
        prefix: str = BUNDLE_ROOT,
        *,
        executable: Collection[str] = (),
        advance: Advance = ignore_progress,
    ) -> Layer:
        """All files of an artifact. A store keeps no permissions: `executable` names the files that may be executed,
        by their path in the artifact.
        """
        entries = (
            Entry(f"{prefix}/{file.path}", file.size, artifact.files / file.path, file.path in executable)
            for file in artifact.entries
        )
        return cls.pack(role, entries, advance)

    @classmethod
    def from_folder(
        cls, role: str, folder: Path, prefix: str = BUNDLE_ROOT, *, advance: Advance = ignore_progress
    ) -> Layer:
        """Everything below a folder, links included if they stay inside; owners' execute permissions are kept."""
        return cls.pack(role, _entries_below(folder, prefix), advance)

    def chunks(self) -> Iterator[bytes]:
        return tar_chunks(self.entries)

    def to_json(self, store: LocalStore) -> dict[str, Any]:
        """References into the store instead of the bytes: a few KB for an engine of many GB."""
        return {
            "role": self.role,
            "descriptor": self.descriptor.to_json(),
            "entries": [_entry_to_json(entry, store) for entry in self.entries],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], store: LocalStore) -> Layer:
        return cls(
            data["role"],
            tuple(_entry_from_json(entry, store) for entry in data["entries"]),
            Descriptor.from_json(data["descriptor"], "a layer of an image artifact"),
        )


def _entries_below(folder: Path, prefix: str) -> Iterator[Entry]:
    for directory, subfolders, names in os.walk(folder):
        links = [name for name in subfolders if (Path(directory) / name).is_symlink()]
        for name in [*names, *links]:
            path = Path(directory) / name
            relative = path.relative_to(folder).as_posix()
            status = path.lstat()
            if stat.S_ISLNK(status.st_mode):
                yield Entry(f"{prefix}/{relative}", link=_inner_link(path, relative))
            elif stat.S_ISREG(status.st_mode):
                yield Entry(f"{prefix}/{relative}", status.st_size, path, bool(status.st_mode & stat.S_IXUSR))
            else:
                raise _unfit(path, "only files, folders and links go into a layer")


def _inner_link(path: Path, relative: str) -> str:
    target = str(path.readlink())
    if link_leaves(relative, target):
        raise _unfit(path, f"the link to {target} leaves the folder")
    return target


def _unfit(path: Path, why: str) -> VerificationError:
    return VerificationError("this can't go into a layer", where=path, why=why, code="LAYER_CONTENT")


def _entry_to_json(entry: Entry, store: LocalStore) -> dict[str, Any]:
    data: dict[str, Any] = {"path": entry.path}
    if entry.executable:
        data["executable"] = True
    if entry.link is not None:
        return data | {"link": entry.link}
    if isinstance(entry.source, bytes):
        return data | {"base64": base64.b64encode(entry.source).decode()}
    try:
        stage, key, _, *path = entry.source.relative_to(store.root / "artifacts").parts
    except ValueError as error:
        raise StorageError(
            "an image can only refer to sealed artifacts",
            where=entry.source,
            why=f"it isn't in {store.root / 'artifacts'}",
            code="NOT_AN_ARTIFACT",
        ) from error
    return data | {"size": entry.size, "stage": stage, "key": key, "file": "/".join(path)}


def _entry_from_json(data: Mapping[str, Any], store: LocalStore) -> Entry:
    executable = data.get("executable", False)
    if "link" in data:
        return Entry(data["path"], link=data["link"])
    if "base64" in data:
        content = base64.b64decode(data["base64"])
        return Entry(data["path"], len(content), content, executable)
    source = store.root / "artifacts" / data["stage"] / data["key"] / "files" / data["file"]
    return Entry(data["path"], data["size"], source, executable)
