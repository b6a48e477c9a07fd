"""One repository of the Hugging Face Hub, through the Hub's own client: its listing, its files, beginnings of files.

Everything is asked for by commit, and every answer that names a commit, a digest or a size is compared with the
listing: files of two commits never mix. The token is the client's own affair (`HF_TOKEN`, `hf auth login`); it never
passes through here.
"""

from __future__ import annotations

import errno
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from huggingface_hub import HfApi, constants, hf_hub_download, hf_hub_url
from huggingface_hub.hf_api import RepoSibling
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]
from huggingface_hub.utils.tqdm import tqdm

from builder.errors import SourceError
from builder.model.sources.hub_errors import EXPECTED, explain, is_transport_error
from builder.model.sources.hub_session import patiently, session
from builder.model.sources.urls import without_credentials
from builder.store.digests import Advance

_COMMIT = re.compile(r"[0-9a-f]{40}")
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")
_REQUEST_SECONDS = 30


class HubRepository:
    """`endpoint` and `cache_dir` default to the client's own (`HF_ENDPOINT`, `HF_HUB_CACHE`)."""

    def __init__(
        self, name: str, kind: Literal["model", "dataset"], where: str, endpoint: str | None, cache_dir: Path | None
    ) -> None:
        self.name = name
        self.endpoint = endpoint or constants.ENDPOINT
        self._kind = kind
        self._where = f"{self.page} {where}"
        self._cache_dir = cache_dir

    @property
    def page(self) -> str:
        """Its address, to show."""
        kind = "datasets/" if self._kind == "dataset" else ""
        return f"{without_credentials(self.endpoint)}/{kind}{self.name}"

    def listing(self, revision: str) -> tuple[str, list[RepoSibling]]:
        """The commit that a branch, tag or commit names now, and its files with sizes and digests."""
        api = HfApi(endpoint=self.endpoint)
        ask = api.dataset_info if self._kind == "dataset" else api.model_info
        with self._explained():
            info = patiently(lambda: ask(self.name, revision=revision, files_metadata=True, timeout=_REQUEST_SECONDS))
        return self.check_commit(info.sha), list(info.siblings or ())

    def check_commit(self, commit: str | None) -> str:
        if commit is None or not _COMMIT.fullmatch(commit):
            raise SourceError(f"not a commit of a repository: {commit!r}", where=self._where, code="BAD_SNAPSHOT")
        return commit

    def download(self, commit: str, path: str, advance: Advance, stop: threading.Event) -> Path:
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

        with self._explained():
            session()
            local = hf_hub_download(
                self.name,
                path,
                repo_type=self._kind,
                revision=commit,
                endpoint=self.endpoint,
                cache_dir=self._cache_dir,
                tqdm_class=Bar,
            )
        folder = Path(local).parents[path.count("/")]
        if folder.name != commit:
            raise self._replaced(path, f"commit {commit} was asked for, {folder.name} came")
        return folder

    def read(self, commit: str, file: RepoSibling, begin: int, count: int) -> bytes:
        """`count` bytes of a file from `begin` on (fewer at its end), without the rest and without the cache."""
        url = hf_hub_url(self.name, file.rfilename, repo_type=self._kind, revision=commit, endpoint=self.endpoint)
        headers = {
            **build_hf_headers(),
            "Accept-Encoding": "identity",
            "Range": f"bytes={begin}-{begin + count - 1}",
        }

        def ask() -> bytes:
            with session().stream(
                "GET", url, headers=headers, timeout=_REQUEST_SECONDS, follow_redirects=True
            ) as response:
                if response.is_error:
                    response.read()
                hf_raise_for_status(response)
                self._check_identity(response, commit, file)
                skip = begin
                if response.status_code == 206:
                    given = _RANGE.fullmatch(response.headers.get("content-range", ""))
                    if not given or int(given[1]) != begin:
                        raise OSError(f"another range came than was asked for of {file.rfilename}")
                    if file.size is not None and int(given[2]) != file.size:
                        raise self._replaced(file.rfilename, f"{file.size} bytes are listed, it has {given[2]}")
                    skip = 0
                content = bytearray()
                for chunk in response.iter_raw():  # the whole file comes where ranges aren't understood
                    content += chunk
                    if len(content) >= skip + count:
                        break
                return bytes(content[skip : skip + count])

        with self._explained():
            return patiently(ask)

    def _check_identity(self, response: Any, commit: str, file: RepoSibling) -> None:
        """What the Hub says of a file on the way to its bytes must be what it listed."""
        sha256 = file.lfs.sha256 if file.lfs else None
        for hop in (*response.history, response):
            told = hop.headers.get("x-repo-commit", commit)
            if told != commit:
                raise self._replaced(file.rfilename, f"commit {commit} was asked for, {told} came")
            etag = hop.headers.get("x-linked-etag", "").removeprefix("W/").strip('"')
            if sha256 and len(etag) == len(sha256) and etag != sha256:
                raise self._replaced(file.rfilename, f"sha256 {sha256} is listed, it has {etag}")

    def _replaced(self, path: str, why: str) -> SourceError:
        return SourceError(
            f"{path} was replaced while it was looked at",
            where=self._where,
            why=why,
            hint="run it again; if it stays so, the server (HF_ENDPOINT) mixes commits",
            code="MOVED",
        )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except SourceError:
            raise
        except Exception as error:
            if not isinstance(error, EXPECTED) and not is_transport_error(error):
                raise
            raise explain(
                error,
                endpoint=without_credentials(self.endpoint),
                repo=self.name,
                page=self.page,
                where=self._where,
                cache_dir=self._cache_dir,
            ) from error
