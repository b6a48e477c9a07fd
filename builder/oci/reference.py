"""References: which repository, and which tag or digest in it.

host/repo[:tag|@digest]     a registry; the host is always written out
oci:DIR[:tag|@digest]       an OCI layout directory
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, replace
from pathlib import Path

from builder.errors import UsageError
from builder.oci.descriptor import DIGEST_PATTERN

TAG_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY_PATTERN = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*")
_HOST_PATTERN = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?")
_MAX_NAME_CHARACTERS = 255


@dataclass(frozen=True)
class Reference:
    """Either `host` and `repository`, or `layout`; then at most one of `tag` and `digest`."""

    host: str = ""
    repository: str = ""
    layout: Path | None = None
    tag: str | None = None
    digest: str | None = None

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Raises UsageError "BAD_REFERENCE" that says which part is wrong."""
        if text.startswith("oci:"):
            return cls._parse_layout(text)
        return cls._parse_registry(text)

    @classmethod
    def _parse_layout(cls, text: str) -> Reference:
        directory, digest = _split_digest(text, text.removeprefix("oci:"))
        head, colon, tail = directory.rpartition(":")
        tag = None
        if colon and "/" not in tail:
            directory, tag = head, check_tag(tail, text)
        if not directory:
            raise _bad(text, "no directory after oci:", "write oci:DIR or oci:DIR:TAG")
        _refuse_both(text, tag, digest)
        return cls(layout=Path(directory), tag=tag, digest=digest)

    @classmethod
    def _parse_registry(cls, text: str) -> Reference:
        if "://" in text:
            raise _bad(text, "a reference has no scheme", f"write it as {text.split('://', 1)[1]}")
        name, digest = _split_digest(text, text)
        host, slash, path = name.partition("/")
        if not slash or not ("." in host or ":" in host or host == "localhost"):
            raise _bad(
                text,
                "the host of the registry is missing",
                f"write HOST/{name}, such as docker.io/library/{name} or localhost:5000/{name}; "
                f"a local directory is oci:{name}",
            )
        if not _HOST_PATTERN.fullmatch(host):
            raise _bad(text, f"{host!r} isn't a host or host:port")
        repository, colon, tail = path.partition(":")
        tag = check_tag(tail, text) if colon else None
        if repository != repository.lower():
            raise _bad(text, "repository names are lower case", f"write {host}/{repository.lower()}")
        if not _REPOSITORY_PATTERN.fullmatch(repository):
            raise _bad(text, f"{repository!r} isn't a repository name", "use a-z, 0-9 and single . _ - / between them")
        if len(host) + 1 + len(repository) > _MAX_NAME_CHARACTERS:
            raise _bad(text, f"the name is longer than {_MAX_NAME_CHARACTERS} characters")
        _refuse_both(text, tag, digest)
        if host == "docker.io" and "/" not in repository:
            repository = f"library/{repository}"
        return cls(host=host, repository=repository, tag=tag, digest=digest)

    @property
    def name(self) -> str:
        """Without tag and digest."""
        return f"oci:{self.layout}" if self.layout else f"{self.host}/{self.repository}"

    @property
    def target(self) -> str | None:
        """What to ask the repository for: the tag or the digest."""
        return self.tag or self.digest

    def with_tag(self, tag: str) -> Reference:
        return replace(self, tag=check_tag(tag, f"{self.name}:{tag}"), digest=None)

    def with_digest(self, digest: str) -> Reference:
        return replace(self, tag=None, digest=digest)

    def __str__(self) -> str:
        if self.digest:
            return f"{self.name}@{self.digest}"
        return f"{self.name}:{self.tag}" if self.tag else self.name


def check_tag(tag: str, where: str) -> str:
    if not TAG_PATTERN.fullmatch(tag):
        raise _bad(where, f"{tag!r} isn't a tag", "use letters, digits, _ . - and at most 128 characters")
    return tag


def is_loopback(host: str) -> bool:
    """Whether a host or host:port is this machine, so that plain HTTP leaks nothing."""
    name = host.rsplit(":", 1)[0] if re.search(r":\d+$", host) and not host.endswith("]") else host
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def _split_digest(text: str, name: str) -> tuple[str, str | None]:
    name, at, digest = name.partition("@")
    if at and not DIGEST_PATTERN.fullmatch(digest):
        raise _bad(text, f"{digest!r} isn't a digest", "a digest is sha256: and 64 lower-case hex digits")
    return name, digest or None


def _refuse_both(text: str, tag: str | None, digest: str | None) -> None:
    if tag and digest:
        raise _bad(text, "both a tag and a digest", f"leave out one of :{tag} and @{digest}")


def _bad(text: str, why: str, hint: str | None = None) -> UsageError:
    return UsageError("this isn't a reference to an image", where=text, why=why, hint=hint, code="BAD_REFERENCE")
