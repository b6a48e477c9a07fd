from __future__ import annotations

import hashlib
import json
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from safetensors import safe_open

from builder.errors import SourceError
from builder.model.sources.gguf import convert, to_bfloat16
from builder.store.digests import ignore_progress
from tests.unit.model.sources.tiny_gguf import HEAD_DIM, TOKENS, TinyGguf


def converted(gguf: TinyGguf, tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir()
    convert(gguf.write(tmp_path / "tiny.gguf"), folder, ignore_progress)
    return folder


def bits(folder: Path) -> dict[str, np.ndarray]:
    """The weights as the bits of their bfloat16 values, read by our own hands."""
    content = (folder / "model.safetensors").read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    data = content[8 + length :]
    return {
        name: np.frombuffer(data[slice(*entry["data_offsets"])], np.uint16).reshape(entry["shape"])
        for name, entry in header.items()
        if name != "__metadata__"
    }


def refused(code: str, gguf: TinyGguf, tmp_path: Path) -> SourceError:
    with pytest.raises(SourceError) as caught:
        converted(gguf, tmp_path)
    assert caught.value.code == code, caught.value.render()
    return caught.value


@pytest.mark.parametrize("tied", [True, False])
def test_the_weights_are_those_that_the_gguf_was_made_of(tmp_path, tied):
    gguf = TinyGguf(tied=tied)
    weights = bits(converted(gguf, tmp_path))
    assert weights.keys() == gguf.huggingface.keys()
    for name, values in gguf.huggingface.items():
        assert np.array_equal(weights[name].astype(np.uint32) << 16, values.view(np.uint32)), name


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "F16", "BF16"])
def test_every_kind_of_quantisation_comes_out_near_the_original(tmp_path, kind):
    gguf = TinyGguf(quantisation=GGMLQuantizationType[kind])
    for name, stored in bits(converted(gguf, tmp_path)).items():
        values = (stored.astype(np.uint32) << 16).view(np.float32)
        assert np.abs(values - gguf.huggingface[name]).max() <= 4 / 15, name  # one step of 4 bits over [-2, 2]


def test_the_safetensors_library_reads_the_file(tmp_path):
    folder = converted(TinyGguf(), tmp_path)
    with safe_open(folder / "model.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt"}
        assert file.keys() == sorted(TinyGguf().huggingface)


def test_the_data_begins_at_a_multiple_of_8_bytes(tmp_path):
    content = (converted(TinyGguf(), tmp_path) / "model.safetensors").read_bytes()
    assert struct.unpack("<Q", content[:8])[0] % 8 == 0


def test_the_configuration_has_every_value_of_the_metadata(tmp_path):
    config = json.loads((converted(TinyGguf(), tmp_path) / "config.json").read_text())
    assert config == {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 96,
        "max_position_embeddings": 128,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "pad_token_id": 2,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 100000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "vocab_size": len(TOKENS),
    }


def test_an_untied_head_is_told(tmp_path):
    config = json.loads((converted(TinyGguf(tied=False), tmp_path) / "config.json").read_text())
    assert config["tie_word_embeddings"] is False


def test_the_special_tokens_of_generation_are_written(tmp_path):
    generation = json.loads((converted(TinyGguf(), tmp_path) / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}


def test_the_same_gguf_gives_the_same_bytes(tmp_path):
    digests = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        folder = converted(TinyGguf(), tmp_path / name)
        digests.append({path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()})
    assert digests[0] == digests[1]


def test_progress_counts_the_bytes_of_the_weights(tmp_path):
    told: list[int] = []
    convert(TinyGguf().write(tmp_path / "tiny.gguf"), tmp_path, told.append)
    assert sum(told) == sum(values.size * 2 for values in TinyGguf().huggingface.values())


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0x3F800000, 0x3F80),  # 1.0
        (0x3F807FFF, 0x3F80),  # just below the middle
        (0x3F808000, 0x3F80),  # the middle, down to even
        (0x3F808001, 0x3F81),  # just above
        (0x3F818000, 0x3F82),  # the middle, up to even
        (0xBF818000, 0xBF82),  # the same below zero
        (0x80000000, 0x8000),  # -0.0
        (0x00000001, 0x0000),  # the smallest subnormal
        (0x7F7FFFFF, 0x7F80),  # larger than the largest bfloat16
    ],
)
def test_rounding_goes_to_the_nearest_and_ties_go_to_even(value, expected):
    assert to_bfloat16(np.array([value], np.uint32).view(np.float32), where="here").tolist() == [expected]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_weight_that_is_no_number_is_refused(tmp_path, value):
    gguf = TinyGguf()
    gguf.tensors["blk.1.ffn_up.weight"][3, 4] = value
    error = refused("GGUF_DAMAGED", gguf, tmp_path)
    assert "model.layers.1.mlp.up_proj.weight" in error.where


