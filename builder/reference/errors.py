"""The one error of this room."""

from __future__ import annotations


class ReferenceModelError(ValueError):
    """Something that the reference model doesn't implement or that isn't as it should be; says what and where."""
