"""What the reference model refuses to read."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from builder.reference.errors import ReferenceModelError
from builder.reference.folder import ModelFolder
from builder.reference.tensorfile import TensorFile
from tests.unit.reference.sharding import tiny_llama, write_checkpoint


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tiny_llama(num_hidden_layers=1), tmp_path, tp=3)


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "GemmaForCausalLM"}, "architecture 'GemmaForCausalLM' is not implemented"),
        ({"architecture": None}, "architecture is missing"),
        ({"dtype": "float8"}, "dtype 'float8' is not implemented"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not implemented"),
        ({"hidden_act": None}, "hidden_act 'gelu' is not implemented"),
        ({"position_embedding_type": "learned_absolute"}, "position_embedding_type 'learned_absolute'"),
        ({"quantization": {"quant_algo": "FP8"}}, "quant_algo 'FP8' is not implemented"),
        ({"quantization": {"kv_cache_quant_algo": "INT8"}}, "kv_cache_quant_algo 'INT8' is not implemented"),
        ({"rotary_scaling": {"type": "yarn", "factor": 2.0}}, "rotary_scaling: type 'yarn' is not implemented"),
        ({"rotary_scaling": {"factor": 2.0}}, "rotary_scaling: type None is not implemented"),
        ({"rotary_scaling": {"type": "linear", "rope_type": "llama3"}}, "is not implemented"),
        ({"rotary_scaling": {"type": "linear"}}, "factor is missing"),
        ({"rotary_scaling": {"type": "linear", "factor": 2.0, "beta": 1}}, "the keys beta are not known"),
        ({"rotary_scaling": {"type": "linear", "factor": 0}}, "factor must be a positive number"),
        ({"rotary_embedding_dim": 4}, "rotary_embedding_dim 4 must be head_size 8"),
        ({"rotary_pct": 0.5}, "rotary_pct 0.5 is not implemented"),
        ({"qk_layernorm": True}, "qk_layernorm True is not implemented"),
        ({"use_parallel_embedding": True}, "use_parallel_embedding True is not implemented"),
        ({"moe": {"num_experts": 8}}, "mixture of experts"),
        ({"sliding_window": 4096}, "the key 'sliding_window' is not known"),
        ({"attn_bias": "no"}, "attn_bias must be true or false"),
        ({"hidden_size": True}, "hidden_size must be a positive integer"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"norm_epsilon": -1e-5}, "norm_epsilon must be a positive number"),
        ({"num_key_value_heads": 4}, "6 attention heads don't share 4 KV heads"),
        ({"mapping": {"tp_size": 4}}, "tp_size 4 doesn't divide"),
        ({"mapping": {"tp_size": 3, "pp_size": 2}}, "pp_size 2 exceeds num_hidden_layers 1"),
        ({"mapping": {"tp_size": 3, "world_size": 6}}, "world_size 6 is not tp_size 3 times pp_size 1"),
        ({"mapping": {"tp_size": 3, "cp_size": 2}}, "context parallelism"),
    ],
)
def test_a_config_that_is_not_implemented_is_refused(checkpoint: Path, changes: dict[str, Any], message: str) -> None:
    change_config(checkpoint, **changes)
    with pytest.raises(ReferenceModelError, match=message) as caught:
        ModelFolder.open(checkpoint)
    assert str(checkpoint / "config.json") in str(caught.value)


def test_keys_without_effect_and_switched_off_keys_are_accepted(checkpoint: Path) -> None:
    change_config(checkpoint, producer={"name": "modelopt"}, moe={"num_experts": 0}, new_feature=False, other=None)
    change_config(checkpoint, mapping={"tp_size": 3, "rank": 2, "gpus_per_node": 8})
    assert ModelFolder.open(checkpoint).config.tp_size == 3


@pytest.mark.parametrize("text", ["", "[]", "{", "null"])
def test_a_config_that_is_no_json_object_is_refused(checkpoint: Path, text: str) -> None:
    (checkpoint / "config.json").write_text(text)
    with pytest.raises(ReferenceModelError, match=r"config\.json.*JSON"):
        ModelFolder.open(checkpoint)


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReferenceModelError, match=r"config\.json: can't be read: No such file"):
        ModelFolder.open(tmp_path)


def test_missing_and_surplus_ranks_are_refused(checkpoint: Path) -> None:
    (checkpoint / "rank1.safetensors").rename(checkpoint / "rank3.safetensors")
    with pytest.raises(ReferenceModelError, match=r"rank1\.safetensors missing"):
        ModelFolder.open(checkpoint)
    (checkpoint / "rank3.safetensors").rename(checkpoint / "rank1.safetensors")
    (checkpoint / "rank3.safetensors").write_bytes(b"")
    with pytest.raises(ReferenceModelError, match=r"rank3\.safetensors too many"):
        ModelFolder.open(checkpoint)


def without_a_tensor(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["transformer.layers.0.mlp.gate.weight"]


def with_one_more_tensor(tensors: dict[str, torch.Tensor]) -> None:
    tensors["transformer.layers.1.mlp.gate.weight"] = torch.zeros(1)


def with_a_transposed_tensor(tensors: dict[str, torch.Tensor]) -> None:
    tensors["transformer.layers.0.mlp.gate.weight"] = tensors["transformer.layers.0.mlp.gate.weight"].T.contiguous()


def with_another_dtype(tensors: dict[str, torch.Tensor]) -> None:
    tensors["transformer.ln_f.weight"] = tensors["transformer.ln_f.weight"].half()


def with_an_integer_tensor(tensors: dict[str, torch.Tensor]) -> None:
    tensors["transformer.ln_f.weight"] = tensors["transformer.ln_f.weight"].to(torch.int8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_a_tensor, r"tensors missing: transformer\.layers\.0\.mlp\.gate\.weight"),
        (with_one_more_tensor, r"tensors not known: transformer\.layers\.1\.mlp\.gate\.weight"),
        (with_a_transposed_tensor, r"mlp\.gate\.weight is F32 \[36, 22\], expected F32 \[22, 36\]"),
        (with_another_dtype, r"ln_f\.weight is F16 \[36\], expected F32 \[36\]"),
        (with_an_integer_tensor, r"ln_f\.weight has dtype I8"),
    ],
)
def test_tensors_must_be_exactly_those_of_the_config(
    checkpoint: Path, change: Callable[[dict[str, torch.Tensor]], None], message: str
) -> None:
    path = checkpoint / "rank1.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    with pytest.raises(ReferenceModelError, match=message) as caught:
        ModelFolder.open(checkpoint)
    assert str(path) in str(caught.value)


def safetensors_bytes(header: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + data


def entry(begin: int, end: int, shape: tuple[int, ...] = (1,), dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "truncated"),
        (b"version https://git-lfs.github.com/spec/v1\n", "not a safetensors file"),
        (struct.pack("<Q", 2**62) + b"{}", "not a safetensors file"),
        (safetensors_bytes(b"{]"), "the header is not JSON"),
        (safetensors_bytes(b"[" * 100_000), "the header is not JSON"),
        (safetensors_bytes(b"[]"), "not a JSON object"),
        (safetensors_bytes(b'{"a": 1, "a": 2}'), "a key occurs twice"),
        (safetensors_bytes(b'{"a": {"dtype": "F32"}}'), "entry of a is malformed"),
        (safetensors_bytes(b'{"__metadata__": 1}'), "__metadata__"),
        (safetensors_bytes(json.dumps({"a": entry(0, 4, (-1,))}).encode(), bytes(4)), "has the shape"),
        (safetensors_bytes(json.dumps({"a": entry(0, 8)}).encode(), bytes(8)), "offsets of a don't fit"),
        (safetensors_bytes(json.dumps({"a": entry(0, 4)}).encode(), bytes(3)), "bytes are described"),
        (safetensors_bytes(json.dumps({"a": entry(0, 4)}).encode(), bytes(5)), "bytes are described"),
        (safetensors_bytes(json.dumps({"a": entry(0, 4), "b": entry(0, 4)}).encode(), bytes(4)), "b overlaps"),
        (safetensors_bytes(json.dumps({"a": entry(4, 8)}).encode(), bytes(8)), "a overlaps another .* or leaves a gap"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "rank0.safetensors"
    path.write_bytes(content)
    with pytest.raises(ReferenceModelError, match=message):
        TensorFile.open(path)
