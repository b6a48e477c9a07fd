"""One registry's HTTP: credentials, repeated requests, and errors that a person can act on."""

from __future__ import annotations

import json
import random
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass

import httpx

from builder import __version__
from builder.errors import StorageError
from builder.oci.auth import Authenticator, FindCredentials
from builder.oci.certificates import honour_ca_variables
from builder.oci.reference import Reference, is_loopback
from builder.oci.retry_after import retry_after_seconds

_MAX_WAIT_SECONDS = 60.0
_PASSING_STATUSES = {408, 429, 500, 502, 503, 504}
_MAX_ANSWER_BYTES = 16 << 20
_UPLOAD_SECONDS = 600.0
"""A registry hashes and moves a large blob before it answers."""


@dataclass(frozen=True)
class Effort:
    """How long a registry is waited for, and how often a request that failed in passing is tried."""

    connect_seconds: float = 10
    answer_seconds: float = 60
    attempts: int = 4

    def timeout(self, upload: bool) -> httpx.Timeout:
        read = _UPLOAD_SECONDS if upload else self.answer_seconds
        return httpx.Timeout(self.answer_seconds, connect=self.connect_seconds, read=read)


PATIENT = Effort()
"""For what has to be done now."""

BRIEF = Effort(connect_seconds=5, answer_seconds=15, attempts=1)
"""For a question that can as well be asked another day."""


class Passing(Exception):
    """A failure that another try may mend; `wait_seconds` is what the registry asked for."""

    def __init__(self, error: StorageError, wait_seconds: float | None = None) -> None:
        super().__init__(error.message)
        self.error = error
        self.wait_seconds = wait_seconds


class Patience:
    """Counts failures in a row, waits longer after each, and gives up by raising the last one."""

    def __init__(self, sleep: Callable[[float], None], attempts: int = PATIENT.attempts) -> None:
        self._sleep = sleep
        self._attempts = attempts
        self._failures = 0

    def reward(self) -> None:
        """There was progress."""
        self._failures = 0

    def wait_after(self, failure: Passing) -> None:
        self._failures += 1
        if self._failures >= self._attempts:
            raise failure.error from failure
        seconds = failure.wait_seconds
        if seconds is None:
            seconds = 0.5 * 2 ** (self._failures - 1) * random.uniform(0.8, 1.2)  # noqa: S311 - spreads retries only
        self._sleep(min(seconds, _MAX_WAIT_SECONDS))


@dataclass(frozen=True)
class Answer:
    """A response whose body, a small one, was read."""

    response: httpx.Response
    content: bytes

    @property
    def status(self) -> int:
        return self.response.status_code

    @property
    def headers(self) -> httpx.Headers:
        return self.response.headers


