"""The way to the Hub: a mirror, a proxy, a private authority. Each test runs a process with that environment."""

from __future__ import annotations

import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.hub_server import HubServer, running_hub

REPO = "acme/tiny"
FILES = {"config.json": b"{}", "model.safetensors": (2).to_bytes(8, "little") + b"{}"}
PROGRAM = """if True:
    import sys
    from pathlib import Path
    from builder.errors import SourceError
    from builder.model.sources import open_source
    from builder.store import DigestCache
    here = Path(sys.argv[1])
    source = open_source(sys.argv[2], None, base=here, cache=here, digests=DigestCache(here / "d.sqlite"))
    try:
        snapshot = source.resolve(lambda count: None)
        source.tensors(snapshot)
        print(snapshot.revision)
    except SourceError as error:
        print(error.render())
"""


def resolve(folder: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), f"hf://{REPO}"],
        env={"HF_HUB_CACHE": str(folder / "hub"), **environment},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ca.pem, and the certificate and key of 127.0.0.1 and localhost that it signed."""
    folder = tmp_path_factory.mktemp("authority")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    new_key = ["-newkey", "rsa:2048", "-nodes"]
    openssl("req", "-x509", *new_key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=Private CA", "-days", "2")
    openssl("req", *new_key, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=localhost")
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
    signing = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names", "-days", "2"]
    openssl("x509", "-req", "-in", "server.csr", *signing, "-out", "server.pem")
    return folder


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
def test_a_private_certificate_authority_counts_by_every_usual_variable(
    authority: Path, tmp_path: Path, variable: str
) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(authority / "server.pem", authority / "server.key")
    with running_hub(tls) as server:
        commit = server.push(REPO, FILES)
        assert resolve(tmp_path, HF_ENDPOINT=server.endpoint, **{variable: str(authority / "ca.pem")}) == commit
        refused = resolve(tmp_path / "other", HF_ENDPOINT=server.endpoint)
        assert "error[NO_NETWORK]" in refused
        assert "SSL_CERT_FILE" in refused


def test_a_proxy_is_asked_for_everything(hub: HubServer, tmp_path: Path) -> None:
    """The endpoint's name exists nowhere: the proxy alone knows it."""
    commit = hub.push(REPO, FILES)
    hub.cdn = "http://cdn.test"
    assert resolve(tmp_path, HF_ENDPOINT="http://hub.test", HTTP_PROXY=hub.endpoint) == commit
    assert any(request.startswith("GET /cdn/") for request in hub.requests)


def test_a_mirror_is_named_by_its_variable(hub: HubServer, tmp_path: Path) -> None:
    commit = hub.push(REPO, FILES)
    assert resolve(tmp_path, HF_ENDPOINT=hub.endpoint) == commit
