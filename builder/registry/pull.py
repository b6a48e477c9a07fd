"""Pulling: an image of a release as a folder that can be served.

DESTINATION/               the bundle, whole or not there
  serving.json, models/, tokenizer/, engine/
  .pulled.json             {"reference", "digest", "unit", "roles", "files": {PATH: SIZE}}: what was pulled
.DESTINATION-HEX.partial/  an unfinished pull of the image HEX
  bundle/                  becomes DESTINATION by one rename
  done                     digests of the layers that are whole
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.errors import HostError, StorageError, disk_errors
from builder.image.index import unit_of
from builder.image.layer import BUNDLE_ROOT, ROLE
from builder.oci.descriptor import LAYER_TAR, Descriptor
from builder.oci.manifest import canonical_json
from builder.oci.reference import Reference
from builder.oci.repository import Connect, Repository, open_repository
from builder.oci.stream import Advance, ignore_progress
from builder.registry.release import choose_image, find_release, get_image_manifest
from builder.registry.transfer import for_each
from builder.registry.untar import unpack

SERVED_ROLES = ("repository", "engine")
_MARKER = ".pulled.json"


@dataclass(frozen=True)
class Pulled:
    """`fresh` is False where the folder was there already with this digest."""

    folder: Path
    reference: Reference
    digest: str
    unit: str
    fresh: bool


def pull(
    reference: Reference,
    destination: Path,
    *,
    unit: str | None = None,
    roles: Collection[str] = SERVED_ROLES,
    connect: Connect = open_repository,
    announce: Callable[[int], None] = ignore_progress,
    advance: Advance = ignore_progress,
) -> Pulled:
    """Unpack the layers with these roles of one image (see `choose_image` for `unit`) into a folder.

    `announce` is told once how many bytes `advance` will count up to. An interrupted pull goes on with the layers
    that are missing. Raises HostError "DESTINATION" if the folder holds anything else.
    """
    repository = connect(reference)
    release = find_release(repository, reference)
    image = choose_image(release, unit)
    destination = destination.absolute()
    marker = {
        "reference": str(release.reference.with_digest(image.digest)),
        "digest": image.digest,
        "unit": unit_of(image),
        "roles": sorted(roles),
    }
    result = (destination, release.reference, image.digest, unit_of(image))
    if _is_there(destination, marker):
        return Pulled(*result, fresh=False)
    layers = _layers(repository, image, roles)
    with disk_errors(destination), _partial(destination, image.digest) as partial:
        if _is_there(destination, marker):  # another process finished it while we waited
            shutil.rmtree(partial, ignore_errors=True)
            return Pulled(*result, fresh=False)
        done = _finished(partial)
        missing = [layer for layer in layers if layer.digest not in done]
        announce(sum(layer.size for layer in missing))
        for_each(missing, lambda layer, report: _unpack(repository, layer, partial, report), advance)
        bundle = partial / "bundle"
        bundle.joinpath(_MARKER).write_bytes(canonical_json(marker | {"files": _sizes(bundle)}))
        if destination.is_dir():
            destination.rmdir()  # an empty one
        (partial / "bundle").rename(destination)
        shutil.rmtree(partial, ignore_errors=True)  # one who waits for the lock may hold on to it
    return Pulled(*result, fresh=True)


def _layers(repository: Repository, image: Descriptor, roles: Collection[str]) -> list[Descriptor]:
    manifest = get_image_manifest(repository, image.digest)
    layers = [layer for layer in manifest.layers if layer.annotations.get(ROLE) in roles]
    where = f"{repository.reference}@{image.digest}"
    if not layers:
        found = sorted({layer.annotations.get(ROLE, "unknown") for layer in manifest.layers})
        raise StorageError(
            f"this image has no layer of {', '.join(sorted(roles))}",
            where=where,
            why=f"its layers are: {', '.join(found) or 'none'}",
            hint="is it a release of engine-builder?",
            code="NOT_A_RELEASE",
        )
    for layer in layers:
        if layer.media_type != LAYER_TAR:
            raise StorageError(
                "can't unpack this kind of layer", where=where, why=layer.media_type, code="NOT_A_RELEASE"
            )
    return layers


def _unpack(repository: Repository, layer: Descriptor, partial: Path, advance: Advance) -> None:
    def counted() -> Iterator[bytes]:
        for chunk in repository.open_blob(layer):
            yield chunk
            advance(len(chunk))

    unpack(counted(), BUNDLE_ROOT, partial / "bundle", f"{repository.reference}@{layer.digest}")
    with open(partial / "done", "a") as file:
        file.write(layer.digest + "\n")
        file.flush()
        os.fsync(file.fileno())


def _finished(partial: Path) -> set[str]:
    """Digests of whole layers; a line that a power cut left unfinished is none."""
    try:
        return set((partial / "done").read_text().splitlines())
    except FileNotFoundError:
        return set()


@contextmanager
def _partial(destination: Path, digest: str) -> Iterator[Path]:
    """The folder of this unfinished pull, locked: a second pull of the same waits, and then finds it done."""
    partial = destination.parent / f".{destination.name}-{digest.removeprefix('sha256:')[:16]}.partial"
    while (lock := _lock(partial)) is None:
        pass
    try:
        yield partial
    finally:
        os.close(lock)


def _lock(partial: Path) -> int | None:
    """The locked folder, opened; None if another process finished and removed it meanwhile."""
    partial.parent.mkdir(parents=True, exist_ok=True)
    try:
        partial.mkdir(exist_ok=True)
        (partial / "bundle").mkdir(exist_ok=True)
        lock = os.open(partial, os.O_RDONLY | os.O_DIRECTORY)
    except (FileExistsError, FileNotFoundError):
        return None
    fcntl.flock(lock, fcntl.LOCK_EX)
    with suppress(FileNotFoundError):
        if os.path.samestat(partial.stat(), os.fstat(lock)) and (partial / "bundle").is_dir():
            return lock
    os.close(lock)
    return None


def _sizes(bundle: Path) -> dict[str, int]:
    """Path → size of every file, but of the marker itself."""
    files = (path for path in bundle.rglob("*") if path.is_file() and path.name != _MARKER)
    return {path.relative_to(bundle).as_posix(): path.stat().st_size for path in files}


def _is_there(destination: Path, marker: dict[str, Any]) -> bool:
    """Whether the folder is this very pull; raises HostError if it is something else."""
    if not destination.exists() or (destination.is_dir() and not any(destination.iterdir())):
        return False
    try:
        found = json.loads((destination / _MARKER).read_text())
    except (OSError, ValueError):
        found = {}
    if found.get("digest") == marker["digest"] and found.get("roles") == marker["roles"]:
        if found.get("files") == _sizes(destination):
            return True
        raise HostError(
            "files of a pulled release are missing or changed",
            where=destination,
            hint="remove this folder and run it again",
            code="PULL_DAMAGED",
        )
    raise HostError(
        "the destination holds something else",
        where=destination,
        why=f"it is {found['reference']}" if "reference" in found else "it isn't a pulled release",
        hint="choose another folder, or remove this one",
        code="DESTINATION",
    )
