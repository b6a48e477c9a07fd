"""A model, an adapter or texts on the Hugging Face Hub, through the Hub's own client and cache.

What is pinned is the commit, and of its files those that a build can need. Documentation, code, pickles and further
copies of the weights are neither pinned nor downloaded. Large files (Git LFS) have their sha256 in the Hub's metadata;
small ones are downloaded to be hashed, and compared with their git ids. Of weights only the headers are read.

Files lie in the Hub's cache (`HF_HUB_CACHE`), where the client puts each under its final name only when it is
whole. Nobody there checks contents, so we do, always.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TypeVar

from huggingface_hub.hf_api import RepoSibling

from builder.errors import SourceError
from builder.model.files import lfs_pointer
from builder.model.safetensors import PREFIX_BYTES, TensorIndex, TensorInfo, header_bytes, parse_header
from builder.model.snapshot import Snapshot, SnapshotFile, check_path, check_sha256
from builder.model.sources import bad_source
from builder.model.sources.checks import Progress, difference, digest_of, drift, is_as_pinned, reading, refuse_traps
from builder.model.sources.hub_repository import HubRepository
from builder.model.sources.listing import Content, kind_of, needed
from builder.model.weight_files import INDEX_FILE, read_index
from builder.store import DigestCache
from builder.store.digests import Advance, ignore_progress

_SOURCE = re.compile(r"hf://(?P<datasets>datasets/)?(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>.+))?", re.ASCII)
_PARALLEL = 4
_FIRST_READ_BYTES = 64 << 10
"""Most headers are shorter, and come with one request."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class HubSource:
    """`endpoint` and `cache_dir` default to the client's own (`HF_ENDPOINT`, `HF_HUB_CACHE`)."""

    def __init__(
        self,
        repo: str,
        revision: str,
        *,
        digests: DigestCache,
        content: Content = "model",
        endpoint: str | None = None,
        cache_dir: Path | None = None,
    ) -> None:
        self._revision = revision
        self._digests = digests
        self._content = content
        self._repository = HubRepository(
            repo, "dataset" if content == "dataset" else "model", f"at {revision}", endpoint, cache_dir
        )
        self._where = f"{self._repository.page} at {revision}"
        self._listed: tuple[str, dict[str, RepoSibling]] | None = None

    @classmethod
    def parse(cls, source: str, revision: str | None, *, digests: DigestCache, content: Content = "model") -> HubSource:
        """From `hf://ORG/NAME` with the revision beside it, or `hf://ORG/NAME@REVISION`; "main" without one.

        Texts are `hf://datasets/ORG/NAME`.
        """
        match = _SOURCE.fullmatch(source)
        if match is None or (match["datasets"] is not None) != (content == "dataset"):
            what = (
                "texts of the Hub are hf://datasets/ORG/NAME"
                if content == "dataset"
                else "a model of the Hub is hf://ORG/NAME"
            )
            raise bad_source(source, what)
        if revision is not None and match["revision"] is not None:
            raise bad_source(source, "the revision is given twice", "keep it in `revision` only")
        return cls(match["repo"], revision or match["revision"] or "main", digests=digests, content=content)

    def resolve(self, advance: Advance) -> Snapshot:
        commit, listed = self._listing(self._revision)

        def weight_map() -> dict[str, str]:
            return self._weight_map(commit)

        paths = needed(listed, self._content, weight_map, where=self._where)
        files = _all_at_once(lambda path: self._pin(commit, listed[path], advance), paths)
        kind = "datasets/" if self._content == "dataset" else ""
        return Snapshot(f"hf://{kind}{self._repository.name}", commit, tuple(files))

    def tensors(self, snapshot: Snapshot) -> TensorIndex:
        commit, listed = self._listing(snapshot.revision)
        weights = [file.path for file in snapshot.of_kind("weights") if file.path != INDEX_FILE]
        headers = dict(
            zip(weights, _all_at_once(lambda path: self._header(commit, listed[path]), weights), strict=True)
        )
        if any(file.path == INDEX_FILE for file in snapshot.files):
            return TensorIndex.joined(headers, self._weight_map(commit), self._where)
        return TensorIndex({name: info for header in headers.values() for name, info in header.items()})

    def materialise(self, snapshot: Snapshot, advance: Advance) -> Path:
        """The commit's folder in the Hub's cache; its files are links into the cache's blobs."""
        commit = self._repository.check_commit(snapshot.revision)
        stop = threading.Event()

        def fetch(file: SnapshotFile) -> Path:
            return self._fetch(commit, file, Progress(advance, file.size), stop)

        return _all_at_once(fetch, snapshot.files, stop)[0]

    def _listing(self, revision: str) -> tuple[str, dict[str, RepoSibling]]:
        """What the Hub lists at a revision; asked once for a commit."""
        if self._listed is None or self._listed[0] != revision:
            commit, entries = self._repository.listing(revision)
            self._listed = commit, {check_path(entry.rfilename, where=self._where): entry for entry in entries}
        return self._listed

    def _weight_map(self, commit: str) -> dict[str, str]:
        path = self._repository.download(commit, INDEX_FILE, ignore_progress, threading.Event()) / INDEX_FILE
        refuse_traps(path, "weights")
        return read_index(path, self._where)

    def _header(self, commit: str, entry: RepoSibling) -> dict[str, TensorInfo]:
        """The tensors of a weight file, from its first bytes alone."""
        size, name = entry.size or 0, Path(entry.rfilename)
        begin = self._repository.read(commit, entry, 0, min(_FIRST_READ_BYTES, size or 1))
        if pointer := lfs_pointer(begin, name):
            raise pointer
        count = header_bytes(begin[:PREFIX_BYTES], size, name)
        header = begin[PREFIX_BYTES : PREFIX_BYTES + count]
        if (missing := count - len(header)) > 0:
            header += self._repository.read(commit, entry, PREFIX_BYTES + len(header), missing)
        return parse_header(header, size, name)

    def _pin(self, commit: str, entry: RepoSibling, advance: Advance) -> SnapshotFile:
        path, kind = entry.rfilename, kind_of(entry.rfilename, self._content)
        if entry.lfs is not None:
            return SnapshotFile(path, entry.lfs.size, check_sha256(entry.lfs.sha256, where=self._where), kind)
        stop = threading.Event()
        local = self._repository.download(commit, path, advance, stop) / path
        if entry.blob_id not in (None, _git_blob_id(local)):
            _forget(local)
            local = self._repository.download(commit, path, advance, stop) / path
        if entry.blob_id not in (None, _git_blob_id(local)):
            raise SourceError(f"{path} isn't the file that the Hub lists", where=self._where, code="SHA_MISMATCH")
        refuse_traps(local, kind)
        digest = digest_of(local, self._digests, ignore_progress)
        return SnapshotFile(path, digest.size, digest.sha256, kind)

    def _fetch(self, commit: str, file: SnapshotFile, progress: Progress, stop: threading.Event) -> Path:
        folder = self._repository.download(commit, file.path, progress, stop)
        if not is_as_pinned(folder, file, self._digests, progress):
            # The cache can have been damaged since: what isn't as pinned is forgotten and fetched anew, once.
            _forget(folder / file.path)
            folder = self._repository.download(commit, file.path, progress, stop)
        if not is_as_pinned(folder, file, self._digests, progress):
            refuse_traps(folder / file.path, file.kind)
            raise drift(self._where, [difference(folder, file, self._digests)])
        refuse_traps(folder / file.path, file.kind)
        return folder


def _all_at_once(
    work: Callable[[Item], Result], items: Iterable[Item], stop: threading.Event | None = None
) -> list[Result]:
    """`work` of every item, some at a time; the first failure ends it, and sets `stop`."""
    with ThreadPoolExecutor(_PARALLEL) as pool:
        tasks = [pool.submit(work, item) for item in items]
        try:
            for task in wait(tasks, return_when=FIRST_EXCEPTION).done:
                task.result()
        except BaseException:
            if stop:
                stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [task.result() for task in tasks]


def _git_blob_id(path: Path) -> str:
    """The id under which git keeps this content; the Hub lists it for files that aren't in Git LFS."""
    with reading(path):
        content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0%s" % (len(content), content), usedforsecurity=False).hexdigest()


def _forget(path: Path) -> None:
    """Remove a file and the blob that it links to from the Hub's cache."""
    path.resolve().unlink(missing_ok=True)
    path.unlink(missing_ok=True)
