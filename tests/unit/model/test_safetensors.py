import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save, save_file

from builder.errors import SourceError
from builder.model.safetensors import (
    MAX_HEADER_BYTES,
    TensorIndex,
    encode_header,
    read_header,
)

POINTER = (
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
    "size 4976698672\n"
)


def entry(dtype: str, shape: list[Any], begin: Any, end: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def a_file(folder: Path, header: Any, data_bytes: int = 0) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = folder / "model.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(data_bytes))
    return path


def refusal(folder: Path) -> SourceError:
    with pytest.raises(SourceError) as caught:
        TensorIndex.open(folder)
    return caught.value


BF16_2X2 = entry("BF16", [2, 2], 0, 8)


@pytest.mark.parametrize(
    ("header", "data_bytes", "words"),
    [
        pytest.param({"a": entry("U8", [8], 0, 8), "b": entry("U8", [8], 4, 12)}, 12, "b overlaps", id="overlap"),
        pytest.param({"a": entry("U8", [8], 0, 8), "b": entry("U8", [8], 0, 8)}, 8, "b overlaps", id="same-bytes"),
        pytest.param({"a": entry("U8", [8], 0, 8), "b": entry("U8", [8], 16, 24)}, 24, "b leaves a gap", id="gap"),
        pytest.param({"a": entry("U8", [8], 8, 16)}, 16, "a leaves a gap", id="gap-at-the-start"),
        pytest.param({"a": BF16_2X2}, 9, "1 bytes that no tensor", id="bytes-behind-the-last-tensor"),
        pytest.param({"a": entry("BF16", [2, 2], 0, 4)}, 4, "a has 4 bytes", id="shape-and-range-differ"),
        pytest.param({"a": entry("F4", [3], 0, 1)}, 1, "a has 1 bytes", id="half-a-byte"),
        pytest.param({"a": entry("BF16", [2**63, 2**63], 0, 8)}, 8, "a has 8 bytes", id="product-overflows-64-bits"),
        pytest.param({"a": entry("Q9", [2, 2], 0, 8)}, 8, "unknown dtype 'Q9'", id="unknown-dtype"),
        pytest.param({"a": entry("U8", [-8], 0, 8)}, 8, "whole numbers", id="negative-shape"),
        pytest.param({"a": entry("U8", [8.0], 0, 8)}, 8, "whole numbers", id="fractional-shape"),
        pytest.param({"a": entry("U8", [True], 0, 1)}, 1, "whole numbers", id="true-as-a-number"),
        pytest.param({"a": entry("U8", [10**30], 0, 8)}, 8, "whole numbers", id="number-over-64-bits"),
        pytest.param({"a": entry("U8", [8], 8, 0)}, 8, "a has -8 bytes", id="end-before-begin"),
        pytest.param({"a": {"dtype": "U8", "shape": [8]}}, 8, "a needs dtype", id="no-offsets"),
        pytest.param({"a": {**BF16_2X2, "file": "/etc/passwd"}}, 8, "nothing else", id="unknown-field"),
        pytest.param({"a": [1, 2]}, 8, "a needs dtype", id="tensor-is-a-list"),
        pytest.param({"__metadata__": {"format": 1}, "a": BF16_2X2}, 8, "__metadata__", id="metadata-is-not-text"),
        pytest.param([BF16_2X2], 8, 'does not begin with "{"', id="header-is-a-list"),
        pytest.param(b"", 8, 'does not begin with "{"', id="empty-header"),
        pytest.param(b' {"a": 1}', 8, 'does not begin with "{"', id="space-before-the-header"),
        pytest.param(b'{"a": ', 8, "Expecting value", id="header-is-cut"),
        pytest.param(b'{"a\xff": 1}', 8, "utf-8", id="header-is-not-utf-8"),
        pytest.param(b'{"a": NaN}', 8, "NaN at a", id="nan"),
        pytest.param(b'{"a": 1, "a": 2}', 8, "a is given twice", id="duplicate-tensor"),
        pytest.param(b'{"a": {"dtype": "U8", "dtype": "I8"}}', 8, "a.dtype is given twice", id="duplicate-field"),
        pytest.param(b'{"a":' + b"[" * 100_000, 8, "recursion", id="nested-too-deeply"),
        pytest.param(b'{"a":' + b"1" * 5000 + b"}", 8, "digits", id="number-with-5000-digits"),
    ],
)
def test_a_malformed_header_is_refused(tmp_path: Path, header: Any, data_bytes: int, words: str) -> None:
    path = a_file(tmp_path, header, data_bytes)
    error = refusal(tmp_path)
    assert (error.code, error.where) == ("SAFETENSORS_HEADER", str(path))
    assert words in str(error.why)


def test_a_header_length_is_bounded_before_anything_is_allocated(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    for length in (2**63, 2**64 - 1, MAX_HEADER_BYTES + 1):
        path.write_bytes(length.to_bytes(8, "little") + b"{}")
        error = refusal(tmp_path)
        assert error.code == "SAFETENSORS_HEADER"
        assert str(length) in str(error.why)


@pytest.mark.parametrize(
    ("content", "missing"),
    [
        pytest.param(b"", 8, id="empty-file"),
        pytest.param(b"\x10\0\0", 5, id="within-the-length"),
        pytest.param((100).to_bytes(8, "little") + b'{"a"', 96, id="within-the-header"),
    ],
)
def test_a_file_that_ends_before_its_header_is_truncated(tmp_path: Path, content: bytes, missing: int) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    error = refusal(tmp_path)
    assert error.code == "SAFETENSORS_HEADER"
    assert f"{missing} bytes are missing" in error.message


def test_a_truncated_file_says_how_many_bytes_are_missing(tmp_path: Path) -> None:
    a_file(tmp_path, {"a": BF16_2X2, "b": entry("F32", [1000], 8, 4008)}, data_bytes=1008)
    error = refusal(tmp_path)
    assert error.code == "SAFETENSORS_HEADER"
    assert "3000 bytes are missing" in error.message


@pytest.mark.parametrize("metadata", [{}, {"__metadata__": {}}, {"__metadata__": None}, {"__metadata__": {"x": "y"}}])
def test_metadata_is_optional(tmp_path: Path, metadata: dict[str, Any]) -> None:
    a_file(tmp_path, {**metadata, "t": BF16_2X2}, 8)
    (tensor,) = TensorIndex.open(tmp_path).tensors.values()
    assert (tensor.name, tensor.shape, tensor.nbytes) == ("t", (2, 2), 8)


def test_empty_tensors_and_scalars_are_legal(tmp_path: Path) -> None:
    header = {"a": BF16_2X2, "empty": entry("F32", [0], 8, 8), "scalar": entry("F32", [], 8, 12)}
    tensors = read_header(a_file(tmp_path, header, 12))
    assert [(tensor.name, tensor.nbytes) for tensor in tensors.values()] == [("a", 8), ("empty", 0), ("scalar", 4)]


def test_a_header_may_end_with_spaces(tmp_path: Path) -> None:
    assert list(read_header(a_file(tmp_path, json.dumps({"a": BF16_2X2}).encode() + b"   ", 8))) == ["a"]


def test_offsets_lead_to_the_bytes_that_the_library_wrote(tmp_path: Path) -> None:
    arrays = {"x": np.arange(6, dtype=np.int32).reshape(2, 3), "y": np.linspace(0, 1, 5, dtype=np.float16)}
    save_file(arrays, tmp_path / "model.safetensors")
    for name, tensor in TensorIndex.open(tmp_path).tensors.items():
        content = tensor.file.read_bytes()[tensor.begin : tensor.end]
        assert content == arrays[name].tobytes()
        assert tensor.shape == arrays[name].shape


def test_an_encoded_header_is_what_the_library_writes() -> None:
    arrays = {"a.weight": np.zeros((3, 5), np.float16), "bé": np.zeros((7,), np.float16)}
    ours = encode_header({"a.weight": ("F16", (3, 5)), "bé": ("F16", (7,))}, {"format": "pt"})
    theirs = save(arrays, {"format": "pt"})
    assert ours + bytes(2 * (15 + 7)) == theirs


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "model.safetensors"
    for header in (content, b"{" + content):
        path.write_bytes(len(header).to_bytes(8, "little") + header)
        try:
            tensors = read_header(path)
        except SourceError:
            continue
        assert sum(tensor.nbytes for tensor in tensors.values()) == 0


# folders


def sharded(folder: Path, count: int = 3) -> dict[str, str]:
    """A model of `count` shards with one tensor in each; the weight map that its index holds."""
    weight_map = {}
    for number in range(1, count + 1):
        shard = f"model-{number:05}-of-{count:05}.safetensors"
        save_file({f"t{number}": np.full(4, number, np.float32)}, folder / shard)
        weight_map[f"t{number}"] = shard
    write_index(folder, weight_map)
    return weight_map


def write_index(folder: Path, weight_map: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_a_sharded_model_is_read_through_its_index(tmp_path: Path) -> None:
    weight_map = sharded(tmp_path)
    tensors = TensorIndex.open(tmp_path).tensors
    assert {name: tensor.file.name for name, tensor in tensors.items()} == weight_map


def test_other_copies_of_the_weights_are_not_looked_at(tmp_path: Path) -> None:
    sharded(tmp_path)
    (tmp_path / "consolidated.safetensors").write_bytes(b"rubbish")
    (tmp_path / "pytorch_model.bin").write_bytes(b"rubbish")
    assert list(TensorIndex.open(tmp_path).tensors) == ["t1", "t2", "t3"]


def test_the_single_file_goes_before_an_index(tmp_path: Path) -> None:
    sharded(tmp_path)
    save_file({"whole": np.zeros(1, np.float32)}, tmp_path / "model.safetensors")
    assert list(TensorIndex.open(tmp_path).tensors) == ["whole"]


def test_missing_shards_are_counted_and_named(tmp_path: Path) -> None:
    sharded(tmp_path, 30)
    for number in range(16, 31):
        (tmp_path / f"model-{number:05}-of-00030.safetensors").unlink()
    error = refusal(tmp_path)
    assert error.code == "SHARD_MISSING"
    assert "15 of 30" in error.message
    assert "model-00016-of-00030.safetensors" in error.message
    assert "12 more" in error.message


def test_a_shard_that_the_hub_cache_lost_is_missing(tmp_path: Path) -> None:
    weight_map = sharded(tmp_path)
    shard = tmp_path / weight_map["t2"]
    shard.unlink()
    shard.symlink_to("../../blobs/lost")
    assert refusal(tmp_path).code == "SHARD_MISSING"


def test_an_index_that_names_the_wrong_shard_is_refused(tmp_path: Path) -> None:
    weight_map = sharded(tmp_path)
    write_index(tmp_path, {**weight_map, "t2": weight_map["t3"]})
    error = refusal(tmp_path)
    assert error.code == "INDEX_MISMATCH"
    assert "t2" in error.message


@pytest.mark.parametrize(
    "name", ["../../etc/passwd.safetensors", "/abs/file.safetensors", "a/../../b.safetensors", "C:\\x.safetensors", "x"]
)
def test_an_index_can_not_lead_out_of_the_folder(tmp_path: Path, name: str) -> None:
    write_index(tmp_path, {"t": name})
    error = refusal(tmp_path)
    assert error.code == "PATH_ESCAPE"
    assert repr(name) in error.message


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"t": 1}}', '{"weight_map": {"t":"a","t":"b"}}']
)
def test_a_malformed_index_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(content)
    assert refusal(tmp_path).code == "INDEX_JSON"


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json", "the shard"])
def test_a_git_lfs_pointer_is_named_with_the_size_that_it_promises(tmp_path: Path, name: str) -> None:
    if name == "the shard":
        name = sharded(tmp_path)["t2"]
    (tmp_path / name).write_text(POINTER)
    error = refusal(tmp_path)
    assert (error.code, error.where) == ("LFS_POINTER", str(tmp_path / name))
    assert "4976698672 bytes" in str(error.why)
    assert "git lfs pull" in str(error.hint)


@pytest.mark.parametrize(
    ("names", "code"),
    [
        (["config.json", "pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"], "PICKLE_ONLY"),
        (["consolidated.00.pth", "params.json"], "PICKLE_ONLY"),
        (["adapter_config.json", "adapter_model.safetensors"], "ADAPTER_ONLY"),
        (["model-Q4_K_M.gguf"], "GGUF_ONLY"),
        (["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"], "INDEX_MISSING"),
        (["config.json", "consolidated.safetensors"], "WEIGHTS_MISSING"),
        ([], "WEIGHTS_MISSING"),
    ],
)
def test_a_folder_without_usable_weights_says_what_it_holds(tmp_path: Path, names: list[str], code: str) -> None:
    for name in names:
        (tmp_path / name).touch()
    error = refusal(tmp_path)
    assert error.code == code
    assert error.hint


def test_a_folder_that_is_not_there_is_unreadable(tmp_path: Path) -> None:
    assert refusal(tmp_path / "nowhere").code == "UNREADABLE"
