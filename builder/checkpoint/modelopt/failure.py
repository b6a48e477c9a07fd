"""What goes wrong in the worker, in the kinds that its parent has words for."""

from __future__ import annotations

import errno

_NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "cannot allocate memory")
_NO_SPACE = ("no space left on device", "disk quota exceeded")
_NOT_FINITE = ("nan value", "inf value", "nan/inf", "scaling factor")


class Failure(Exception):
    """`kind` is a key of `builder.checkpoint.modelopt.complaints`."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def failure_of(error: BaseException, doing: str) -> Failure:
    """The kind of an error that came up while `doing` something: "load", "calibrate" or "export"."""
    if isinstance(error, Failure):
        return error
    text = str(error) or "no reason was given"
    said, lower = f"{type(error).__name__}: {text}", text.lower()
    if isinstance(error, MemoryError) or any(words in lower for words in _NO_MEMORY):
        return Failure("MEMORY", said)
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or any(words in lower for words in _NO_SPACE):
        return Failure("DISK", said)
    if isinstance(error, AssertionError) and any(words in lower for words in _NOT_FINITE):
        return Failure("NOT_FINITE", said)
    return Failure({"load": "MODEL", "calibrate": "CALIBRATE", "export": "EXPORT"}[doing], said)
