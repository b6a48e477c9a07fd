"""A repository in a registry: the OCI distribution protocol over HTTP.

A blob travels as one monolithic PUT. When that breaks off, the upload session is asked how far it got and goes on from
there, with a new token if the old one is over; a new session begins only where the old one is lost. Downloads go on
with a range request.

Source: OCI distribution specification 1.1.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing

import httpx

from builder.errors import StorageError
from builder.oci.auth import FindCredentials, docker_credentials
from builder.oci.client import PATIENT, Answer, Effort, Passing, RegistryClient
from builder.oci.descriptor import Descriptor, sha256_digest
from builder.oci.manifest import MANIFEST_TYPES, MAX_MANIFEST_BYTES, StoredManifest, parse_json_object
from builder.oci.reference import Reference
from builder.oci.stream import Advance, ignore_progress, read_ahead, verified

_RANGE = re.compile(r"(?:bytes[= ])?(\d+)-(\d+)(?:/\S+)?")


class HttpRepository:
    def __init__(
        self,
        reference: Reference,
        *,
        transport: httpx.BaseTransport | None = None,
        find_credentials: FindCredentials = docker_credentials,
        sleep: Callable[[float], None] = time.sleep,
        effort: Effort = PATIENT,
    ) -> None:
        """Tests replace `transport`, `find_credentials` and `sleep`."""
        self.reference = Reference(host=reference.host, repository=reference.repository)
        self._client = RegistryClient(self.reference, transport, find_credentials, sleep, effort)

    # reading

    def has_blob(self, descriptor: Descriptor) -> bool:
        what = f"look for blob {descriptor.digest}"
        answer = self._client.request("HEAD", self._url(f"blobs/{descriptor.digest}"), what)
        if answer.status == 404:
            return False
        self._client.expect(answer, what, 200)
        return bool(answer.headers.get("content-length", str(descriptor.size)) == str(descriptor.size))

    def open_blob(self, descriptor: Descriptor) -> Iterator[bytes]:
        return verified(self._download(descriptor), descriptor, f"{self.reference}@{descriptor.digest}")

    def get_manifest(self, target: str) -> StoredManifest | None:
        where = f"{self.reference}{'@' if ':' in target else ':'}{target}"
        what = f"read the manifest {target}"
        answer = self._client.request(
            "GET", self._url(f"manifests/{target}"), what, headers={"Accept": ", ".join(MANIFEST_TYPES)}
        )
        if answer.status == 404:
            return None
        self._client.expect(answer, what, 200)
        content = answer.content
        if len(content) > MAX_MANIFEST_BYTES:
            raise StorageError("this manifest is too large", where=where, why=f"{len(content)} bytes")
        if ":" in target:
            content = b"".join(verified(iter((content,)), Descriptor("", target, len(content)), where))
        return StoredManifest.of(content, answer.headers.get("content-type", "").partition(";")[0].strip(), where)

    def tags(self) -> list[str]:
        what = "list the tags"
        found: set[str] = set()
        pages: set[httpx.URL] = set()
        url: httpx.URL | None = self._url("tags/list?n=1000")
        while url is not None and url not in pages:
            pages.add(url)
            answer = self._client.request("GET", url, what)
            if answer.status == 404:
                break
            self._client.expect(answer, what, 200)
            tags = parse_json_object(answer.content, str(url)).get("tags")
            found.update(tag for tag in tags or () if isinstance(tag, str))
            following = answer.response.links.get("next", {}).get("url")
            url = self._client.join(url, following) if following else None
        return sorted(found)

    # writing

    def put_blob(
        self,
        descriptor: Descriptor,
        open_chunks: Callable[[], Iterator[bytes]],
        advance: Advance = ignore_progress,
    ) -> None:
        if self.has_blob(descriptor):
            advance(descriptor.size)
            return
        reported = 0

        def rest(offset: int) -> Generator[bytes, None, None]:
            nonlocal reported
            position = 0
            for chunk in read_ahead(verified(open_chunks(), descriptor, descriptor.digest)):
                begin, position = position, position + len(chunk)
                if position > offset:
                    yield chunk[max(0, offset - begin) :]
                if position > reported:  # what is sent a second time isn't progress
                    advance(position - reported)
                    reported = position

        patience = self._client.patience()
        session, offset = self._start_upload(), 0
        while True:
            try:
                with closing(rest(offset)) as chunks:
                    self._finish_upload(session, descriptor, offset, chunks)
                return
            except Passing as failure:
                patience.wait_after(failure)
            resumed = self._resume_upload(session, descriptor)
            if resumed and resumed[1] > offset:
                patience.reward()
            session, offset = resumed or (self._start_upload(), 0)

    def mount_blob(self, descriptor: Descriptor, source: Reference) -> bool:
        if source.host != self.reference.host:
            return False
        self._client.auth.want(f"repository:{source.repository}:pull")
        url = self._url("blobs/uploads/").copy_with(params={"mount": descriptor.digest, "from": source.repository})
        answer = self._client.request("POST", url, "mount a blob")
        if answer.status == 202:  # it began an ordinary upload instead
            self._client.request("DELETE", self._session_url(answer), "cancel an upload")
        return answer.status == 201

    def put_manifest(self, content: bytes, media_type: str, target: str) -> None:
        what = f"write the manifest {target}"
        answer = self._client.request(
            "PUT", self._url(f"manifests/{target}"), what, headers={"Content-Type": media_type}, content=content
        )
        self._client.expect(answer, what, 201)
        digest = sha256_digest(content)
        if (stored := answer.headers.get("docker-content-digest", digest)) != digest:
            raise StorageError(
                f"{self.reference.host} changed the manifest that it was given",
                where=self.reference.name,
                why=f"it stored {stored}, we sent {digest}",
                code="MANIFEST_CHANGED",
            )

    # uploads

    def _start_upload(self) -> httpx.URL:
        what = "begin an upload"
        answer = self._client.request("POST", self._url("blobs/uploads/"), what)
        self._client.expect(answer, what, 202)
        return self._session_url(answer)

    def _finish_upload(self, session: httpx.URL, descriptor: Descriptor, offset: int, chunks: Iterator[bytes]) -> None:
        """Send a blob from `offset` on and close the session. Raises Passing where that may go on."""
        what = f"upload blob {descriptor.digest}"
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(descriptor.size - offset)}
        if offset:
            headers["Content-Range"] = f"{offset}-{descriptor.size - 1}"
        url = session.copy_merge_params({"digest": descriptor.digest})
        answer = self._client.read(self._client.send("PUT", url, what, headers, chunks), what)
        if answer.status in (401, 404, 416):  # the token is over, the session is lost, or has another length
            raise Passing(self._client.failure(answer, what))
        self._client.expect(answer, what, 201)

    def _resume_upload(self, session: httpx.URL, descriptor: Descriptor) -> tuple[httpx.URL, int] | None:
        """The session and how many bytes it has, or None if it is lost."""
        answer = self._client.request("GET", session, "resume an upload")
        if answer.status != 204:
            return None
        stored = _RANGE.fullmatch(answer.headers.get("range", ""))
        # "0-0" is said for no bytes as well as for one; no network stops after the first byte.
        offset = int(stored[2]) + 1 if stored and stored[2] != "0" else 0
        return (self._session_url(answer, session), offset) if offset <= descriptor.size else None

    def _session_url(self, answer: Answer, known: httpx.URL | None = None) -> httpx.URL:
        if location := answer.headers.get("location"):
            return self._client.join(answer.response.url, location)
        if known is None:
            raise StorageError("the registry began an upload without saying where", where=self.reference.name)
        return known

    # downloads

    def _download(self, descriptor: Descriptor) -> Iterator[bytes]:
        url, what = self._url(f"blobs/{descriptor.digest}"), f"download blob {descriptor.digest}"
        patience = self._client.patience()
        position = 0
        while True:
            headers = {"Range": f"bytes={position}-"} if position else {}
            try:
                response = self._client.send("GET", url, what, headers)
                for chunk in self._content_from(position, response, what):
                    position += len(chunk)
                    patience.reward()
                    yield chunk
                return
            except Passing as failure:
                patience.wait_after(failure)

    def _content_from(self, position: int, response: httpx.Response, what: str) -> Iterator[bytes]:
        """The bytes from `position` on, whether the registry honoured the range or sends everything."""
        skip = position
        if response.status_code == 206:
            given = _RANGE.fullmatch(response.headers.get("content-range", ""))
            if not given or int(given[1]) != position:
                raise StorageError(f"the registry sent another range than asked to {what}", where=self.reference.name)
            skip = 0
        elif response.status_code != 200:
            raise self._client.failure(self._client.read(response, what), what)
        for chunk in self._client.stream(response, what):
            if len(chunk) > skip:
                yield chunk[skip:]
            skip = max(0, skip - len(chunk))

    def _url(self, path: str) -> httpx.URL:
        return self._client.base.join(path)
