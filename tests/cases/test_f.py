"""Public reports on hostile and broken input, checked where a plan meets it."""

import json
import resource
import time
from pathlib import Path
from typing import Any

import pytest

from builder.errors import SourceError
from builder.model.safetensors import read_header
from tests.cases.support import config_of, failed, run_plan, write_case
from tests.cases.weight_files import write_header

BF16_2X2 = {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]}
TINYLLAMA = "TinyLlama--TinyLlama-1.1B-Chat-v1.0"


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def prefixed(length: int, rest: bytes) -> bytes:
    return length.to_bytes(8, "little") + rest


def a_file(header: Any, data_bytes: int) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return prefixed(len(text), text + bytes(data_bytes))


# One bfloat16 number has 2 bytes: shape [2, 2] has 8, so that [0, 4] is half of it, and [4, 12] begins inside [0, 8].
MALFORMED = {
    "length-2^63": (prefixed(1 << 63, b"{}"), "9223372036854775808"),
    "length-beyond-the-file": (prefixed(1000, b"{}"), "998 bytes are missing"),
    "key-twice": (a_file(b'{"t": %s, "t": %s}' % ((json.dumps(BF16_2X2).encode(),) * 2), 8), "t is given twice"),
    "overlap": (a_file({"a": BF16_2X2, "b": entry("BF16", [2, 2], 4, 12)}, 12), "overlaps"),
    "gap": (a_file({"a": BF16_2X2, "b": entry("BF16", [2, 2], 16, 24)}, 24), "gap"),
    "end-beyond-the-file": (a_file({"t": entry("BF16", [8], 0, 16)}, 8), "8 bytes are missing"),
    "shape-and-offsets-differ": (a_file({"t": entry("BF16", [2, 2], 0, 4)}, 4), "4 bytes"),
    "unknown-dtype": (a_file({"t": entry("Q9", [8], 0, 8)}, 8), "Q9"),
    "a-list": (a_file([], 0), "{"),
}

NEIGHBOURS = {
    "length-one-beyond-the-limit": (prefixed(100_000_001, b"{}"), "100000001"),
    "length-2^64-1": (prefixed((1 << 64) - 1, b"{}"), "18446744073709551615"),
    "no-whole-length": (b"\x10\0\0", "5 bytes are missing"),
    "an-empty-file": (b"", "8 bytes are missing"),
    "key-of-a-tensor-twice": (
        a_file(b'{"t": {"dtype": "F16", "dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}', 8),
        "t.dtype is given twice",
    ),
    "offsets-go-backwards": (a_file({"t": entry("F32", [2], 8, 0)}, 8), "-8 bytes"),
    "negative-shape": (a_file({"t": entry("F32", [-2], 0, 8)}, 8), "whole numbers"),
    "shape-times-dtype-overflows": (a_file({"t": entry("F32", [1 << 32, 1 << 32], 0, 0)}, 0), "size of F32"),
    "offset-is-no-number": (
        a_file({"t": {"dtype": "F32", "shape": [2], "data_offsets": [0, "8"]}}, 8),
        "whole numbers",
    ),
    "bytes-of-nobody": (a_file({"t": BF16_2X2}, 9), "1 bytes"),
    "not-JSON": (a_file(b'{"t": ', 0), "line 1"),
    "not-UTF-8": (a_file(b'{"\xff": 1}', 0), "utf-8"),
    "NaN": (a_file(b'{"t": NaN}', 0), "NaN"),
    "deeply-nested": (a_file(b'{"t": ' + b"[" * 100_000, 0), "recursion"),
    "metadata-holds-a-number": (a_file({"__metadata__": {"format": 1}, "t": BF16_2X2}, 8), "__metadata__"),
}


def planned(folder: Path, content: bytes) -> Path:
    recipe = write_case(folder, config_of(TINYLLAMA))
    (folder / "model" / "model.safetensors").write_bytes(content)
    return recipe


@pytest.mark.parametrize(
    ("content", "word"), [*MALFORMED.values(), *NEIGHBOURS.values()], ids=[*MALFORMED, *NEIGHBOURS]
)
def test_f08_a_malformed_header_ends_in_a_clean_error(tmp_path: Path, content: bytes, word: str) -> None:
    """Readers of several projects trusted the header of a safetensors file: they allocated what its first 8 bytes say,
    took the last of two equal keys, or read past the end.

    https://github.com/run-ai/runai-model-streamer/issues/121, https://github.com/ml-explore/mlx/issues/3363,
    https://github.com/safetensors/safetensors/issues/401, https://github.com/promptfoo/modelaudit/issues/1607
    """
    error = failed(planned(tmp_path, content))
    assert (error.exit_code, error.code) == (4, "SAFETENSORS_HEADER")
    assert word in error.words
    assert "model.safetensors" in error.words


@pytest.mark.parametrize(
    ("tensors", "data_bytes"),
    [
        pytest.param({"a": BF16_2X2, "empty": entry("BF16", [0], 8, 8)}, 8, id="empty-at-the-end"),
        pytest.param({"empty": entry("F32", [3, 0], 0, 0), "a": BF16_2X2}, 8, id="empty-at-the-beginning"),
        pytest.param(
            {"a": BF16_2X2, "empty": entry("I64", [0], 8, 8), "b": entry("F16", [2], 8, 12)}, 12, id="between-two"
        ),
        pytest.param({"b": entry("F16", [2], 8, 12), "a": BF16_2X2}, 12, id="not-in-the-order-of-their-bytes"),
        pytest.param({"scalar": entry("F32", [], 0, 4)}, 4, id="a-scalar"),
    ],
)
def test_f08_empty_tensors_are_legal(tmp_path: Path, tensors: dict[str, Any], data_bytes: int) -> None:
    """The false alarm among these reports: an empty tensor owns no bytes, and shares its place with its neighbour.

    https://github.com/promptfoo/modelaudit/issues/1607
    """
    recipe = planned(tmp_path, a_file(tensors, data_bytes))
    assert not run_plan(recipe).refused
    lock = json.loads(recipe.with_suffix(".lock.json").read_text())
    assert lock["model"]["tensors"]["count"] == len(tensors)
    assert lock["model"]["tensors"]["bytes"] == data_bytes


def test_f08_nothing_is_allocated_by_the_declared_length(tmp_path: Path) -> None:
    """A file of 100 GB (of holes) whose header claims half of it: refused in a moment, and little is read.

    https://github.com/run-ai/runai-model-streamer/issues/121
    """
    file = tmp_path / "model.safetensors"
    size = write_header(file, {}, 100_000_000_000)
    with open(file, "r+b") as content:
        content.write((size // 2).to_bytes(8, "little"))
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    with pytest.raises(SourceError) as caught:
        read_header(file)
    assert caught.value.code == "SAFETENSORS_HEADER"
    assert time.monotonic() - began < 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 10_000  # kB
