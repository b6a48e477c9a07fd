"""Credentials and tokens for a registry.

A registry answers 401 with a challenge: `Basic`, or `Bearer realm="…",service="…",scope="…"`, whose realm gives a
short-lived token for the scope. Credentials are those of `docker login`, credential helpers included.

Source: https://distribution.github.io/distribution/spec/auth/ (token and oauth).
"""

from __future__ import annotations

import base64
import re
import threading
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx

from builder.errors import StorageError
from builder.oci.reference import is_loopback

_DEFAULT_LIFETIME_SECONDS = 60
_RENEW_AT = 0.75
"""A token is renewed when this share of its life is over, so that no upload starts on its last second."""

_PARAMETER = re.compile(r'(\w+)=(?:"([^"]*)"|([^\s,]+))')


@dataclass(frozen=True)
class Credentials:
    """What `docker login` left: a name and password, or an identity token."""

    username: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)

    @property
    def basic(self) -> str:
        return "Basic " + base64.b64encode(f"{self.username}:{self.password}".encode()).decode()


FindCredentials = Callable[[str], Credentials | None]


def docker_credentials(host: str) -> Credentials | None:
    """What Docker's own configuration has for this host, from its file or a credential helper."""
    from docker import auth
    from docker.errors import DockerException

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a missing helper: the error says so
            found = auth.load_config().resolve_authconfig(host)
    except (DockerException, ValueError) as error:
        raise StorageError(
            f"Docker's credentials for {host} can't be read",
            why=str(error),
            hint=f"docker login {host}",
            code="CREDENTIALS",
        ) from error
    if not found:
        return None
    return Credentials(
        found.get("username") or found.get("Username") or "",
        found.get("password") or found.get("Password") or "",
        found.get("IdentityToken") or "",
    )


@dataclass(frozen=True)
class _Challenge:
    scheme: str
    parameters: dict[str, str]


class Authenticator:
    """The Authorization header for one repository; safe for several threads."""

    def __init__(
        self,
        host: str,
        client: httpx.Client,
        find_credentials: FindCredentials,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host = host
        self._client = client
        self._find_credentials = find_credentials
        self._clock = clock
        self._lock = threading.Lock()
        self._header: str | None = None
        self._renew_at = float("inf")
        self._challenge: _Challenge | None = None
        self._scopes: dict[str, set[str]] = defaultdict(set)  # "repository:NAME" → actions, all that were asked for

    def header(self) -> str | None:
        """What to send now; None until the registry has asked for something."""
        with self._lock:
            if self._challenge and self._clock() >= self._renew_at:
                self._fetch_token(self._challenge)
            return self._header

    def want(self, scope: str) -> None:
        """Ask for this scope, such as "repository:base/python:pull", with the next token."""
        with self._lock:
            self._want(scope)

    def answer(self, response: httpx.Response, used: str | None) -> bool:
        """Meet the challenge of a 401 to a request that was sent with `used`; False if that can't help."""
        challenge = _parse_challenge(response)
        if challenge is None:
            return False
        with self._lock:
            if challenge.scheme == "basic":
                credentials = self._find_credentials(self._host)
                if credentials is None or credentials.basic == used:
                    return False
                self._header = credentials.basic
                return True
            more_wanted = self._want(challenge.parameters.get("scope", ""))
            self._challenge = challenge
            if more_wanted or self._header in (None, used):  # else another thread has a newer token already
                self._fetch_token(challenge)
            return True

    def _want(self, scopes: str) -> bool:
        """Remember scopes; True if any is new."""
        new = False
        for scope in scopes.split():
            resource, _, actions = scope.rpartition(":")
            wanted = set(actions.split(","))
            new = new or not wanted <= self._scopes[resource]
            self._scopes[resource] |= wanted
        return new

    def _fetch_token(self, challenge: _Challenge) -> None:
        realm = challenge.parameters.get("realm", "")
        try:
            url = httpx.URL(realm)
        except httpx.InvalidURL:
            url = httpx.URL("")
        if url.scheme != "https" and not (url.scheme == "http" and is_loopback(url.host) and is_loopback(self._host)):
            raise StorageError(
                f"{self._host} sends us to a place that isn't safe for a password",
                where=realm,
                why="the realm of its challenge isn't https",
                code="INSECURE_REALM",
            )
        parameters = [
            ("scope", f"{name}:{','.join(sorted(actions))}") for name, actions in sorted(self._scopes.items())
        ]
        if service := challenge.parameters.get("service"):
            parameters.insert(0, ("service", service))
        credentials = self._find_credentials(self._host)
        try:
            response = self._ask(url, parameters, credentials)
        except httpx.TransportError as error:
            raise StorageError(
                f"the token server of {self._host} can't be reached",
                where=f"{url.scheme}://{url.netloc.decode()}",
                why=str(error),
                code="UNREACHABLE",
            ) from error
        if response.status_code != 200:
            raise StorageError(
                f"no access to {self._host}",
                where=f"{url.scheme}://{url.netloc.decode()}",
                why=f"its token server says {response.status_code} {response.reason_phrase}"
                + ("" if credentials else ", and there are no credentials for it"),
                hint=f"docker login {self._host}",
                code="UNAUTHORIZED",
            )
        try:
            answer = response.json()
            token = answer.get("token") or answer["access_token"]
            lifetime = float(answer.get("expires_in") or _DEFAULT_LIFETIME_SECONDS)
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise StorageError(
                f"the token server of {self._host} answers without a token", where=str(url.host), code="BAD_TOKEN"
            ) from error
        self._header = f"Bearer {token}"
        self._renew_at = self._clock() + lifetime * _RENEW_AT

    def _ask(
        self, url: httpx.URL, parameters: list[tuple[str, str]], credentials: Credentials | None
    ) -> httpx.Response:
        if credentials and credentials.identity_token:
            form = dict(parameters) | {
                "scope": " ".join(value for key, value in parameters if key == "scope"),
                "grant_type": "refresh_token",
                "client_id": "engine-builder",
                "refresh_token": credentials.identity_token,
            }
            return self._client.post(url, data=form)
        headers = {"Authorization": credentials.basic} if credentials else {}
        query = httpx.QueryParams([*url.params.multi_items(), *parameters])
        return self._client.get(url.copy_with(params=query), headers=headers)


def _parse_challenge(response: httpx.Response) -> _Challenge | None:
    """The first challenge that we know, Bearer before Basic."""
    found = {}
    for header in response.headers.get_list("www-authenticate"):
        scheme, _, rest = header.strip().partition(" ")
        parameters = {key.lower(): quoted or plain for key, quoted, plain in _PARAMETER.findall(rest)}
        found[scheme.lower()] = _Challenge(scheme.lower(), parameters)
    return found.get("bearer") or found.get("basic")
