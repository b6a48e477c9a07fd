"""Images, pinned by the digests of their index and of their manifest for each platform."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from builder import catalog
from builder.errors import SourceError, StorageError
from builder.lock.wanted import ImageUse
from builder.model.snapshot import whole_number
from builder.oci.reference import Reference

PYTHON_LABEL = "io.engine-builder.python"
PLATFORMS = ("linux/amd64", "linux/arm64")
_PARALLEL = 8
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class PlatformImage:
    """The image of one platform: the digest of its manifest, and how many (compressed) bytes a pull takes."""

    digest: str
    size: int


@dataclass(frozen=True)
class PinnedImage:
    """`index` is None where the reference names one image alone; `python` the version in it, such as "3.11".

    `python` is None where nothing is put on top of the image, so that nobody needs to know.
    """

    index: str | None
    platforms: Mapping[str, PlatformImage]
    python: str | None

    @property
    def top_digest(self) -> str:
        """What the reference names: the index, or the one image."""
        return self.index or next(iter(self.platforms.values())).digest

    def serves(self, use: ImageUse) -> bool:
        """Whether everything is known that a recipe needs of it."""
        return use.platforms <= self.platforms.keys() and (self.python is not None or not use.base)

    def to_json(self) -> dict[str, Any]:
        platforms = {name: vars(image) for name, image in self.platforms.items()}
        return {"index": self.index, "platforms": platforms, "python": self.python}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PinnedImage:
        """The opposite of `to_json`. Raises ValueError, KeyError or TypeError for anything else."""
        platforms = {
            name: PlatformImage(image["digest"], whole_number(image["size"]))
            for name, image in data["platforms"].items()
        }
        if not (platforms or data["index"]) or not (data["python"] is None or isinstance(data["python"], str)):
            raise ValueError("an image isn't written as it should be")
        digests = [image.digest for image in platforms.values()] + ([data["index"]] if data["index"] else [])
        if wrong := [digest for digest in digests if not _DIGEST.fullmatch(digest)]:
            raise ValueError(f"not a digest: {wrong[0]!r}")
        return cls(data["index"], platforms, data["python"])


def recipe_reference(name: str, folder: Path) -> Reference:
    """The reference that a recipe in `folder` writes: a layout is found relative to the recipe."""
    reference = Reference.parse(name)
    return replace(reference, layout=folder / reference.layout) if reference.layout else reference


def pin_images(uses: Mapping[str, ImageUse], folder: Path) -> dict[str, PinnedImage | SourceError]:
    """Ask the repositories, all at once, what they hold now; an error in place of what couldn't be pinned."""

    def ask(item: tuple[str, ImageUse]) -> PinnedImage | SourceError:
        try:
            return pin_image(*item, folder)
        except SourceError as error:
            return error

    if not uses:
        return {}
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(_PARALLEL) as pool:
        return dict(zip(uses, pool.map(ask, uses.items()), strict=True))


def pin_image(name: str, use: ImageUse, folder: Path) -> PinnedImage:
    """Ask the repository of an image what it holds now. Raises SourceError where it can't be read.

    Its message stays the same as long as the cause does, since a lock keeps it.
    """
    # A whole HTTP client, loaded only where an image is asked for.
    from builder.oci.client import BRIEF
    from builder.oci.repository import open_repository

    reference = recipe_reference(name, folder)
    try:
        return _read(name, use, open_repository(reference, BRIEF), reference.target or "latest")
    except StorageError as error:
        host = reference.host or "the layout"
        message = {
            "UNREACHABLE": f"no connection to {host}",
            "UNAUTHORIZED": f"{host} refuses to show it without other credentials",
            "RATE_LIMITED": f"{host} allows no more requests for now",
        }.get(error.code, error.message)
        raise SourceError(message, where=name, why=error.why, hint=error.hint, code=error.code) from error


def _read(name: str, use: ImageUse, repository: Any, target: str) -> PinnedImage:
    from builder.oci.descriptor import Platform
    from builder.oci.manifest import Index, Manifest
    from builder.oci.repository import read_json_blob

    def manifest_of(target: str) -> Any:
        stored = repository.get_manifest(target)
        if stored is None:
            raise SourceError(f"there is no image {name}", hint="check its name and tag", code="NOT_FOUND")
        return stored.descriptor.digest, stored.parse()

    digest, top = manifest_of(target)
    index, configs = None, []
    platforms: dict[str, PlatformImage] = {}
    if isinstance(top, Index):
        index, entries = digest, {}
        for entry in reversed(top.manifests):
            if entry.platform:
                entries[f"{entry.platform.os}/{entry.platform.architecture}"] = entry.digest
        found = [(platform, *manifest_of(entries[platform])) for platform in PLATFORMS if platform in entries]
        offered = sorted(entries)
    else:
        platform = Platform.from_json(read_json_blob(repository, top.config))
        offered = [f"{platform.os}/{platform.architecture}"]
        found = [(offered[0], digest, top)]
    for platform_name, digest, manifest in found:
        if not isinstance(manifest, Manifest):
            raise SourceError(f"the image {name} is an index inside an index", code="BAD_MANIFEST")
        size = manifest.config.size + sum(layer.size for layer in manifest.layers)
        platforms[platform_name] = PlatformImage(digest, size)
        configs.append(manifest.config)
    if missing := " and ".join(sorted(use.platforms - platforms.keys())):
        raise SourceError(
            f"the image {name} isn't for {missing}, but for {', '.join(offered) or 'nothing that it says'}",
            hint="name an image for the platform of the target",
            code="BASE_PLATFORM",
        )
    python = _python(read_json_blob(repository, configs[0]), name) if use.base else None
    return PinnedImage(index, platforms, python)


def _python(config: Mapping[str, Any], name: str) -> str:
    """From our label, or from PYTHON_VERSION as the official Python images set it, or as the catalog knows it."""
    settings = config.get("config") or {}
    environment = dict(entry.partition("=")[::2] for entry in settings.get("Env") or [])
    stated = (settings.get("Labels") or {}).get(PYTHON_LABEL) or environment.get("PYTHON_VERSION") or ""
    known = [
        chain.python for chain in catalog.toolchains().values() if name in (chain.serving_image, chain.build_image)
    ]
    for version in (stated, *known):
        if match := re.match(r"3\.\d+", version or ""):
            return match.group()
    raise SourceError(
        f"the base image {name} doesn't say which Python it has",
        hint=f'give it the label {PYTHON_LABEL}="3.11"',
        code="BASE_PYTHON",
    )
