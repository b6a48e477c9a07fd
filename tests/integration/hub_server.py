"""A Hub-shaped HTTP server on localhost: what the real client asks of https://huggingface.co, with faults on demand.

It speaks the API of models and datasets (`/api/models/…`), file resolution with the Hub's headers, Git LFS files by
redirect to a content-addressed path, byte ranges, rate limits, and the Hub's error codes
(https://huggingface.co/docs/hub/api). Asked as a proxy (`GET http://host/path`), it answers as that host. Data sets
are repositories whose name begins with `datasets/`.
"""

from __future__ import annotations

import hashlib
import json
import re
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import unquote, urlsplit

import pytest

Fault = Literal["status-500", "cut-once", "cut-always", "other-bytes", "redirect-loop", "other-commit", "no-ranges"]
LFS = ("*.safetensors", "*.gguf", "*.bin", "*.parquet")

_API = re.compile(r"/api/(?:models/|(?P<kind>datasets/))(?P<repo>[^/]+/[^/]+)(?:/revision/(?P<revision>.+))?")
_RESOLVE = re.compile(r"/(?P<kind>datasets/)?(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)")


@dataclass
class Repository:
    """`commits` holds every version that was pushed; `main` is the last one."""

    gated: bool
    token: str | None
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    main: str = ""

    def commit_of(self, revision: str) -> str | None:
        commit = self.main if revision == "main" else revision
        return commit if commit in self.commits else None


class HubServer:
    """`requests` are "METHOD /path" in the order in which they came; `faults` maps a path's end to what goes wrong.

    `limits` maps a path's end to [seconds that Retry-After says, how many times still]; `after_listing` is called
    when a listing was sent. Whoever sends one of `members` may read gated repositories.
    """

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.cdn = endpoint.replace("127.0.0.1", "localhost")  # another host for the client, as the Hub's is
        self.requests: list[str] = []
        self.faults: dict[str, Fault] = {}
        self.limits: dict[str, list[int]] = {}
        self.after_listing: Callable[[], object] = lambda: None
        self.members = {"hf_member"}
        self.authorized: list[str] = []
        self.bytes_sent: dict[str, int] = {}
        self.cuts = 0
        self._repositories: dict[str, Repository] = {}

    def push(self, repo: str, files: dict[str, bytes], *, gated: bool = False, token: str | None = None) -> str:
        """A new commit with exactly these files, on `main`; returns its sha. With `token` the repo is private."""
        repository = self._repositories.setdefault(repo, Repository(gated, token))
        listing = "".join(f"{path} {hashlib.sha1(content).hexdigest()}\n" for path, content in sorted(files.items()))
        commit = hashlib.sha1(f"{repository.main}\n{listing}".encode()).hexdigest()
        repository.commits[commit] = files
        repository.main = commit
        return commit

    def forget(self, repo: str, commit: str) -> None:
        """As if history was rewritten: this commit is gone."""
        del self._repositories[repo].commits[commit]

    def replace(self, repo: str, path: str, content: bytes) -> None:
        """Other content under the same name and commit, as no Hub should do."""
        for files in self._repositories[repo].commits.values():
            files[path] = content

    def limit(self, path: str) -> int | None:
        """Seconds to wait before this path is asked for again; None for no limit now."""
        for end, limit in self.limits.items():
            if path.endswith(end) and limit[1] > 0:
                limit[1] -= 1
                return limit[0]
        return None

    def repository(self, repo: str) -> Repository | None:
        return self._repositories.get(repo)

    def content(self, sha256: str) -> bytes:
        blobs = (
            blob
            for repository in self._repositories.values()
            for files in repository.commits.values()
            for blob in files.values()
        )
        return next(blob for blob in blobs if hashlib.sha256(blob).hexdigest() == sha256)

    def fault(self, path: str) -> Fault | None:
        return next((fault for end, fault in self.faults.items() if path.endswith(end)), None)

    def first_cut(self) -> bool:
        """True once."""
        self.cuts += 1
        return self.cuts == 1

    def downloads(self, path: str) -> int:
        """How many times the bytes of a file were asked for; LFS files are asked for by redirect."""
        return sum(request.startswith("GET") and request.endswith(f"/{path}") for request in self.requests)