class RegistryClient:
    """Plain HTTP for this machine's own ports, HTTPS for everything else."""

    def __init__(
        self,
        reference: Reference,
        transport: httpx.BaseTransport | None,
        find_credentials: FindCredentials,
        sleep: Callable[[float], None],
        effort: Effort = PATIENT,
    ) -> None:
        honour_ca_variables()
        self.host = reference.host
        loopback = is_loopback(self.host)
        # Docker Hub's API lies under another name than the one in references.
        api_host = "registry-1.docker.io" if self.host == "docker.io" else self.host
        self.base = httpx.URL(f"{'http' if loopback else 'https'}://{api_host}/v2/{reference.repository}/")
        self._client = httpx.Client(
            transport=transport,
            timeout=effort.timeout(upload=False),
            trust_env=not loopback,  # a proxy can't reach this machine's own ports
            headers={"User-Agent": f"engine-builder/{__version__}", "Accept-Encoding": "identity"},
        )
        weakref.finalize(self, self._client.close)
        self._sleep = sleep
        self._effort = effort
        self.auth = Authenticator(self.host, self._client, find_credentials)

    def patience(self) -> Patience:
        return Patience(self._sleep, self._effort.attempts)

    def request(
        self, method: str, url: httpx.URL, what: str, *, headers: Mapping[str, str] | None = None, content: bytes = b""
    ) -> Answer:
        """A request that may be repeated. `what` is for the error: "list the tags"."""
        patience = self.patience()
        while True:
            try:
                return self.read(self.send(method, url, what, headers or {}, content), what)
            except Passing as failure:
                patience.wait_after(failure)

    def send(
        self,
        method: str,
        url: httpx.URL,
        what: str,
        headers: Mapping[str, str],
        content: bytes | Iterator[bytes] = b"",
    ) -> httpx.Response:
        """One request; the body of its response is still to be read. Raises Passing.

        Where the registry wants (new) credentials they are fetched, and the request is repeated if its body can be.
        """
        timeout = self._effort.timeout(upload=not isinstance(content, bytes))
        for last in (False, True):
            authorization = self.auth.header()
            request = self._client.build_request(method, url, headers=headers, content=content or None, timeout=timeout)
            if authorization and url.host == self.base.host:
                request.headers["Authorization"] = authorization
            with self._passing_errors(what):
                response = self._client.send(request, stream=True, follow_redirects=method in ("GET", "HEAD"))
            if response.status_code in _PASSING_STATUSES:
                raise Passing(
                    self.failure(self.read(response, what), what),
                    retry_after_seconds(response.headers.get("retry-after", "")),
                )
            if last or response.status_code != 401 or response.url.host != self.base.host:
                break
            if not self.auth.answer(response, authorization) or not isinstance(content, bytes):
                break
            response.close()
        return response

    def read(self, response: httpx.Response, what: str) -> Answer:
        with self._passing_errors(what), closing(response):
            content = bytearray()
            for chunk in response.iter_raw():
                content += chunk
                if len(content) > _MAX_ANSWER_BYTES:
                    raise StorageError(f"the registry's answer to {what} is far too long", where=self.base)
            return Answer(response, bytes(content))

    def stream(self, response: httpx.Response, what: str) -> Iterator[bytes]:
        """The body as it arrives. Raises Passing."""
        with self._passing_errors(what), closing(response):
            yield from response.iter_raw()

    def join(self, url: httpx.URL, location: str) -> httpx.URL:
        """A Location or link, absolute or relative.

        Behind a proxy that ends TLS, registries call themselves http and by a wrong port: their own host stays as we
        know it.
        """
        try:
            joined = url.join(location)
        except httpx.InvalidURL as error:
            raise StorageError(
                "the registry sent an address that can't be read", where=self.base, why=str(error)
            ) from error
        if joined.host == self.base.host:
            return joined.copy_with(scheme=self.base.scheme, port=self.base.port)
        return joined

    def expect(self, answer: Answer, what: str, status: int) -> None:
        if answer.status != status:
            raise self.failure(answer, what)

    def failure(self, answer: Answer, what: str) -> StorageError:
        status = answer.status
        why = "; ".join([f"{status} {answer.response.reason_phrase}", *_error_texts(answer.content)])
        if status in (401, 403):
            code, hint = "UNAUTHORIZED", f"docker login {self.host}, with an account that may do this"
        elif status == 413:
            code = "TOO_LARGE"
            hint = "a proxy in front of the registry limits requests: raise that (nginx: client_max_body_size 0)"
        elif status == 429:
            code, hint = "RATE_LIMITED", "wait and run it again: what was stored stays"
        else:
            code, hint = "NOT_FOUND" if status == 404 else "REGISTRY", None
        return StorageError(f"the registry refused to {what}", where=self.base, why=why, hint=hint, code=code)

    @contextmanager
    def _passing_errors(self, what: str) -> Iterator[None]:
        """Turns "no connection", "broken off" and "no answer in time" into Passing."""
        try:
            yield
        except httpx.RequestError as error:
            hint = "check the name and port, and that the registry runs; what was stored stays"
            if "SSL" in str(error):
                hint = "it must speak HTTPS with a certificate that this machine trusts (SSL_CERT_FILE adds one)"
            raise Passing(
                StorageError(
                    f"can't {what}: no connection to {self.host}",
                    where=self.base,
                    why=str(error) or type(error).__name__,
                    hint=hint,
                    code="UNREACHABLE",
                )
            ) from error


def _error_texts(content: bytes) -> list[str]:
    """ "CODE: message" of each error in the body; other bodies are shown by their first characters."""
    try:
        errors = json.loads(content)["errors"]
        texts = [f"{error.get('code', '')}: {error.get('message', '')}" for error in errors]
    except (ValueError, KeyError, TypeError, AttributeError):
        texts = [content.decode(errors="replace")]
    printable = ("".join(c if c.isprintable() else " " for c in text) for text in texts)
    return [text for text in (" ".join(line.split())[:300] for line in printable) if text]
