"""What the exceptions of the Hub's client mean for a user."""

from __future__ import annotations

import errno
from pathlib import Path

from huggingface_hub import constants
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from builder.errors import BuilderError, HostError, SourceError
from builder.model.sources.hub_session import AskedToWait, token_origin
from builder.model.sources.urls import text_without_credentials

EXPECTED = (HfHubHTTPError, EntryNotFoundError, HFValidationError, AskedToWait, OSError, RuntimeError, ValueError)


def explain(
    error: Exception, *, endpoint: str, repo: str, page: str, where: str, cache_dir: Path | None
) -> BuilderError:
    """`repo` is the name to show, `page` its address; `where` and `cache_dir` say what was looked for, and where."""
    if isinstance(error, EntryNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # "not in the cache either"; the reason is behind it
    token = token_origin()

    def source_error(message: str, code: str, hint: str, why: str | None = None) -> SourceError:
        return SourceError(message, where=where, why=why or _first_line(error), hint=hint, code=code)

    match error:
        case GatedRepoError():
            return source_error(
                f"access to {repo} must be asked for",
                "GATED",
                f"accept the licence at {page}, then log in with `hf auth login` or set HF_TOKEN",
                f"the account of {token} hasn't been given access" if token else "no token was sent",
            )
        case HfHubHTTPError() if _token_was_refused(error, token):
            return source_error(
                f"the Hub refused the token of {token}" if token else f"the Hub refused access to {repo}",
                "UNAUTHORIZED",
                "it may be revoked or expired: make a new one at https://huggingface.co/settings/tokens, then set "
                "HF_TOKEN or run `hf auth login`",
                f"{error.response.status_code} for {repo}",
            )
        case RepositoryNotFoundError():
            return source_error(
                f"there is no repository {repo}, or it is private",
                "REPO_NOT_FOUND",
                f"check the name at {page}; for a private one "
                + (f"{token} must have access" if token else "log in with `hf auth login` or set HF_TOKEN, too"),
            )
        case RevisionNotFoundError():
            return source_error(
                f"{repo} has no such revision",
                "REVISION_NOT_FOUND",
                f"see {page}/commits/main; a pinned commit that is gone needs `engine-builder lock --upgrade`",
            )
        case OfflineModeIsEnabled():
            return source_error(
                f"{repo} isn't all in the Hub's cache, and HF_HUB_OFFLINE forbids to ask",
                "OFFLINE",
                "unset HF_HUB_OFFLINE for one run",
            )
        case AskedToWait():
            return source_error("the Hub allows no more requests for now", "RATE_LIMITED", _RATE_LIMIT_HINT, str(error))
        case HfHubHTTPError() if error.response.status_code == 429:
            return source_error("the Hub allows no more requests for now", "RATE_LIMITED", _RATE_LIMIT_HINT)
        case HfHubHTTPError():
            return source_error(
                f"the Hub answered {error.response.status_code}",
                "HUB_FAILED",
                "try again later; see https://status.huggingface.co",
            )
        case OSError() if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return HostError(
                "the disk is full",
                where=cache_dir or constants.HF_HUB_CACHE,
                why=error.strerror,
                hint="free some space, or move the Hub's cache with HF_HOME; the next run continues",
                code="DISK_FULL",
            )
        case OSError() if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            return HostError(
                "can't write to the Hub's cache",
                where=error.filename or cache_dir or constants.HF_HUB_CACHE,
                why=error.strerror,
                hint="choose a writable folder with HF_HOME",
                code="NOT_WRITABLE",
            )
        case _ if is_transport_error(error, "NetworkError", "TimeoutException", "ProxyError"):
            return source_error(
                f"can't reach {endpoint}",
                "NO_NETWORK",
                "check the network, the proxy (HTTPS_PROXY) and private certificates (SSL_CERT_FILE); "
                "HF_ENDPOINT names a mirror",
            )
        case _:
            return source_error(f"downloading {repo} failed", "HUB_FAILED", "try again; what came whole is kept")


_RATE_LIMIT_HINT = "wait and run it again: what came whole is kept; logged in (`hf auth login`) the limit is higher"


def is_transport_error(error: Exception, *kinds: str) -> bool:
    """Whether it is an error of the client's HTTP library: httpx in huggingface_hub 1, httpx2 in 2, the same names."""
    names = {base.__name__ for base in type(error).__mro__}
    return not names.isdisjoint(kinds or ("HTTPError",))


def _token_was_refused(error: HfHubHTTPError, token: str | None) -> bool:
    """A 401 that isn't said of the repository, or a 403. Without a token the Hub says 401 where it means "no such"."""
    if error.response.status_code == 403:
        return True
    named = error.response.headers.get("x-error-code") in ("RepoNotFound", "GatedRepo")
    if isinstance(error, RepositoryNotFoundError) and token is None:
        return False
    return error.response.status_code == 401 and not named


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {text_without_credentials(lines[0])}" if lines else type(error).__name__
