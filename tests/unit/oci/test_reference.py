from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.errors import UsageError
from builder.oci.reference import Reference, is_loopback

DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost:5000/a/b:1.0", Reference("localhost:5000", "a/b", tag="1.0")),
        ("127.0.0.1:5000/a", Reference("127.0.0.1:5000", "a")),
        ("[::1]:5000/a", Reference("[::1]:5000", "a")),
        (f"ghcr.io/engines/llama-3.1-8b@{DIGEST}", Reference("ghcr.io", "engines/llama-3.1-8b", digest=DIGEST)),
        ("docker.io/python:3.11-slim", Reference("docker.io", "library/python", tag="3.11-slim")),
        ("oci:out/layout", Reference(layout=Path("out/layout"))),
        ("oci:/tmp/layout:1.4.0", Reference(layout=Path("/tmp/layout"), tag="1.4.0")),
        (f"oci:layout@{DIGEST}", Reference(layout=Path("layout"), digest=DIGEST)),
        ("oci:odd:folder/layout", Reference(layout=Path("odd:folder/layout"))),
    ],
)
def test_references_name_a_registry_or_a_layout(text: str, expected: Reference) -> None:
    assert Reference.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("python:3.11-slim", "host of the registry is missing"),
        ("library/python", "host of the registry is missing"),
        ("https://ghcr.io/a/b", "no scheme"),
        ("ghcr.io/Org/model", "lower case"),
        ("ghcr.io/a//b", "isn't a repository name"),
        ("ghcr.io/a/../b", "isn't a repository name"),
        ("ghcr.io/", "isn't a repository name"),
        ("ghcr.io/a:.hidden", "isn't a tag"),
        ("ghcr.io/a:1.0+build", "isn't a tag"),
        ("ghcr.io/a:" + "x" * 129, "isn't a tag"),
        ("ghcr.io/a:", "isn't a tag"),
        ("ghcr.io/a@sha256:12", "isn't a digest"),
        (f"ghcr.io/a:1@{DIGEST}", "both a tag and a digest"),
        (f"oci:dir:1@{DIGEST}", "both a tag and a digest"),
        ("oci:", "no directory"),
        ("oci::1.0", "no directory"),
        ("user@ghcr.io/a", "isn't a digest"),
        ("gh cr.io/a", "isn't a host"),
        ("ghcr.io/" + "a" * 250, "longer than 255"),
    ],
)
def test_a_wrong_reference_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match="isn't a reference") as caught:
        Reference.parse(text)
    assert reason in (caught.value.why or "")
    assert caught.value.code == "BAD_REFERENCE"


component = st.from_regex(r"[a-z0-9]+([._-][a-z0-9]+)?", fullmatch=True)
hosts = st.sampled_from(["localhost", "localhost:5000", "registry.example.com", "10.0.0.1:443", "[::1]:80"])
tags = st.none() | st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,20}", fullmatch=True)


@given(hosts, st.lists(component, min_size=1, max_size=4), tags)
def test_a_reference_is_written_as_it_was_read(host: str, parts: list[str], tag: str | None) -> None:
    text = f"{host}/{'/'.join(parts)}" + (f":{tag}" if tag else "")
    assert str(Reference.parse(text)) == text


@given(st.text(max_size=60))
def test_any_text_is_a_reference_or_a_usage_error(text: str) -> None:
    try:
        reference = Reference.parse(text)
    except UsageError:
        return
    assert Reference.parse(str(reference)) == reference


def test_a_tag_replaces_a_digest_and_is_checked() -> None:
    reference = Reference.parse(f"ghcr.io/a@{DIGEST}")
    assert str(reference.with_tag("1.0")) == "ghcr.io/a:1.0"
    with pytest.raises(UsageError):
        reference.with_tag("1.0+cu12")


@pytest.mark.parametrize("host", ["localhost", "localhost:5000", "127.0.0.1:1", "127.8.8.8", "[::1]:5000", "[::1]"])
def test_loopback_hosts_are_known(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["localhost.test", "example.com:80", "10.0.0.1:5000", "0.0.0.0", "[fe80::1]:5000"])
def test_other_hosts_are_not_loopback(host: str) -> None:
    assert not is_loopback(host)
