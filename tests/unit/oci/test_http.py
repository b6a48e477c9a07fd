from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest

from builder.errors import StorageError, VerificationError
from builder.oci.auth import Credentials
from builder.oci.descriptor import MANIFEST, Descriptor, sha256_digest
from builder.oci.http import HttpRepository
from builder.oci.reference import Reference
from tests.unit.oci.fake_registry import FakeRegistry, serving

CONTENT = bytes(range(256)) * 20_000  # several chunks
BLOB = Descriptor.of("application/octet-stream", CONTENT)
CHUNK = 1 << 20
REFERENCE = Reference.parse("registry.test/engines/model")
NO_WAIT: Callable[[float], None] = lambda seconds: None  # noqa: E731


def chunks() -> Iterator[bytes]:
    return (CONTENT[start : start + CHUNK] for start in range(0, len(CONTENT), CHUNK))


@pytest.fixture
def registry() -> FakeRegistry:
    return FakeRegistry()


@pytest.fixture
def waits() -> list[float]:
    return []


@pytest.fixture
def repository(registry: FakeRegistry, waits: list[float]) -> HttpRepository:
    return HttpRepository(
        REFERENCE, transport=registry.transport, find_credentials=lambda host: None, sleep=waits.append
    )


class Failing:
    """Answers the first requests that match with what it is given, then stays out of the way."""

    def __init__(self, method: str, *answers: httpx.Response | Exception) -> None:
        self.method, self.answers = method, list(answers)

    def __call__(self, request: httpx.Request) -> httpx.Response | Exception | None:
        return self.answers.pop(0) if self.answers and request.method == self.method else None


# uploads


@pytest.mark.parametrize(
    "base", ["", "https://registry.test", "http://registry.test:5000"], ids=["relative", "absolute", "behind-a-proxy"]
)
def test_a_blob_is_uploaded_in_one_request_whatever_form_its_location_has(
    registry: FakeRegistry, repository: HttpRepository, base: str
) -> None:
    registry.location_base = base
    seen: list[httpx.URL] = []
    registry.interfere = lambda request: seen.append(request.url)
    progress: list[int] = []
    repository.put_blob(BLOB, chunks, progress.append)
    assert registry.blobs == {BLOB.digest: CONTENT}
    assert [request.split()[0] for request in registry.requests] == ["HEAD", "POST", "PUT"]
    assert {(url.scheme, url.port) for url in seen} == {("https", None)}
    assert seen[-1].params["state"] == "1"
    assert sum(progress) == BLOB.size


def test_a_blob_that_is_there_is_not_sent(registry: FakeRegistry, repository: HttpRepository) -> None:
    registry.blobs[BLOB.digest] = CONTENT
    progress: list[int] = []
    repository.put_blob(BLOB, chunks, progress.append)
    assert [request.split()[0] for request in registry.requests] == ["HEAD"]
    assert progress == [BLOB.size]


def test_a_source_with_another_content_is_never_completed(registry: FakeRegistry, repository: HttpRepository) -> None:
    with pytest.raises(VerificationError) as caught:
        repository.put_blob(BLOB, lambda: iter([b"x" * CHUNK, b"y" * (BLOB.size - CHUNK)]))
    assert caught.value.code == "WRONG_DIGEST"
    assert registry.blobs == {}
    assert registry.count("PUT") == 0


def keep_part(registry: FakeRegistry, size: int, answer: httpx.Response | Exception) -> Failing:
    """The next PUT breaks off after `size` bytes that the registry keeps."""
    failing = Failing("PUT", answer)

    def interfere(request: httpx.Request) -> httpx.Response | Exception | None:
        broken = failing(request)
        if broken is not None:
            session = request.url.path.rsplit("/", 1)[1]
            registry.uploads[session] += request.content[:size]
        return broken

    registry.interfere = interfere
    return failing


@pytest.mark.parametrize(
    "answer", [httpx.ReadError("reset"), httpx.Response(503), httpx.Response(401)], ids=["reset", "503", "401"]
)
def test_a_broken_upload_goes_on_where_the_registry_stands(
    registry: FakeRegistry, repository: HttpRepository, answer: httpx.Response | Exception
) -> None:
    kept = 3 * CHUNK + 7
    keep_part(registry, kept, answer)
    sent: list[tuple[str | None, str | None]] = []
    original = registry._upload

    def spy(method: str, *rest: object) -> httpx.Response:
        request = rest[-1]
        assert isinstance(request, httpx.Request)
        if method == "PUT":
            sent.append((request.headers.get("content-length"), request.headers.get("content-range")))
        return original(method, *rest)  # type: ignore[arg-type]

    registry._upload = spy  # type: ignore[method-assign]
    progress: list[int] = []
    repository.put_blob(BLOB, chunks, progress.append)
    assert registry.blobs == {BLOB.digest: CONTENT}
    assert sent == [(str(BLOB.size - kept), f"{kept}-{BLOB.size - 1}")]
    assert registry.count("POST") == 1
    assert sum(progress) == BLOB.size


