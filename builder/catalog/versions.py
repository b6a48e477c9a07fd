"""Versions of TensorRT-LLM and its parts, ordered as PEP 440 says: pre-releases below finals, 0.9 below 0.10."""

from __future__ import annotations

from functools import lru_cache

from packaging.version import InvalidVersion, Version

from builder.errors import UsageError


@lru_cache(maxsize=512)
def parse(version: str) -> Version:
    """The version, comparable. NVIDIA's four parts are fine ("10.13.3.9"). Raises UsageError (BAD_VERSION)."""
    try:
        return Version(version)
    except (InvalidVersion, TypeError):
        raise UsageError(
            f"{version!r:.80} is not a version",
            why="versions follow PEP 440",
            hint="write it like 1.2.1, 1.3.0rc21 or 10.13.3.9",
            code="BAD_VERSION",
        ) from None
