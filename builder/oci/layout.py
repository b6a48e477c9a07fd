"""A repository in a directory: the OCI image layout.

    DIR/
      oci-layout                {"imageLayoutVersion": "1.0.0"}
      index.json                one descriptor per tag; the tag is its annotation org.opencontainers.image.ref.name
      index.json.lock           held while index.json is changed
      blobs/sha256/HEX          blobs and manifests; appear only whole (renamed into place)
      ingest/HEX                a blob that is being written, locked by its writer; swept up after a crash

Source: OCI image specification 1.1, image-layout.md.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO

from builder.errors import StorageError, disk_errors
from builder.oci.descriptor import INDEX, Descriptor
from builder.oci.manifest import MAX_MANIFEST_BYTES, Index, StoredManifest, canonical_json, parse_json_object
from builder.oci.reference import Reference
from builder.oci.stream import CHUNK_BYTES, Advance, ignore_progress, verified

REF_NAME = "org.opencontainers.image.ref.name"
_MARKER = b'{"imageLayoutVersion": "1.0.0"}'


class LayoutRepository:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.reference = Reference(layout=root)

    # reading

    def has_blob(self, descriptor: Descriptor) -> bool:
        try:
            return self._blob(descriptor.digest).stat().st_size == descriptor.size
        except FileNotFoundError:
            return False

    def open_blob(self, descriptor: Descriptor) -> Iterator[bytes]:
        path = self._blob(descriptor.digest)
        return verified(self._read(path, descriptor), descriptor, str(path))

    def get_manifest(self, target: str) -> StoredManifest | None:
        if ":" not in target:
            tagged = self._tagged().get(target)
            if tagged is None:
                return None
            target = tagged.digest
        path = self._blob(target)
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            return None
        if size > MAX_MANIFEST_BYTES:
            raise StorageError("this blob is too large for a manifest", where=path, why=f"{size} bytes")
        content = b"".join(self.open_blob(Descriptor("", target, size)))
        return StoredManifest.of(content, None, f"{self.reference}@{target}")

    def tags(self) -> list[str]:
        return sorted(self._tagged())

    # writing

    def put_blob(
        self,
        descriptor: Descriptor,
        open_chunks: Callable[[], Iterator[bytes]],
        advance: Advance = ignore_progress,
    ) -> None:
        with disk_errors(self.root):
            self._prepare()
            with self._ingest(descriptor.digest) as file:
                if self.has_blob(descriptor):
                    advance(descriptor.size)
                    return
                for chunk in verified(open_chunks(), descriptor, descriptor.digest):
                    file.write(chunk)
                    advance(len(chunk))
                file.flush()
                os.fsync(file.fileno())
                path = self._blob(descriptor.digest)
                Path(file.name).rename(path)
                _sync_directory(path.parent)

    def mount_blob(self, descriptor: Descriptor, source: Reference) -> bool:
        return False

    def put_manifest(self, content: bytes, media_type: str, target: str) -> None:
        descriptor = Descriptor.of(media_type, content)
        self.put_blob(descriptor, lambda: iter((content,)))
        if ":" in target:
            return
        with disk_errors(self.root), self._lock():
            kept = [entry for entry in self._index().manifests if entry.annotations.get(REF_NAME) != target]
            tagged = replace(descriptor, annotations={REF_NAME: target})
            self._write(self.root / "index.json", _index_bytes([*kept, tagged]))

    # the files

    def _blob(self, digest: str) -> Path:
        return self.root / "blobs" / "sha256" / digest.removeprefix("sha256:")

    def _read(self, path: Path, descriptor: Descriptor) -> Iterator[bytes]:
        try:
            _refuse_pipes(path)
            file = open(path, "rb", buffering=0)  # noqa: SIM115
        except FileNotFoundError as error:
            raise StorageError(
                f"the layout has no blob {descriptor.digest}",
                where=path,
                why="it is named by a manifest but isn't there",
                hint="publish into this directory again",
                code="BLOB_MISSING",
            ) from error
        except OSError as error:
            raise _unreadable(path, error) from error
        with file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk

    def _index(self) -> Index:
        path = self.root / "index.json"
        try:
            _refuse_pipes(path)
            with open(path, "rb") as file:
                content = file.read(MAX_MANIFEST_BYTES + 1)
        except FileNotFoundError:
            return Index(())
        except OSError as error:
            raise _unreadable(path, error) from error
        if len(content) > MAX_MANIFEST_BYTES:
            raise StorageError(
                "the index of the layout is too large", where=path, why=f"{MAX_MANIFEST_BYTES} bytes at most"
            )
        return Index.from_json(parse_json_object(content, str(path)), str(path))

    def _tagged(self) -> dict[str, Descriptor]:
        named = ((entry.annotations.get(REF_NAME), entry) for entry in self._index().manifests)
        return {name: entry for name, entry in named if name}

    def _prepare(self) -> None:
        """Make the folder a layout; one that holds other things is left alone."""
        marker = self.root / "oci-layout"
        if marker.exists():
            return
        if self.root.is_dir() and any(path.name not in _OWN for path in self.root.iterdir()):
            raise StorageError(
                "this folder isn't an OCI layout",
                where=self.root,
                why="it has other files and no oci-layout",
                hint="choose an empty or new folder",
                code="NOT_A_LAYOUT",
            )
        (self.root / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
        (self.root / "ingest").mkdir(exist_ok=True)
        with self._lock():
            if not marker.exists():
                self._write(self.root / "index.json", _index_bytes([]))
                self._write(marker, _MARKER)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        with open(self.root / "index.json.lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _ingest(self, digest: str) -> Iterator[IO[bytes]]:
        """An empty file, locked for the one who writes this blob; whatever was left by a crash is swept up first."""
        folder = self.root / "ingest"
        folder.mkdir(exist_ok=True)
        for leftover in folder.iterdir():
            with suppress(FileNotFoundError), open(leftover, "rb") as file, suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_still(leftover, file):
                    leftover.unlink()
        path = folder / digest.removeprefix("sha256:")
        while True:
            with open(path, "ab") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                if not _is_still(path, file):  # swept, or finished by another writer, while we waited
                    continue
                file.truncate(0)
                try:
                    yield file
                finally:
                    if _is_still(path, file):
                        path.unlink()
                return

    def _write(self, path: Path, content: bytes) -> None:
        partial = path.with_name(f".{path.name}.partial")
        with open(partial, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
        _sync_directory(path.parent)


_OWN = {"blobs", "ingest", "oci-layout", ".oci-layout.partial", "index.json", ".index.json.partial", "index.json.lock"}
"""What another writer may just be making while it turns the folder into a layout."""


def _index_bytes(manifests: list[Descriptor]) -> bytes:
    entries = [manifest.to_json() for manifest in manifests]
    return canonical_json({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries})


def _is_still(path: Path, file: IO[bytes]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refuse_pipes(path: Path) -> None:
    """OSError for what isn't a file: reading it may never end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it isn't a file", str(path))


def _unreadable(path: Path, error: OSError) -> StorageError:
    return StorageError("can't read a file of the layout", where=path, why=error.strerror, code="LAYOUT_UNREADABLE")
