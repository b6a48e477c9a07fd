"""A Python package index on localhost: PEP 691 JSON or PEP 503 HTML, with faults on demand."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class IndexServer:
    """`WHEELS` maps file names to contents, `hashes` overrides what the index states of them (None: nothing).

    `statuses` maps the beginning of a path to the status that it answers; `cut` ends every download half-way.
    """

    def __init__(self, base: str) -> None:
        self.url = f"{base}/simple"
        self.requests: list[str] = []
        self.wheels: dict[str, bytes] = {}
        self.hashes: dict[str, str | None] = {}
        self.statuses: dict[str, int] = {}
        self.html = False
        self.cut = False

    def sha256(self, filename: str) -> str | None:
        return self.hashes.get(filename, hashlib.sha256(self.wheels[filename]).hexdigest())

    def page(self) -> tuple[str, bytes]:
        if self.html:
            anchors = "".join(
                f'<a href="../../files/{name}#sha256={self.sha256(name)}" data-yanked="">{name}</a><br>\n'
                for name in self.wheels
            )
            return "text/html", f"<!DOCTYPE html><html><body>{anchors}</body></html>".encode()
        files = [
            {"filename": name, "url": f"../../files/{name}", "hashes": {"sha256": digest} if digest else {}}
            for name, digest in ((name, self.sha256(name)) for name in self.wheels)
        ]
        body = {"meta": {"api-version": "1.1"}, "name": "tiny-llama", "files": files}
        return "application/vnd.pypi.simple.v1+json", json.dumps(body).encode()


class _Handler(BaseHTTPRequestHandler):
    index: IndexServer

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.index.requests.append(self.path)
        status = next((status for path, status in self.index.statuses.items() if self.path.startswith(path)), None)
        filename = self.path.removeprefix("/files/")
        if status is not None:
            self._send(status, "text/plain", b"no")
        elif self.path.startswith("/simple/") and any(self._belongs(name) for name in self.index.wheels):
            self._send(200, *self.index.page())
        elif filename in self.index.wheels:
            content = self.index.wheels[filename]
            self._send(200, "application/octet-stream", content, sent=len(content) // 2 if self.index.cut else None)
        else:
            self._send(404, "text/plain", b"no")

    def _belongs(self, wheel: str) -> bool:
        return self.path == f"/simple/{wheel.partition('-')[0].replace('_', '-')}/"

    def _send(self, status: int, kind: str, body: bytes, *, sent: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:sent])


@contextmanager
def running_index() -> Iterator[IndexServer]:
    handler = type("Handler", (_Handler,), {})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        handler.index = IndexServer(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield handler.index
        finally:
            server.shutdown()
            thread.join()