def is_lfs(path: str) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in LFS)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: HubServer

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        if "authorization" in self.headers:
            self.hub.authorized.append(path)
        fault = self.hub.fault(path)
        if (seconds := self.hub.limit(path)) is not None:
            self._send(429, b"", {"Retry-After": str(seconds)})
        elif fault == "status-500":
            self._send(500, b"something broke")
        elif fault == "redirect-loop":
            self._send(307, b"", {"Location": self.path})
        elif match := _API.fullmatch(path):
            self._info((match["kind"] or "") + match["repo"], match["revision"] or "main")
            self.hub.after_listing()
        elif match := _RESOLVE.fullmatch(path):
            self._resolve((match["kind"] or "") + match["repo"], match["revision"], match["path"])
        elif path.startswith("/cdn/"):
            self._send_file(self.hub.content(path.split("/")[2]), fault, {})
        else:
            self._send(404, b"")

    def _info(self, repo: str, revision: str) -> None:
        found = self._commit(repo, revision)
        if found is None:
            return
        repository, commit = found
        siblings = [self._sibling(path, content) for path, content in sorted(repository.commits[commit].items())]
        name = repo.removeprefix("datasets/")
        info = {"_id": "1", "id": name, "modelId": name, "sha": commit, "private": False, "siblings": siblings}
        self._send(200, json.dumps({**info, "gated": "manual" if repository.gated else False}).encode())

    def _sibling(self, path: str, content: bytes) -> dict[str, object]:
        sibling: dict[str, object] = {"rfilename": path, "size": len(content), "blobId": _git_id(content)}
        if is_lfs(path):
            sha256 = hashlib.sha256(content).hexdigest()
            sibling["lfs"] = {"sha256": sha256, "size": len(content), "pointerSize": 134}
        return sibling

    def _resolve(self, repo: str, revision: str, path: str) -> None:
        found = self._commit(repo, revision)
        if found is None:
            return
        repository, commit = found
        headers = {"X-Repo-Commit": "0" * 40 if self.hub.fault(path) == "other-commit" else commit}
        token = self.headers.get("authorization", "").removeprefix("Bearer ")
        if repository.gated and token not in self.hub.members:
            message = f"Access to model {repo} is restricted. You must have access to it and be authenticated."
            status = 403 if token else 401
            self._send(status, b"", {**headers, "X-Error-Code": "GatedRepo", "X-Error-Message": message})
            return
        content = repository.commits[commit].get(path)
        if content is None:
            self._send(404, b"", {**headers, "X-Error-Code": "EntryNotFound"})
            return
        if is_lfs(path):
            sha256 = hashlib.sha256(content).hexdigest()
            headers |= {"X-Linked-Etag": f'"{sha256}"', "X-Linked-Size": str(len(content))}
            self._send(302, b"", {**headers, "Location": f"{self.hub.cdn}/cdn/{sha256}/{path}"})
            return
        self._send_file(content, self.hub.fault(path), {**headers, "ETag": f'"{_git_id(content)}"'})

    def _commit(self, repo: str, revision: str) -> tuple[Repository, str] | None:
        """The repository and commit asked for; answers with the Hub's error and gives None if there are none."""
        repository = self.hub.repository(repo)
        authorization = self.headers.get("authorization")
        if authorization == "Bearer hf_expired":
            message = "Invalid credentials in Authorization header"
            self._send(401, b"", {"X-Error-Message": message})
        elif repository is None or (repository.token and authorization != f"Bearer {repository.token}"):
            # The Hub tells strangers neither that a private repository exists nor that it doesn't.
            self._send(401, b"", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
        elif (commit := repository.commit_of(revision)) is None:
            self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        else:
            return repository, commit
        return None

    def _send_file(self, content: bytes, fault: Fault | None, headers: dict[str, str]) -> None:
        """The content or the range asked for. A cut sends half of what it promised, then closes the connection."""
        if fault == "other-bytes":
            content = bytes(byte ^ 1 for byte in content)
        status, begin, end = 200, 0, len(content)
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range", ""))
        if asked and fault != "no-ranges":
            status, begin = 206, int(asked[1])
            end = min(end, int(asked[2]) + 1) if asked[2] else end
            headers = {**headers, "Content-Range": f"bytes {begin}-{end - 1}/{len(content)}"}
        cut = self.command == "GET" and (fault == "cut-always" or (fault == "cut-once" and self.hub.first_cut()))
        sent = content[begin : max(begin, len(content) // 2)] if cut else content[begin:end]
        self._send(status, sent, {"Accept-Ranges": "bytes", **headers}, promised=end - begin)
        self.close_connection = cut

    def _send(
        self, status: int, body: bytes, headers: dict[str, str] | None = None, *, promised: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if promised is None else promised))
        self.end_headers()
        if self.command == "GET":
            name = urlsplit(self.path).path.rpartition("/")[2]
            self.hub.bytes_sent[name] = self.hub.bytes_sent.get(name, 0) + len(body)
            self.wfile.write(body)


def _git_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0%s" % (len(content), content)).hexdigest()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is none."""


@contextmanager
def running_hub(tls: ssl.SSLContext | None = None) -> Iterator[HubServer]:
    """A server of its own on a free port, for as long as the block runs."""
    handler = type("Handler", (_Handler,), {})
    with _Server(("127.0.0.1", 0), handler) as server:
        if tls:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        hub = handler.hub = HubServer(f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with running_hub() as server:
        yield server
