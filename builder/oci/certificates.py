"""Private certificate authorities: every usual variable counts, not only those that the HTTP library reads."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path

_READ = ("SSL_CERT_FILE", "SSL_CERT_DIR")
_OTHERS = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


def honour_ca_variables(environment: MutableMapping[str, str] = os.environ) -> None:
    """Where neither SSL_CERT_FILE nor SSL_CERT_DIR is set, set one from requests' or curl's variable.

    httpx, and the clients that are made of it, read the first two alone; all of them replace the usual authorities.
    """
    if any(environment.get(name) for name in _READ):
        return
    for name in _OTHERS:
        if value := environment.get(name):
            environment["SSL_CERT_DIR" if Path(value).is_dir() else "SSL_CERT_FILE"] = value
            return
