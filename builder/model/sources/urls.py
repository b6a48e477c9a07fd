"""Addresses that are safe to show and to write down."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

_IN_TEXT = re.compile(r"(https?://)(?:[^/\s'\"@]*@)?([^\s'\"?#]*)[?#]?[^\s'\"]*")


def without_credentials(url: str) -> str:
    """Without the user and password that it may carry, and without its query, which may be signed."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def text_without_credentials(text: str) -> str:
    """A text in which every address is treated so."""
    return _IN_TEXT.sub(r"\1\2", text)
