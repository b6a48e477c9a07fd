"""Streams of bytes: checked against a descriptor, and read ahead in a thread."""

from __future__ import annotations

import hashlib
import queue
import threading
from collections.abc import Callable, Iterator

from builder.errors import VerificationError
from builder.oci.descriptor import Descriptor

CHUNK_BYTES = 1 << 20

Advance = Callable[[int], None]
"""Told the number of bytes that were just processed; may raise to stop the work."""


def ignore_progress(_: int) -> None:
    """An `Advance` for callers that show nothing."""


def verified(chunks: Iterator[bytes], descriptor: Descriptor, where: str) -> Iterator[bytes]:
    """The same chunks. The last one is held back until the digest is known to be right, so nobody can take a wrong
    stream for a complete one. Raises VerificationError "WRONG_DIGEST".
    """
    digest = hashlib.sha256()
    size = 0
    held = b""
    for chunk in chunks:
        size += len(chunk)
        if size > descriptor.size:
            raise _wrong(descriptor, where, f"more than the {descriptor.size} bytes that it should have")
        digest.update(chunk)
        if held:
            yield held
        held = chunk
    if size != descriptor.size:
        raise _wrong(descriptor, where, f"{size} bytes, expected {descriptor.size}")
    if (found := f"sha256:{digest.hexdigest()}") != descriptor.digest:
        raise _wrong(descriptor, where, f"its content has the digest {found}")
    if held:
        yield held


def read_ahead(chunks: Iterator[bytes], depth: int = 4) -> Iterator[bytes]:
    """The same chunks, made in a thread up to `depth` ahead: an upload's reading and hashing overlap with its sending.
    (Writing to a local disk gains nothing from it.)
    """
    ready: queue.Queue[bytes | BaseException | None] = queue.Queue(depth)
    stopped = threading.Event()

    def offer(item: bytes | BaseException | None) -> bool:
        while not stopped.is_set():
            try:
                ready.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def produce() -> None:
        try:
            for chunk in chunks:
                if not offer(chunk):
                    return
        except BaseException as error:  # carried over to the caller's thread
            offer(error)
        else:
            offer(None)

    thread = threading.Thread(target=produce, name="read-ahead", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stopped.set()
        thread.join()


def _wrong(descriptor: Descriptor, where: str, why: str) -> VerificationError:
    return VerificationError(
        f"the content isn't {descriptor.digest}",
        where=where,
        why=why,
        code="WRONG_DIGEST",
    )