def test_a_lost_session_is_begun_again(registry: FakeRegistry, repository: HttpRepository) -> None:
    def lose(request: httpx.Request) -> Exception | None:
        if request.method == "PUT" and registry.count("PUT") == 1:
            registry.uploads.clear()
            return httpx.ReadError("reset")
        return None

    registry.interfere = lose
    repository.put_blob(BLOB, chunks)
    assert registry.blobs == {BLOB.digest: CONTENT}
    assert registry.count("POST") == 2


def test_an_upload_that_never_works_ends_with_one_clear_error(
    registry: FakeRegistry, repository: HttpRepository, waits: list[float]
) -> None:
    registry.interfere = Failing("PUT", *[httpx.WriteError("broken pipe")] * 50)
    with pytest.raises(StorageError) as caught:
        repository.put_blob(BLOB, chunks)
    assert (caught.value.code, caught.value.exit_code) == ("UNREACHABLE", 6)
    assert "broken pipe" in (caught.value.why or "")
    assert registry.count("PUT") == 4
    assert waits == sorted(waits)


def test_tokens_that_end_during_a_push_are_renewed_in_the_same_session() -> None:
    """Case: a token of 900 s and 14 GB, then 401 and everything from the beginning."""
    registry = FakeRegistry(token_lasts_requests=2)
    repository = HttpRepository(
        REFERENCE, transport=registry.transport, find_credentials=lambda host: None, sleep=NO_WAIT
    )
    blobs = [bytes([number]) * 1000 for number in range(10)]
    for content in blobs:
        repository.put_blob(Descriptor.of("x", content), lambda content=content: iter([content]))  # type: ignore[misc]
    repository.put_manifest(b"{}", MANIFEST, "1.0")
    assert sorted(registry.blobs) == sorted(map(sha256_digest, blobs))
    assert len(registry.token_queries) > 10
    sessions = {request.split()[1].split("?")[0] for request in registry.requests if "/uploads/session" in request}
    assert len(sessions) == len(blobs)


# tokens and credentials


def with_credentials(registry: FakeRegistry, credentials: Credentials | None) -> HttpRepository:
    return HttpRepository(
        REFERENCE, transport=registry.transport, find_credentials=lambda host: credentials, sleep=NO_WAIT
    )


def test_a_token_is_asked_for_with_the_password_and_all_scopes_so_far(registry: FakeRegistry) -> None:
    registry.token_lasts_requests = 100
    repository = with_credentials(registry, Credentials("me", "secret"))
    repository.put_blob(BLOB, chunks)
    assert [query.get_list("scope") for query in registry.token_queries] == [
        ["repository:engines/model:pull"],
        ["repository:engines/model:pull,push"],
    ]
    basic = "Basic " + base64.b64encode(b"me:secret").decode()
    asked = [
        header
        for request, header in zip(registry.requests, registry.authorizations, strict=True)
        if request.startswith("GET /token")
    ]
    assert asked == [basic, basic]


def test_an_identity_token_is_exchanged_by_post(registry: FakeRegistry) -> None:
    registry.token_lasts_requests = 100
    with_credentials(registry, Credentials(identity_token="refresh")).has_blob(BLOB)
    assert "POST /token" in registry.requests
    assert registry.token_queries[0]["grant_type"] == "refresh_token"
    assert registry.token_queries[0]["scope"] == "repository:engines/model:pull"


def test_basic_authentication_is_answered(registry: FakeRegistry) -> None:
    basic = Credentials("me", "secret").basic

    def demand(request: httpx.Request) -> httpx.Response | None:
        if request.headers.get("authorization") == basic:
            return None
        return httpx.Response(401, headers={"WWW-Authenticate": 'Basic realm="registry"'})

    registry.interfere = demand
    assert not with_credentials(registry, Credentials("me", "secret")).has_blob(BLOB)
    with pytest.raises(StorageError) as caught:
        with_credentials(registry, Credentials("me", "wrong")).has_blob(BLOB)
    assert caught.value.code == "UNAUTHORIZED"
    assert "docker login registry.test" in (caught.value.hint or "")
    with pytest.raises(StorageError):
        with_credentials(registry, None).has_blob(BLOB)


