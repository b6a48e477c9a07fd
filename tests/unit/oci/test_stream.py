import threading
from collections.abc import Iterator

import pytest

from builder.errors import VerificationError
from builder.oci.descriptor import Descriptor
from builder.oci.stream import read_ahead, verified

CHUNKS = (b"one", b"", b"two", b"three")
DESCRIPTOR = Descriptor.of("x", b"".join(CHUNKS))


def taken_before_failure(chunks: Iterator[bytes]) -> bytes:
    taken: list[bytes] = []
    with pytest.raises(VerificationError) as caught:
        taken.extend(verified(chunks, DESCRIPTOR, "here"))
    assert caught.value.code == "WRONG_DIGEST"
    return b"".join(taken)


def test_a_right_stream_passes_unchanged() -> None:
    assert b"".join(verified(iter(CHUNKS), DESCRIPTOR, "here")) == b"onetwothree"


def test_the_end_of_a_wrong_stream_is_never_given_out() -> None:
    assert taken_before_failure(iter((b"one", b"two", b"thref"))) == b"onetwo"


def test_a_short_and_a_long_stream_are_refused() -> None:
    taken_before_failure(iter((b"one",)))
    taken_before_failure(iter((*CHUNKS, b"!")))


def test_reading_ahead_gives_the_same_chunks() -> None:
    chunks = [bytes([number]) for number in range(100)]
    assert list(read_ahead(iter(chunks))) == chunks


def test_an_error_while_reading_ahead_reaches_the_reader() -> None:
    def broken() -> Iterator[bytes]:
        yield b"one"
        raise OSError("gone")

    stream = read_ahead(broken())
    assert next(stream) == b"one"
    with pytest.raises(OSError, match="gone"):
        next(stream)


def test_a_reader_that_stops_early_leaves_no_thread_behind() -> None:
    stream = read_ahead(iter([b"x"] * 1000))
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if thread.name == "read-ahead"]