@pytest.mark.parametrize(
    ("metadata", "code"),
    [
        ({"general.architecture": "qwen2"}, "UNSUPPORTED_ARCHITECTURE"),
        ({"llama.expert_count": 8}, "UNSUPPORTED_ARCHITECTURE"),
        ({"llama.rope.scaling.type": "yarn"}, "UNSUPPORTED_ARCHITECTURE"),
        ({"llama.rope.dimension_count": 8}, "UNSUPPORTED_ARCHITECTURE"),
        ({"tokenizer.ggml.model": "llama"}, "UNSUPPORTED_TOKENIZER"),
        ({"tokenizer.ggml.pre": "llama-bpe"}, "UNSUPPORTED_TOKENIZER"),
        ({"tokenizer.ggml.add_bos_token": True}, "UNSUPPORTED_TOKENIZER"),
        ({"llama.block_count": None}, "GGUF_METADATA"),
        ({"llama.embedding_length": "64"}, "GGUF_METADATA"),
        ({"llama.attention.layer_norm_rms_epsilon": None}, "GGUF_METADATA"),
        ({"tokenizer.ggml.tokens": None}, "GGUF_METADATA"),
        ({"tokenizer.ggml.token_type": [1]}, "GGUF_METADATA"),
        ({"tokenizer.ggml.eos_token_id": 100_000}, "GGUF_METADATA"),
        ({"tokenizer.ggml.merges": ["h q x"]}, "GGUF_METADATA"),
        ({"tokenizer.ggml.merges": ["q q"]}, "GGUF_METADATA"),
        ({"tokenizer.ggml.tokens": [*TOKENS[:-1], TOKENS[-2]]}, "GGUF_METADATA"),
        ({"llama.block_count": 3}, "GGUF_TENSORS"),
        ({"llama.feed_forward_length": 64}, "GGUF_TENSORS"),
    ],
)
def test_metadata_that_we_cannot_honour_is_refused(tmp_path, metadata, code):
    refused(code, TinyGguf(metadata=metadata), tmp_path)


@pytest.mark.parametrize("name", ["rope_freqs.weight", "blk.0.attn_q.bias"])
def test_a_tensor_that_a_plain_llama_has_not_is_refused_not_dropped(tmp_path, name):
    gguf = TinyGguf()
    gguf.tensors[name] = np.ones(64, np.float32)
    assert name in refused("GGUF_TENSORS", gguf, tmp_path).why


def test_a_missing_tensor_is_named(tmp_path):
    gguf = TinyGguf()
    del gguf.tensors["blk.1.attn_v.weight"]
    assert "blk.1.attn_v.weight is missing" in refused("GGUF_TENSORS", gguf, tmp_path).why


@pytest.mark.parametrize("share", [0.0, 0.001, 0.02, 0.3, 0.999])
def test_a_gguf_that_ends_early_is_one_clear_error(tmp_path, share):
    path = TinyGguf().write(tmp_path / "tiny.gguf")
    content = path.read_bytes()
    path.write_bytes(content[: max(1, int(len(content) * share))])
    with pytest.raises(SourceError) as caught:
        convert(path, tmp_path, ignore_progress)
    assert caught.value.code == "GGUF_DAMAGED"


def test_an_array_that_claims_to_be_endless_does_not_fill_the_memory(tmp_path):
    key = b"general.tags"
    array = struct.pack("<IIQ", 9, 0, 1 << 60)  # an array of 2⁶⁰ bytes
    header = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", len(key)) + key + array
    (tmp_path / "bomb.gguf").write_bytes(header)
    tracemalloc.start()
    try:
        with pytest.raises(SourceError) as caught:
            convert(tmp_path / "bomb.gguf", tmp_path, ignore_progress)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    assert caught.value.code == "GGUF_DAMAGED"


def test_what_is_no_gguf_is_refused(tmp_path):
    (tmp_path / "not.gguf").write_bytes(b"PK\x03\x04" * 100)
    with pytest.raises(SourceError) as caught:
        convert(tmp_path / "not.gguf", tmp_path, ignore_progress)
    assert caught.value.code == "GGUF_DAMAGED"


def test_the_converter_needs_no_torch():
    program = "import sys, builder.model.sources.wheel; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[4]).returncode == 0