def test_a_password_is_never_sent_to_an_insecure_token_server(registry: FakeRegistry) -> None:
    challenge = {"WWW-Authenticate": 'Bearer realm="http://auth.test/token",service="x"'}
    registry.interfere = lambda request: httpx.Response(401, headers=challenge)
    with pytest.raises(StorageError) as caught:
        with_credentials(registry, Credentials("me", "secret")).has_blob(BLOB)
    assert caught.value.code == "INSECURE_REALM"
    assert len(registry.requests) == 1


def test_a_refusal_of_the_token_server_says_how_to_log_in(registry: FakeRegistry) -> None:
    registry.token_lasts_requests = 1
    registry._token = lambda request: httpx.Response(401)  # type: ignore[method-assign]
    with pytest.raises(StorageError) as caught:
        with_credentials(registry, None).has_blob(BLOB)
    assert caught.value.code == "UNAUTHORIZED"
    assert "there are no credentials" in (caught.value.why or "")


def test_secrets_stay_out_of_representations() -> None:
    assert "secret" not in repr(Credentials("me", "secret", "secret"))


def test_no_credentials_go_to_another_host_that_a_registry_points_at(
    registry: FakeRegistry, repository: HttpRepository
) -> None:
    registry.token_lasts_requests = 100
    registry.location_base = "https://storage.test"
    repository.put_blob(BLOB, chunks)
    put = next(index for index, request in enumerate(registry.requests) if request.startswith("PUT"))
    assert registry.authorizations[put - 1] is not None
    assert registry.authorizations[put] is None


# retries and errors


def test_waiting_follows_retry_after(registry: FakeRegistry, repository: HttpRepository, waits: list[float]) -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=30))
    registry.interfere = Failing(
        "HEAD",
        httpx.Response(429, headers={"Retry-After": "7"}),
        httpx.Response(503, headers={"Retry-After": soon}),
        httpx.Response(503, headers={"Retry-After": "100000"}),
    )
    assert not repository.has_blob(BLOB)
    assert waits[0] == 7
    assert 0 < waits[1] <= 30
    assert waits[2] == 60


def test_a_reset_connection_is_tried_again(registry: FakeRegistry, repository: HttpRepository) -> None:
    registry.interfere = Failing("HEAD", httpx.ConnectError("reset"), httpx.ReadTimeout("slow"))
    assert not repository.has_blob(BLOB)
    assert len(registry.requests) == 3


@pytest.mark.parametrize(
    ("status", "code", "hint"),
    [
        (401, "UNAUTHORIZED", "docker login"),
        (403, "UNAUTHORIZED", "docker login"),
        (413, "TOO_LARGE", "proxy"),
        (429, "RATE_LIMITED", "wait"),
        (400, "REGISTRY", ""),
        (404, "NOT_FOUND", ""),
    ],
)
def test_an_error_shows_what_the_registry_said(
    registry: FakeRegistry, repository: HttpRepository, status: int, code: str, hint: str
) -> None:
    body = {"errors": [{"code": "NAME_INVALID", "message": "bad \x1b[31mname"}]}
    registry.interfere = Failing("POST", *[httpx.Response(status, json=body)] * 9)
    with pytest.raises(StorageError) as caught:
        repository.put_blob(BLOB, chunks)
    assert caught.value.code == code
    assert "NAME_INVALID: bad [31mname" in (caught.value.why or "")
    assert hint in (caught.value.hint or "")


def test_an_error_page_of_a_proxy_is_shown_by_its_beginning(registry: FakeRegistry, repository: HttpRepository) -> None:
    registry.interfere = Failing("POST", httpx.Response(400, content=b"<html>\n go away " + b"x" * 5000))
    with pytest.raises(StorageError) as caught:
        repository.put_blob(BLOB, chunks)
    assert (caught.value.why or "").startswith("400 Bad Request; <html> go away x")
    assert len(caught.value.why or "") < 400


def test_an_endless_answer_is_not_read_to_its_end(registry: FakeRegistry, repository: HttpRepository) -> None:
    registry.interfere = Failing("GET", httpx.Response(200, content=b"x" * (17 << 20)))
    with pytest.raises(StorageError, match="too long"):
        repository.get_manifest("1.0")


