from __future__ import annotations

import base64
import json
import stat
from pathlib import Path

import httpx
import pytest

from builder.errors import StorageError
from builder.oci.auth import Authenticator, Credentials, docker_credentials


@pytest.fixture
def docker_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Docker's library reads its place and the helpers' from the environment only."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path / "config.json"


def test_credentials_are_those_of_docker_login(docker_config: Path) -> None:
    auth = base64.b64encode(b"me:pass:word").decode()
    docker_config.write_text(json.dumps({"auths": {"registry.test:5000": {"auth": auth}}}))
    assert docker_credentials("registry.test:5000") == Credentials("me", "pass:word")
    assert docker_credentials("other.test") is None


def test_credentials_come_from_a_credential_helper(docker_config: Path) -> None:
    helper = docker_config.parent / "docker-credential-trial"
    helper.write_text('#!/bin/sh\ncat >/dev/null\necho \'{"Username": "<token>", "Secret": "refresh"}\'\n')
    helper.chmod(helper.stat().st_mode | stat.S_IXUSR)
    docker_config.write_text(json.dumps({"credHelpers": {"registry.test": "trial"}}))
    assert docker_credentials("registry.test") == Credentials(identity_token="refresh")


def test_a_credential_helper_that_fails_is_one_clear_error(docker_config: Path) -> None:
    docker_config.write_text(json.dumps({"credHelpers": {"registry.test": "missing"}}))
    with pytest.raises(StorageError) as caught:
        docker_credentials("registry.test")
    assert caught.value.code == "CREDENTIALS"


def test_a_token_is_renewed_before_it_ends() -> None:
    given: list[str] = []

    def token_server(request: httpx.Request) -> httpx.Response:
        given.append(f"t{len(given)}")
        return httpx.Response(200, json={"access_token": given[-1], "expires_in": 100})

    now = 0.0
    client = httpx.Client(transport=httpx.MockTransport(token_server))
    authenticator = Authenticator("registry.test", client, lambda host: None, clock=lambda: now)
    challenge = {"WWW-Authenticate": 'Bearer realm="https://auth.test/t?x=1",service="s",scope="repository:a:pull"'}
    assert authenticator.header() is None
    assert authenticator.answer(httpx.Response(401, headers=challenge), None)
    assert authenticator.header() == "Bearer t0"
    now = 74.0
    assert authenticator.header() == "Bearer t0"
    now = 76.0
    assert authenticator.header() == "Bearer t1"


def test_a_token_that_another_thread_has_renewed_is_used_as_it_is() -> None:
    served = httpx.MockTransport(lambda request: httpx.Response(200, json={"token": "new"}))
    authenticator = Authenticator("registry.test", httpx.Client(transport=served), lambda host: None)
    challenge = httpx.Response(
        401, headers={"WWW-Authenticate": 'Bearer realm="https://auth.test/t",scope="repository:a:pull"'}
    )
    assert authenticator.answer(challenge, None)
    broken = httpx.MockTransport(lambda request: httpx.Response(500))
    authenticator._client = httpx.Client(transport=broken)
    assert authenticator.answer(challenge, "Bearer old")
    assert authenticator.header() == "Bearer new"


@pytest.mark.parametrize(
    "answer", [httpx.Response(200, json={}), httpx.Response(200, text="x"), httpx.Response(200, json=[])]
)
def test_an_answer_without_a_token_is_one_clear_error(answer: httpx.Response) -> None:
    client = httpx.Client(transport=httpx.MockTransport(lambda request: answer))
    authenticator = Authenticator("registry.test", client, lambda host: None)
    challenge = {"WWW-Authenticate": 'Bearer realm="https://auth.test/t"'}
    with pytest.raises(StorageError) as caught:
        authenticator.answer(httpx.Response(401, headers=challenge), None)
    assert caught.value.code == "BAD_TOKEN"
