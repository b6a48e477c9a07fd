"""A snapshot: what was pinned of a model's source, file by file, each with its class."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, get_args

from builder.errors import SourceError

FileKind = Literal["weights", "config", "tokenizer", "documentation", "other"]

_PATTERNS: tuple[tuple[FileKind, tuple[str, ...]], ...] = (
    ("weights", ("*.safetensors", "*.safetensors.index.json")),
    (
        "config",
        (
            *("config.json", "generation_config.json", "adapter_config.json"),
            *("hf_quant_config.json", "quantize_config.json", "quant_config.json"),
        ),
    ),
    (
        "tokenizer",
        (
            "tokenizer*.json",
            "tokenizer.model",
            "vocab.json",
            "merges.txt",
            "special_tokens_map.json",
            "added_tokens.json",
            "chat_template.jinja",
            "chat_template.json",
        ),
    ),
)
_DOCUMENTATION = (
    *("*.md", "LICENSE*", "LICENCE*", "NOTICE*", ".gitattributes", ".gitignore"),
    *("*.png", "*.jpg", "*.jpeg", "*.gif", "*.svg", "*.webp", "*.pdf"),
)


_KINDS = frozenset(get_args(FileKind))
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def classify(path: str) -> FileKind:
    """The class of a file by its path inside the source, as Hugging Face repositories name their files.

    Only the top level and `additional_chat_templates/` count: a `config.json` or `*.safetensors` deeper down
    belongs to another format of the same model (`original/`, `onnx/`, …).
    """
    for kind, patterns in _PATTERNS:
        if "/" not in path and _matches(path, patterns):
            return kind
    if fnmatchcase(path, "additional_chat_templates/*.jinja") and path.count("/") == 1:
        return "tokenizer"
    if _matches(path.rpartition("/")[2], _DOCUMENTATION):
        return "documentation"
    return "other"


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


@dataclass(frozen=True)
class SnapshotFile:
    path: str
    """Relative to the source, with forward slashes; never leaves it."""
    size: int
    sha256: str
    kind: FileKind


@dataclass(frozen=True)
class Snapshot:
    """`revision` names the content: a commit, or `sha256:…` of what stands for it."""

    source: str
    revision: str
    files: tuple[SnapshotFile, ...]

    def of_kind(self, *kinds: FileKind) -> tuple[SnapshotFile, ...]:
        return tuple(file for file in self.files if file.kind in kinds)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def content_digest(self) -> str:
        """The same for the same files, wherever they come from; see `digest_of_files`."""
        return digest_of_files(self.files)

    def to_json(self) -> dict[str, Any]:
        """As it lies in a lock; the files sorted by path so that diffs stay small."""
        files = sorted(self.files, key=lambda file: file.path)
        return {"source": self.source, "revision": self.revision, "files": [vars(file) for file in files]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Snapshot:
        """The opposite of `to_json`. A lock may have been edited by hand, so nothing in it is taken on trust.

        Raises SourceError `PATH_ESCAPE` for a path that leaves the source, `BAD_SNAPSHOT` for anything else.
        """
        try:
            source, revision = value["source"], value["revision"]
            files = tuple(_file_from_json(file) for file in value["files"])
        except (KeyError, TypeError) as error:
            raise _bad_snapshot(f"{type(error).__name__}: {error}") from error
        if not isinstance(source, str) or not isinstance(revision, str):
            raise _bad_snapshot("source and revision are texts")
        if len({file.path for file in files}) != len(files):
            raise _bad_snapshot("a file is listed twice")
        return cls(source, revision, files)


def digest_of_files(files: Iterable[SnapshotFile]) -> str:
    """`sha256:` over the lines "SHA256  SIZE  PATH" of the files, sorted by path."""
    lines = "".join(f"{file.sha256}  {file.size}  {file.path}\n" for file in sorted(files, key=lambda file: file.path))
    return f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}"


def _file_from_json(value: Mapping[str, Any]) -> SnapshotFile:
    path, size, sha256, kind = value["path"], value["size"], value["sha256"], value["kind"]
    whole_number(size)
    if not isinstance(path, str) or kind not in _KINDS:
        raise _bad_snapshot(f"not a file of a snapshot: {dict(value)}")
    return SnapshotFile(check_path(path, where="the lock"), size, check_sha256(sha256, where="the lock"), kind)


def whole_number(value: object) -> int:
    """`value` itself if it is a number of bytes or things, which JSON can hold in any form. Raises TypeError."""
    if type(value) is not int or not 0 <= value < 1 << 60:
        raise TypeError(f"a whole number from 0 was expected, not {value!r:.100}")
    return value


def _bad_snapshot(why: str) -> SourceError:
    return SourceError(
        "a pinned model isn't written as it should be",
        why=why,
        hint="lock the recipe again with `engine-builder lock`",
        code="BAD_SNAPSHOT",
    )


def check_path(path: str, *, where: str | Path) -> str:
    """`path` itself if it names a file below a folder on every system; SourceError `PATH_ESCAPE` otherwise."""
    if _PLAIN_NAME.fullmatch(path):
        return path
    parts = path.split("/")
    if (
        any(part in ("", ".", "..") for part in parts)
        or "\\" in path
        or re.match(r"[A-Za-z]:", path)
        or not path.isprintable()
    ):
        raise SourceError(
            f"a file name would leave the model's folder: {path!r}",
            where=where,
            why="names from outside must be relative, without '..', backslashes, drives or control characters",
            hint="don't use this source; tell its owner",
            code="PATH_ESCAPE",
        )
    return path


def check_sha256(digest: object, *, where: str | Path) -> str:
    """`digest` itself if it is 64 lower-case hexadecimal digits; SourceError `BAD_DIGEST` otherwise."""
    if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
        raise SourceError(f"not a sha256: {digest!r}", where=where, code="BAD_DIGEST")
    return digest