def test_a_registry_elsewhere_needs_https() -> None:
    urls: list[str] = []

    def record(request: httpx.Request) -> httpx.Response:
        urls.append(str(request.url))
        return httpx.Response(404)

    for text in ("registry.test/a", "localhost:5000/a", "docker.io/python"):
        repository = HttpRepository(Reference.parse(text), transport=serving(record), sleep=NO_WAIT)
        assert repository.get_manifest("1") is None
    assert urls == [
        "https://registry.test/v2/a/manifests/1",
        "http://localhost:5000/v2/a/manifests/1",
        "https://registry-1.docker.io/v2/library/python/manifests/1",
    ]


# downloads


class BrokenStream(httpx.SyncByteStream):
    """Gives some bytes, then the connection breaks."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def __iter__(self) -> Iterator[bytes]:
        yield self.content
        raise httpx.ReadError("reset")


@pytest.mark.parametrize("ranges", [True, False], ids=["ranges", "no-ranges"])
def test_a_broken_download_goes_on_from_where_it_was(
    registry: FakeRegistry, repository: HttpRepository, ranges: bool
) -> None:
    registry.blobs[BLOB.digest] = CONTENT
    asked: list[str | None] = []

    def interfere(request: httpx.Request) -> httpx.Response | None:
        asked.append(request.headers.get("range"))
        if len(asked) == 1:
            return httpx.Response(200, stream=BrokenStream(CONTENT[:5000]))
        return None if ranges else httpx.Response(200, content=CONTENT)

    registry.interfere = interfere
    assert b"".join(repository.open_blob(BLOB)) == CONTENT
    assert asked == [None, "bytes=5000-"]


def test_a_download_with_another_content_is_refused(registry: FakeRegistry, repository: HttpRepository) -> None:
    registry.blobs[BLOB.digest] = CONTENT[:-1] + b"?"
    with pytest.raises(VerificationError) as caught:
        list(repository.open_blob(BLOB))
    assert caught.value.code == "WRONG_DIGEST"


def test_a_manifest_with_another_digest_is_refused(registry: FakeRegistry, repository: HttpRepository) -> None:
    registry.manifests[BLOB.digest] = (MANIFEST, b"{}")
    with pytest.raises(VerificationError):
        repository.get_manifest(BLOB.digest)


# tags, mounts, manifests


@pytest.mark.parametrize("base", ["", "https://registry.test"])
def test_tags_are_read_page_by_page(registry: FakeRegistry, repository: HttpRepository, base: str) -> None:
    registry.location_base, registry.tags_per_page = base, 3
    registry.tagged = {f"1.{number}": "x" for number in range(8)}
    assert repository.tags() == sorted(registry.tagged)
    assert len(registry.requests) == 3


def test_a_page_that_leads_to_itself_ends_the_list(registry: FakeRegistry, repository: HttpRepository) -> None:
    links = {"Link": '</v2/engines/model/tags/list?n=1000>; rel="next"'}
    registry.interfere = lambda request: httpx.Response(200, json={"tags": ["1"]}, headers=links)
    assert repository.tags() == ["1"]


def test_a_repository_that_is_not_there_has_no_tags(registry: FakeRegistry, repository: HttpRepository) -> None:
    registry.interfere = lambda request: httpx.Response(404)
    assert repository.tags() == []


def test_a_blob_is_mounted_from_another_repository_of_the_registry(
    registry: FakeRegistry, repository: HttpRepository
) -> None:
    registry.token_lasts_requests = 100
    registry.blobs[BLOB.digest] = CONTENT
    assert repository.mount_blob(BLOB, Reference.parse("registry.test/base/python"))
    assert "repository:base/python:pull" in registry.token_queries[-1].get_list("scope")
    assert not repository.mount_blob(BLOB, Reference.parse("elsewhere.test/base/python"))


def test_a_refused_mount_leaves_no_upload_open(registry: FakeRegistry, repository: HttpRepository) -> None:
    assert not repository.mount_blob(BLOB, Reference.parse("registry.test/base/python"))
    assert registry.uploads == {}


def test_a_registry_that_rewrites_manifests_is_an_error(registry: FakeRegistry, repository: HttpRepository) -> None:
    changed = {"Docker-Content-Digest": BLOB.digest}
    registry.interfere = Failing("PUT", httpx.Response(201, headers=changed))
    with pytest.raises(StorageError) as caught:
        repository.put_manifest(b"{}", MANIFEST, "1.0")
    assert caught.value.code == "MANIFEST_CHANGED"
