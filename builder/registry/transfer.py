"""Moving blobs: several at a time, each as a stream."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

from builder.oci.descriptor import Descriptor
from builder.oci.repository import Repository
from builder.oci.stream import Advance

PARALLEL = 4

T = TypeVar("T")


class _Stopped(Exception):
    """Another transfer failed, or the user stopped us."""


def for_each(items: Iterable[T], work: Callable[[T, Advance], None], advance: Advance) -> None:
    """`work(item, advance)` for all items, a few at a time. The first failure, or Ctrl-C, stops the others soon:
    the `advance` that they get raises then.
    """
    stopped = threading.Event()
    lock = threading.Lock()

    def advance_or_stop(count: int) -> None:
        if stopped.is_set():
            raise _Stopped
        with lock:
            advance(count)

    with ThreadPoolExecutor(PARALLEL, "transfer") as pool:
        futures = [pool.submit(work, item, advance_or_stop) for item in items]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
    failures = [error for future in futures if not future.cancelled() and (error := future.exception())]
    for failure in failures:
        if not isinstance(failure, _Stopped):
            raise failure


def copy_blob(descriptor: Descriptor, source: Repository, target: Repository, advance: Advance) -> None:
    """Mounted where source and target are on one registry, streamed through this machine otherwise."""
    if target.has_blob(descriptor) or target.mount_blob(descriptor, source.reference):
        advance(descriptor.size)
        return
    target.put_blob(descriptor, lambda: source.open_blob(descriptor), advance)
