"""The tree of errors that users see; each class has its exit code and a stable `code`.

    BuilderError                 1    internal
    ├── UsageError               2    bad command line or recipe
    │   └── RecipeError               with file:line:column
    ├── PlanRefused              3    the plan says that it can't work
    ├── SourceError              4    a source can't be reached, is damaged, or drifted from the lock
    ├── ToolchainError           5    a tool that we ran failed
    ├── StorageError             6    registry or store
    ├── VerificationError        7    an output isn't what it should be
    ├── HostError                8    disk, port, Docker, GPU of this machine
    └── Interrupted            130    the user or the system asked us to stop

An error says what happened, where, why, and what to do next. `str(error)` is the first of these;
`error.render()` is all of them, as the command line prints it.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MAX_MESSAGE, MAX_DETAIL = 1000, 8000
"""Characters that are shown of one part of an error."""

_CONTROL = re.compile("[\0-\b\v-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_NEXT_LINE = re.compile(r"\n(?! )")


class BuilderError(Exception):
    """Something that the user should read; never shown with a traceback."""

    exit_code = 1
    code = "INTERNAL"

    def __init__(
        self,
        message: str,
        *,
        where: object = None,
        why: str | None = None,
        hint: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.where = None if where is None else str(where)
        self.why = why
        self.hint = hint
        if code is not None:
            self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors of worker processes arrive whole."""
        return _rebuilt, (type(self), self.message, self.where, self.why, self.hint, self.code)

    def render(self) -> str:
        lines = [f"error[{self.code}]: {_shown(self.message, MAX_MESSAGE)}"]
        for label, text in (("where", self.where), ("why", self.why), ("try", self.hint)):
            if text:
                lines.append(f"  {label}: {_shown(text, MAX_DETAIL)}")
        return "\n".join(lines)


def _shown(text: str, most: int) -> str:
    """Words of other people may be in it: no line of theirs looks like one of ours, and no terminal obeys them."""
    if len(text) > most:
        text = f"{text[:most]}… ({len(text) - most} more characters)"
    return _NEXT_LINE.sub("\n    ", _CONTROL.sub(lambda sign: ascii(sign[0])[1:-1], text))


def _rebuilt(
    kind: type[BuilderError], message: str, where: str | None, why: str | None, hint: str | None, code: str
) -> BuilderError:
    return kind(message, where=where, why=why, hint=hint, code=code)


class UsageError(BuilderError):
    exit_code = 2
    code = "USAGE"


class RecipeError(UsageError):
    code = "RECIPE"


class PlanRefused(BuilderError):
    exit_code = 3
    code = "REFUSED"


class SourceError(BuilderError):
    exit_code = 4
    code = "SOURCE"


class ToolchainError(BuilderError):
    exit_code = 5
    code = "TOOLCHAIN"


class StorageError(BuilderError):
    exit_code = 6
    code = "STORAGE"


class VerificationError(BuilderError):
    exit_code = 7
    code = "VERIFICATION"


class HostError(BuilderError):
    exit_code = 8
    code = "HOST"


class Interrupted(BuilderError):
    exit_code = 130
    code = "INTERRUPTED"


_SEVERITY = (1, 7, 5, 6, 8, 4, 3)


def worst(exit_codes: Iterable[int]) -> int:
    """The exit code that stands for several failures: 1, 7, 5, 6, 8, 4, 3 in this order."""
    codes = set(exit_codes) - {0}
    for code in (130, *_SEVERITY, 2):
        if code in codes:
            return code
    return max(codes, default=0)


@contextmanager
def disk_errors(path: Path, elsewhere: str = "choose another folder") -> Iterator[None]:
    """Turn "no space", "quota", "read-only" and "permission denied" from the operating system into a HostError.

    `elsewhere` tells the user how to put it where there is room.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise HostError(
                "the disk is full",
                where=error.filename or path,
                why=error.strerror,
                hint=f"free some space, or {elsewhere}; the next run continues",
                code="DISK_FULL",
            ) from error
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise HostError(
                "permission denied",
                where=error.filename or path,
                why=error.strerror,
                hint=f"give this user access, or {elsewhere}",
                code="NOT_WRITABLE",
            ) from error
        raise
