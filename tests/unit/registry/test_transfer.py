from __future__ import annotations

import threading
from pathlib import Path

import pytest

from builder.errors import StorageError
from builder.oci.descriptor import Descriptor
from builder.oci.layout import LayoutRepository
from builder.oci.stream import Advance, ignore_progress
from builder.registry.transfer import copy_blob, for_each


def test_all_items_are_done_and_counted() -> None:
    counted: list[int] = []
    for_each(range(20), lambda item, advance: advance(item), counted.append)
    assert sorted(counted) == list(range(20))


def test_the_first_failure_stops_the_others() -> None:
    failed = threading.Event()
    rounds = 0

    def work(item: int, advance: Advance) -> None:
        nonlocal rounds
        if item == 3:
            failed.set()
            raise StorageError("refused")
        failed.wait()
        for _ in range(10_000_000):
            advance(1)
            rounds += 1

    with pytest.raises(StorageError, match="refused"):
        for_each(range(100), work, ignore_progress)
    assert rounds < 30_000_000


def test_a_blob_is_copied_between_repositories(tmp_path: Path) -> None:
    source, target = LayoutRepository(tmp_path / "a"), LayoutRepository(tmp_path / "b")
    blob = Descriptor.of("x", b"content")
    source.put_blob(blob, lambda: iter((b"content",)))
    counted: list[int] = []
    copy_blob(blob, source, target, counted.append)
    copy_blob(blob, source, target, counted.append)
    assert b"".join(target.open_blob(blob)) == b"content"
    assert sum(counted) == 2 * blob.size
