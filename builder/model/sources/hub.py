"""A model on the Hugging Face Hub, through the Hub's own client and cache.

What is pinned is the commit, and of its files those that a build can need: weights, configuration, tokenizer.
Documentation, code and pickles are neither pinned nor downloaded. Large files (Git LFS) have their sha256 in the
Hub's metadata; small ones are downloaded to be hashed, and compared with their git ids.

Files lie in the Hub's cache (`HF_HUB_CACHE`), where the client puts each under its final name only when it is
whole. Nobody there checks contents, so we do, always. The token is the client's own affair (`HF_TOKEN`,
`hf auth login`); it never passes through here.
"""

from __future__ import annotations

import errno
import hashlib
import re
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants, hf_hub_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoSibling
from huggingface_hub.utils.tqdm import tqdm

from builder.errors import BuilderError, HostError, SourceError
from builder.model.snapshot import Snapshot, SnapshotFile, check_path, check_sha256, classify
from builder.model.sources import bad_source
from builder.model.sources.checks import Progress, difference, digest_of, drift, is_as_pinned, reading, refuse_traps
from builder.model.sources.listing import needed
from builder.store import DigestCache
from builder.store.digests import Advance, ignore_progress

_SOURCE = re.compile(r"hf://(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>.+))?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_PARALLEL_DOWNLOADS = 4
_REQUEST_SECONDS = 30


class HubSource:
    """`endpoint` and `cache_dir` default to the client's own (`HF_ENDPOINT`, `HF_HUB_CACHE`)."""

    def __init__(
        self,
        repo: str,
        revision: str,
        *,
        digests: DigestCache,
        endpoint: str | None = None,
        cache_dir: Path | None = None,
    ) -> None:
        self._repo = repo
        self._revision = revision
        self._digests = digests
        self._endpoint = endpoint or constants.ENDPOINT
        self._cache_dir = cache_dir

    @classmethod
    def parse(cls, source: str, revision: str | None, *, digests: DigestCache) -> HubSource:
        """From `hf://ORG/NAME` with the revision beside it, or `hf://ORG/NAME@REVISION`; "main" without one."""
        match = _SOURCE.fullmatch(source)
        if match is None:
            raise bad_source(source, "a model of the Hub is hf://ORG/NAME")
        if revision is not None and match["revision"] is not None:
            raise bad_source(source, "the revision is given twice", "keep it in `revision` only")
        return cls(match["repo"], revision or match["revision"] or "main", digests=digests)

    def resolve(self, advance: Advance) -> Snapshot:
        with self._hub_errors():
            info = HfApi(endpoint=self._endpoint).model_info(
                self._repo, revision=self._revision, files_metadata=True, timeout=_REQUEST_SECONDS
            )
        commit = self._check_commit(info.sha)
        listed = {check_path(entry.rfilename, where=self._where): entry for entry in info.siblings or ()}
        files = [self._pin(commit, listed[path], advance) for path in needed(listed, where=self._where)]
        return Snapshot(f"hf://{self._repo}", commit, tuple(files))

    def materialise(self, snapshot: Snapshot, advance: Advance) -> Path:
        """The commit's folder in the Hub's cache; its files are links into the cache's blobs."""
        commit = self._check_commit(snapshot.revision)
        stop = threading.Event()

        def fetch(file: SnapshotFile) -> Path:
            return self._fetch(commit, file, Progress(advance, file.size), stop)

        with ThreadPoolExecutor(_PARALLEL_DOWNLOADS) as pool:
            tasks = [pool.submit(fetch, file) for file in snapshot.files]
            try:
                for task in wait(tasks, return_when=FIRST_EXCEPTION).done:
                    task.result()
            except BaseException:
                stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return tasks[0].result()

    @property
    def _where(self) -> str:
        return f"{self._endpoint}/{self._repo} at {self._revision}"

    def _check_commit(self, commit: str | None) -> str:
        if commit is None or not _COMMIT.fullmatch(commit):
            raise SourceError(f"not a commit of a model: {commit!r}", where=self._where, code="BAD_SNAPSHOT")
        return commit

    def _pin(self, commit: str, entry: RepoSibling, advance: Advance) -> SnapshotFile:
        path = entry.rfilename
        if entry.lfs is not None:
            return SnapshotFile(path, entry.lfs.size, check_sha256(entry.lfs.sha256, where=self._where), classify(path))
        local = self._download(commit, path, advance, threading.Event()) / path
        if entry.blob_id not in (None, _git_blob_id(local)):
            _forget(local)
            local = self._download(commit, path, advance, threading.Event()) / path
        if entry.blob_id not in (None, _git_blob_id(local)):
            raise SourceError(f"{path} isn't the file that the Hub lists", where=self._where, code="SHA_MISMATCH")
        refuse_traps(local)
        digest = digest_of(local, self._digests, ignore_progress)
        return SnapshotFile(path, digest.size, digest.sha256, classify(path))

    def _fetch(self, commit: str, file: SnapshotFile, progress: Progress, stop: threading.Event) -> Path:
        folder = self._download(commit, file.path, progress, stop)
        if not is_as_pinned(folder, file, self._digests, progress):
            # The cache can have been damaged since: what isn't as pinned is forgotten and fetched anew, once.
            _forget(folder / file.path)
            folder = self._download(commit, file.path, progress, stop)
        if not is_as_pinned(folder, file, self._digests, progress):
            refuse_traps(folder / file.path)
            raise drift(self._where, [difference(folder, file, self._digests)])
        refuse_traps(folder / file.path)
        return folder

    def _download(self, commit: str, path: str, advance: Advance, stop: threading.Event) -> Path:
        """The folder of the commit in the cache, with this file in it. Asks nobody if it was there already."""

        class Bar(tqdm):
            """The client reports progress to bars only; this one is never drawn."""

            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **{**kwargs, "disable": True})  # type: ignore[no-untyped-call]

            def update(self, n: float | None = 1) -> bool | None:
                if stop.is_set():
                    raise InterruptedError(errno.EINTR, "another download failed or was interrupted")
                advance(int(n or 0))
                return None

        with self._hub_errors():
            local = hf_hub_download(
                self._repo,
                path,
                revision=commit,
                endpoint=self._endpoint,
                cache_dir=self._cache_dir,
                tqdm_class=Bar,
            )
        return Path(local).parents[path.count("/")]

    @contextmanager
    def _hub_errors(self) -> Iterator[None]:
        try:
            yield
        except (HfHubHTTPError, EntryNotFoundError, HFValidationError, OSError, RuntimeError, ValueError) as error:
            raise self._explain(error) from error
        except Exception as error:
            if _is_transport_error(error):
                raise self._explain(error) from error
            raise

    def _explain(self, error: Exception) -> BuilderError:
        """What the client's exception means for a user."""
        if isinstance(error, EntryNotFoundError) and isinstance(error.__cause__, Exception):
            error = error.__cause__  # "not in the cache either"; the reason is behind it
        page = f"{self._endpoint}/{self._repo}"

        def source_error(message: str, code: str, hint: str, why: str | None = None) -> SourceError:
            return SourceError(message, where=self._where, why=why or _first_line(error), hint=hint, code=code)

        match error:
            case GatedRepoError():
                return source_error(
                    f"access to {self._repo} must be asked for",
                    "GATED",
                    f"accept the licence at {page}, then log in with `hf auth login` or set HF_TOKEN",
                )
            case RepositoryNotFoundError():
                return source_error(
                    f"there is no model {self._repo}, or it is private",
                    "REPO_NOT_FOUND",
                    f"check the name at {page}; for a private model log in with `hf auth login` or set HF_TOKEN",
                )
            case RevisionNotFoundError():
                return source_error(
                    f"{self._repo} has no such revision",
                    "REVISION_NOT_FOUND",
                    f"see {page}/commits/main; a pinned commit that is gone needs `engine-builder lock --upgrade`",
                )
            case OfflineModeIsEnabled():
                return source_error(
                    f"{self._repo} isn't all in the Hub's cache, and HF_HUB_OFFLINE forbids to ask",
                    "NO_NETWORK",
                    "unset HF_HUB_OFFLINE for one run",
                )
            case HfHubHTTPError() if error.response.status_code in (401, 403):
                return source_error(
                    f"the Hub refused access to {self._repo}",
                    "UNAUTHORIZED",
                    "renew the token: `hf auth login`, or set HF_TOKEN",
                )
            case HfHubHTTPError():
                return source_error(
                    f"the Hub answered {error.response.status_code}",
                    "HUB_FAILED",
                    "try again later; see https://status.huggingface.co",
                )
            case OSError() if error.errno in (errno.ENOSPC, errno.EDQUOT):
                return HostError(
                    "the disk is full",
                    where=self._cache_dir or constants.HF_HUB_CACHE,
                    why=error.strerror,
                    hint="free some space, or move the Hub's cache with HF_HOME; the next run continues",
                    code="DISK_FULL",
                )
            case OSError() if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
                return HostError(
                    "can't write to the Hub's cache",
                    where=error.filename or self._cache_dir or constants.HF_HUB_CACHE,
                    why=error.strerror,
                    hint="choose a writable folder with HF_HOME",
                    code="NOT_WRITABLE",
                )
            case _ if _is_transport_error(error, "NetworkError", "TimeoutException", "ProxyError"):
                return source_error(
                    f"can't reach {self._endpoint}",
                    "NO_NETWORK",
                    "check the network and the proxy (HTTPS_PROXY); HF_ENDPOINT names a mirror",
                )
            case _:
                return source_error(
                    f"downloading {self._repo} failed",
                    "HUB_FAILED",
                    "try again; what came whole is kept",
                )


def _git_blob_id(path: Path) -> str:
    """The id under which git keeps this content; the Hub lists it for files that aren't in Git LFS."""
    with reading(path):
        content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0%s" % (len(content), content), usedforsecurity=False).hexdigest()


def _forget(path: Path) -> None:
    """Remove a file and the blob that it links to from the Hub's cache."""
    path.resolve().unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def _is_transport_error(error: Exception, *kinds: str) -> bool:
    """Whether it is an error of the client's HTTP library: httpx in huggingface_hub 1, httpx2 in 2, the same names."""
    names = {base.__name__ for base in type(error).__mro__}
    return not names.isdisjoint(kinds or ("HTTPError",))


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
