"""One wheel from a Python package index: looked up by the simple API, its sha256 checked while it is downloaded.

https://packaging.python.org/en/latest/specifications/simple-repository-api/: JSON (PEP 691) is asked for, HTML
(PEP 503) understood, since many private indexes have nothing else.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import httpx
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from builder.errors import SourceError
from builder.model.snapshot import check_path, check_sha256
from builder.model.sources.urls import without_credentials
from builder.oci.certificates import honour_ca_variables
from builder.store.digests import Advance

_VARIABLES = ("ENGINE_BUILDER_INDEX_URL", "PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL")
_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
_TIMEOUT = httpx.Timeout(60, connect=15)


def configured_index(environment: Mapping[str, str] = os.environ) -> str:
    """The URL of the simple API: of the first variable that is set, else PyPI's."""
    urls = (environment.get(name) for name in _VARIABLES)
    return next((url for url in urls if url), "https://pypi.org/simple")


@dataclass(frozen=True)
class Wheel:
    filename: str
    url: str
    sha256: str


class PackageIndex:
    """Proxies and certificates come from the environment (HTTPS_PROXY, SSL_CERT_FILE), as httpx reads it."""

    def __init__(self, url: str) -> None:
        honour_ca_variables()
        self._url = url.rstrip("/")

    @property
    def name(self) -> str:
        """The URL without the user and password that it may carry; safe to show."""
        return without_credentials(self._url)

    def wheel(self, distribution: str, version: Version) -> Wheel:
        """The wheel of this version; of several for different platforms, one that runs anywhere, else the first.

        Raises SourceError `NOT_FOUND`, `NO_HASH` if the index states no sha256, or what `_answers` raises.
        """
        project = canonicalize_name(distribution)
        page = f"{self._url}/{project}/"
        with _answers(page), httpx.Client(follow_redirects=True, timeout=_TIMEOUT) as client:
            response = client.get(page, headers={"Accept": _ACCEPT})
            response.raise_for_status()
            offered = _wheels(response)
        wheels = [wheel for wheel in offered if _is_wheel_of(wheel["filename"], project, version)]
        if not wheels:
            raise SourceError(
                f"the package index has no wheel of {distribution} {version}",
                where=without_credentials(page),
                hint="check name and version; ENGINE_BUILDER_INDEX_URL names another index",
                code="NOT_FOUND",
            )
        chosen = min(wheels, key=lambda wheel: (not wheel["filename"].endswith("-any.whl"), wheel["filename"]))
        filename = check_path(chosen["filename"], where=without_credentials(page))
        if not chosen["sha256"]:
            raise SourceError(
                f"the package index states no sha256 of {filename}",
                where=without_credentials(page),
                why="without one nobody can tell whether the download is what was published",
                hint="use an index that states it, or name the model as a local folder",
                code="NO_HASH",
            )
        url = urljoin(str(response.url), chosen["url"])
        return Wheel(filename, url, check_sha256(chosen["sha256"], where=without_credentials(page)))

    def download(self, wheel: Wheel, folder: Path, advance: Advance) -> None:
        """Write the wheel into `folder`. Raises SourceError `SHA_MISMATCH` if it isn't what the index said."""
        digest = hashlib.sha256()
        with (
            open(folder / wheel.filename, "wb") as file,
            _answers(wheel.url),
            httpx.stream(
                "GET", wheel.url, headers={"Accept-Encoding": "identity"}, follow_redirects=True, timeout=60
            ) as response,
        ):
            response.raise_for_status()
            for chunk in response.iter_raw():
                file.write(chunk)
                digest.update(chunk)
                advance(len(chunk))
        if digest.hexdigest() != wheel.sha256:
            raise SourceError(
                f"{wheel.filename} isn't what the package index says",
                where=without_credentials(wheel.url),
                why=f"its sha256 is {digest.hexdigest()}, expected is {wheel.sha256}",
                hint="try again; if it stays, something between here and the index changes files",
                code="SHA_MISMATCH",
            )


def _wheels(response: httpx.Response) -> list[dict[str, str]]:
    """filename, url and sha256 (or "") of every file on the page of a project."""
    if "json" in response.headers.get("content-type", ""):
        files = response.json()["files"]
        return [
            {"filename": file["filename"], "url": file["url"], "sha256": file.get("hashes", {}).get("sha256", "")}
            for file in files
        ]
    page = _Links()
    page.feed(response.text)
    return list(page.files())


class _Links(HTMLParser):
    """The anchors of a PEP 503 page: `<a href="URL#sha256=DIGEST">FILENAME</a>`."""

    def __init__(self) -> None:
        super().__init__()
        self._hrefs: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hrefs += [value for name, value in attrs if tag == "a" and name == "href" and value]

    def files(self) -> Iterator[dict[str, str]]:
        for href in self._hrefs:
            url, fragment = urldefrag(href)
            digest = re.fullmatch(r"sha256=([0-9a-f]{64})", fragment)
            filename = unquote(urlsplit(url).path.rpartition("/")[2])
            yield {"filename": filename, "url": url, "sha256": digest[1] if digest else ""}


def _is_wheel_of(filename: str, project: str, version: Version) -> bool:
    try:
        name, found, *_ = parse_wheel_filename(filename)
    except InvalidWheelFilename:
        return False
    return name == project and found == version


@contextmanager
def _answers(url: str) -> Iterator[None]:
    """Turn what can go wrong with an index into a SourceError: `NOT_FOUND`, `UNAUTHORIZED`, `INDEX_FAILED`
    (it answers with an error, nonsense, or less than it promised), `NO_NETWORK`.
    """
    where = without_credentials(url)
    hint = "ENGINE_BUILDER_INDEX_URL names another package index"
    try:
        yield
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        message, code = f"the package index answered {status}", "INDEX_FAILED"
        if status == 404:
            message, code = "the package index doesn't have this", "NOT_FOUND"
        elif status in (401, 403):
            message, code = "the package index refused access", "UNAUTHORIZED"
        raise SourceError(message, where=where, hint=hint, code=code) from error
    except (httpx.NetworkError, httpx.TimeoutException, httpx.ProxyError) as error:
        raise SourceError(
            "can't reach the package index",
            where=where,
            why=f"{type(error).__name__}: {error}",
            hint=f"check the network and the proxy (HTTPS_PROXY); {hint}",
            code="NO_NETWORK",
        ) from error
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceError(
            "the package index doesn't answer as it should",
            where=where,
            why=f"{type(error).__name__}: {error}",
            hint=f"try again; {hint}",
            code="INDEX_FAILED",
        ) from error
