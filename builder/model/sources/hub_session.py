"""The Hub client's own HTTP session, with a bound on how long a rate limit is waited for.

Mirrors (HF_ENDPOINT), proxies, certificates and tokens are the client's affair, and so apply to everything here.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from huggingface_hub import constants, get_session
from huggingface_hub.errors import HfHubHTTPError

from builder.oci.certificates import honour_ca_variables
from builder.oci.retry_after import retry_after_seconds

MAX_WAIT_SECONDS = 60.0
_ATTEMPTS = 4
_RATE_LIMIT = re.compile(r"r\s*=\s*0\s*;\s*t\s*=\s*(\d+)")

Answer = TypeVar("Answer")


class AskedToWait(Exception):
    """The Hub wants us to wait longer than anybody would sit and watch."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"it asks to wait {seconds:.0f} s")
        self.seconds = seconds


def session() -> Any:
    """An httpx client, shared with the Hub's client: its downloads then don't wait for hours either."""
    honour_ca_variables()
    client = get_session()
    hooks = client.event_hooks
    if _refuse_long_waits not in hooks["response"]:
        client.event_hooks = {**hooks, "response": [*hooks["response"], _refuse_long_waits]}
    return client


def patiently(ask: Callable[[], Answer]) -> Answer:
    """What `ask` returns; asked again after a rate limit, when the Hub says. Raises what `ask` raised last."""
    for attempt in range(_ATTEMPTS):
        session()
        try:
            return ask()
        except HfHubHTTPError as error:
            if error.response.status_code != 429 or attempt == _ATTEMPTS - 1:
                raise
            time.sleep(wait_asked_for(error.response) or 2.0**attempt)
    raise AssertionError  # the last attempt returns or raises


def wait_asked_for(response: Any) -> float | None:
    """Seconds, from Retry-After or the Hub's RateLimit header ('"api";r=0;t=55')."""
    if match := _RATE_LIMIT.search(response.headers.get("ratelimit", "")):
        return float(match[1])
    return retry_after_seconds(response.headers.get("retry-after", ""))


def _refuse_long_waits(response: Any) -> None:
    if response.status_code in (429, 503) and (seconds := wait_asked_for(response) or 0) > MAX_WAIT_SECONDS:
        raise AskedToWait(seconds)


def token_origin() -> str | None:
    """Where the Hub's client has its token from, in words; None where there is none. The token isn't looked at."""
    if os.environ.get("HF_OIDC_RESOURCE"):
        return "HF_OIDC_RESOURCE (trusted publishing)"
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if os.environ.get(name):
            return f"the variable {name}"
    return f"the file {constants.HF_TOKEN_PATH}" if Path(constants.HF_TOKEN_PATH).is_file() else None
