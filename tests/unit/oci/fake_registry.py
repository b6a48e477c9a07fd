"""A registry in memory behind `httpx.MockTransport`: what no real one does on command (tokens that end, broken
connections, odd headers) is switched on by the test.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx

from builder.oci.descriptor import sha256_digest

Interference = Callable[[httpx.Request], httpx.Response | Exception | None]


def no_interference(request: httpx.Request) -> None:
    return None


def serving(handler: Callable[[httpx.Request], httpx.Response]) -> httpx.MockTransport:
    """A mock transport whose bodies arrive as streams, as they do from a network."""

    def stream(request: httpx.Request) -> httpx.Response:
        response = handler(request)
        body = httpx.ByteStream(response.content) if response.is_stream_consumed else response.stream
        return httpx.Response(response.status_code, headers=response.headers, stream=body)

    return httpx.MockTransport(stream)


@dataclass
class FakeRegistry:
    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, tuple[str, bytes]] = field(default_factory=dict)  # by digest: media type, content
    tagged: dict[str, str] = field(default_factory=dict)
    uploads: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    authorizations: list[str | None] = field(default_factory=list)
    interfere: Interference = no_interference
    location_base: str = ""
    """Put before the path of a Location: none for relative ones."""
    token_lasts_requests: int | None = None
    """With a number, every request needs a token, and each token is good for so many."""
    token_queries: list[httpx.QueryParams] = field(default_factory=list)
    tags_per_page: int = 100
    _token_uses: int = 0

    @property
    def transport(self) -> httpx.MockTransport:
        return serving(self._handle)

    def count(self, start: str) -> int:
        return sum(request.startswith(start) for request in self.requests)

    def _handle(self, request: httpx.Request) -> httpx.Response:
        request.read()
        self.requests.append(f"{request.method} {request.url.raw_path.decode()}")
        self.authorizations.append(request.headers.get("authorization"))
        if request.url.path == "/token":
            return self._token(request)
        if isinstance(answer := self.interfere(request), Exception):
            raise answer
        if answer is not None:
            return answer
        if self.token_lasts_requests is not None and request.url.host == "registry.test":
            repository = request.url.path.removeprefix("/v2/").split("/blobs/")[0].split("/manifests/")[0]
            scope = f"repository:{repository}:{'pull' if request.method in ('GET', 'HEAD') else 'pull,push'}"
            if not self._authorized(request, scope):
                challenge = f'Bearer realm="https://auth.test/token",service="fake",scope="{scope}"'
                return httpx.Response(401, headers={"WWW-Authenticate": challenge})
        return self._serve(request)

    def _token(self, request: httpx.Request) -> httpx.Response:
        form = httpx.QueryParams(request.content.decode())
        self.token_queries.append(form if request.method == "POST" else request.url.params)
        self._token_uses = 0
        return httpx.Response(200, json={"token": f"token{len(self.token_queries)}", "expires_in": 3600})

    def _authorized(self, request: httpx.Request, scope: str) -> bool:
        current = request.headers.get("authorization") == f"Bearer token{len(self.token_queries)}"
        granted = any(got.startswith(scope) for got in self.token_queries[-1].get_list("scope")) if current else False
        self._token_uses += 1
        return granted and self._token_uses <= (self.token_lasts_requests or 0)

    def _serve(self, request: httpx.Request) -> httpx.Response:
        method, path, query = request.method, request.url.path, request.url.params
        if path.endswith("/tags/list"):
            return self._tags(path, query)
        if match := re.fullmatch(r"/v2/.+/manifests/(.+)", path):
            return self._manifest(method, match[1], request)
        if re.fullmatch(r"/v2/.+/blobs/uploads/", path) and method == "POST":
            if (mounted := query.get("mount", "")) in self.blobs:
                return httpx.Response(201, headers={"Location": f"/v2/blobs/{mounted}"})
            session = f"session{len(self.requests)}"
            self.uploads[session] = b""
            return self._session(202, path, session)
        if match := re.fullmatch(r"(/v2/.+/blobs/uploads/)(.+)", path):
            return self._upload(method, match[1], match[2], query, request)
        return self._blob(method, path.rsplit("/", 1)[1], request)

    def _tags(self, path: str, query: httpx.QueryParams) -> httpx.Response:
        names = sorted(name for name in self.tagged if name > query.get("last", ""))
        page, rest = names[: self.tags_per_page], names[self.tags_per_page :]
        headers = {"Link": f'<{self.location_base}{path}?last={page[-1]}>; rel="next"'} if rest else {}
        return httpx.Response(200, json={"tags": page}, headers=headers)

    def _manifest(self, method: str, target: str, request: httpx.Request) -> httpx.Response:
        if method == "PUT":
            digest = sha256_digest(request.content)
            self.manifests[digest] = (request.headers["content-type"], request.content)
            if ":" not in target:
                self.tagged[target] = digest
            return httpx.Response(201, headers={"Docker-Content-Digest": digest})
        found = self.manifests.get(self.tagged.get(target, target))
        if found is None:
            return httpx.Response(404, json={"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]})
        return httpx.Response(200, headers={"Content-Type": found[0]}, content=found[1])

    def _session(self, status: int, path: str, session: str) -> httpx.Response:
        stored = len(self.uploads[session])
        headers = {"Location": f"{self.location_base}{path}{session}?state=1", "Range": f"0-{max(0, stored - 1)}"}
        return httpx.Response(status, headers=headers)

    def _upload(
        self, method: str, path: str, session: str, query: httpx.QueryParams, request: httpx.Request
    ) -> httpx.Response:
        if session not in self.uploads:
            return httpx.Response(404, json={"errors": [{"code": "BLOB_UPLOAD_UNKNOWN", "message": "lost"}]})
        if method == "GET":
            return self._session(204, path, session)
        if method == "DELETE":
            del self.uploads[session]
            return httpx.Response(204)
        content = self.uploads.pop(session) + request.content
        if sha256_digest(content) != query["digest"]:
            return httpx.Response(400, json={"errors": [{"code": "DIGEST_INVALID", "message": "wrong digest"}]})
        self.blobs[query["digest"]] = content
        return httpx.Response(201)

    def _blob(self, method: str, digest: str, request: httpx.Request) -> httpx.Response:
        content = self.blobs.get(digest)
        if content is None:
            return httpx.Response(404, json={"errors": [{"code": "BLOB_UNKNOWN", "message": "no blob"}]})
        if method == "HEAD":
            return httpx.Response(200, headers={"Content-Length": str(len(content))})
        if match := re.fullmatch(r"bytes=(\d+)-", request.headers.get("range", "")):
            begin = int(match[1])
            headers = {"Content-Range": f"bytes {begin}-{len(content) - 1}/{len(content)}"}
            return httpx.Response(206, headers=headers, content=content[begin:])
        return httpx.Response(200, content=content)
