"""Public reports of class C, converted: weights of the reported sizes, random, of the few layers that tell.

What doesn't matter to a report, a width or the vocabulary, is made small.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from builder.model.layout import Split, checkpoint_bytes
from builder.model.safetensors import TensorInfo, read_header
from builder.model.spec import ModelSpec
from builder.model.weights import stored_bytes
from tests.cases.conversions import converted, sized, write_model
from tests.cases.support import config_of
from tests.cases.weight_files import bf16, decoder, write_tensors
from tests.unit.checkpoint.reassembly import Checkpoint, assert_same_tensors

QKV = "transformer.layers.0.attention.qkv.weight"
DENSE = "transformer.layers.0.attention.dense.weight"


@pytest.fixture
def large(tmp_path: Path) -> Iterator[Path]:
    """A folder for files of several hundred MB, which pytest would keep."""
    yield tmp_path
    shutil.rmtree(tmp_path)


def head_norms(layers: int, size: int) -> dict[str, tuple[int, ...]]:
    return {f"model.layers.{n}.self_attn.{part}_norm.weight": (size,) for n in range(layers) for part in "qk"}


class TestC08:
    """Qwen3-32B has heads of 128, not 5120 / 64 = 80: a converter expected 6400 rows of the 10240 that there are.

    https://github.com/NVIDIA/TensorRT-LLM/issues/5912
    """

    CONFIG = sized("Qwen--Qwen3-32B", num_hidden_layers=1, intermediate_size=512, vocab_size=512)

    @pytest.mark.parametrize(
        ("tp", "qkv", "dense"), [(1, (10240, 5120), (5120, 8192)), (2, (5120, 5120), (5120, 4096))]
    )
    def test_c08_heads_are_as_wide_as_the_config_says(
        self, large: Path, tp: int, qkv: tuple[int, int], dense: tuple[int, int]
    ) -> None:
        tensors = write_model(large / "model", self.CONFIG, head_norms(1, 128))
        checkpoint = Checkpoint.load(converted(large / "model", self.CONFIG, Split(tp)))
        assert checkpoint.config["head_size"] == 128
        for rank in checkpoint.ranks:
            assert (rank[QKV].shape, rank[DENSE].shape) == (qkv, dense)
        assert_same_tensors(checkpoint.reassembled(), tensors)


class TestC10:
    """Qwen3-0.6B: 16 heads of 128 over a hidden size of 1024; the share would be 64, and half of the rows.

    https://github.com/NVIDIA/TensorRT-LLM/issues/6182
    """

    def test_c10_two_layers_and_the_whole_vocabulary(self, large: Path) -> None:
        config = sized("Qwen--Qwen3-0.6B", num_hidden_layers=2)
        tensors = write_model(large / "model", config, head_norms(2, 128))
        out = converted(large / "model", config, Split())
        with safe_open(out / "rank0.safetensors", "pt") as rank:
            assert rank.get_slice(QKV).get_shape() == [4096, 1024]
            assert rank.get_slice(DENSE).get_shape() == [1024, 2048]
            embedding = tensors["model.embed_tokens.weight"].view(torch.int16)
            for name in ("transformer.vocab_embedding.weight", "lm_head.weight"):
                assert torch.equal(rank.get_tensor(name).view(torch.int16), embedding)

    @pytest.mark.parametrize("split", [Split(2), Split(16), Split(4, 2)], ids=["tp2", "tp16", "tp4-pp2"])
    def test_c10_however_it_is_split(self, large: Path, split: Split) -> None:
        """16 ranks: one head each, and each KV head twice."""
        config = sized("Qwen--Qwen3-0.6B", num_hidden_layers=3, vocab_size=1000)
        tensors = write_model(large / "model", config, head_norms(3, 128))
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
        checkpoint = Checkpoint.load(converted(large / "model", config, split))
        assert_same_tensors(checkpoint.reassembled(), tensors)

    def test_c10_a_head_dim_below_its_share(self, large: Path) -> None:
        """Mistral-Nemo: 32 heads of 128 over 5120, whose share would be 160: 6144 rows, not 7680."""
        config = sized("mistralai--Mistral-Nemo-Base-2407", num_hidden_layers=1, intermediate_size=512)
        config |= {"vocab_size": 512}
        tensors = write_model(large / "model", config, {})
        checkpoint = Checkpoint.load(converted(large / "model", config, Split()))
        assert checkpoint.ranks[0][QKV].shape == (6144, 5120)
        assert_same_tensors(checkpoint.reassembled(), tensors)


class TestC11:
    """Tied models whose files have no lm_head.weight: KeyError in a whole family of converters.

    https://github.com/NVIDIA/TensorRT-LLM/issues/2677, https://github.com/NVIDIA/TensorRT-LLM/issues/1733
    """

    LLAMA_3B = sized("meta-llama--Llama-3.2-3B", num_hidden_layers=1, intermediate_size=512)

    def test_c11_the_head_is_the_embedding_byte_for_byte(self, large: Path) -> None:
        """Llama-3.2-3B's table of 128,256 tokens, zeros but for some rows: 788,004,864 bytes more than the file has."""
        (large / "model").mkdir()
        source = large / "model" / "model.safetensors"
        shapes = decoder(layers=1, hidden=3072, inner=512, heads=24, kv_heads=8, head_dim=128, vocab=128256, tied=True)
        assert "lm_head.weight" not in shapes
        write_tensors(source, bf16(shapes))
        table = read_header(source)["model.embed_tokens.weight"]
        marks = {row * 6144: bytes([1 + row % 255]) * 6144 for row in (0, 1, 64127, 64128, 128254, 128255)}
        with open(source, "r+b") as file:
            for place, content in marks.items():
                file.seek(table.begin + place)
                file.write(content)
        checkpoint = read_header(converted(large / "model", self.LLAMA_3B, Split()) / "rank0.safetensors")
        for name in ("lm_head.weight", "transformer.vocab_embedding.weight"):
            assert checkpoint[name].nbytes == 788_004_864
            assert marked(checkpoint[name]) == marks
        ours, theirs = (sum(info.nbytes for info in tensors.values()) for tensors in (checkpoint, read_header(source)))
        assert ours - theirs == 788_004_864

    @pytest.mark.parametrize("split", [Split(), Split(2), Split(2, 2), Split(8)], ids=["1", "tp2", "tp2-pp2", "tp8"])
    def test_c11_however_it_is_split(self, large: Path, split: Split) -> None:
        config = self.LLAMA_3B | {"vocab_size": 1001, "num_hidden_layers": 2, "hidden_size": 768}
        tensors = write_model(large / "model", config, {})
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
        checkpoint = Checkpoint.load(converted(large / "model", config, split))
        assert_same_tensors(checkpoint.reassembled(), tensors)

    def test_c11_of_the_whole_model_it_is_one_table_more(self) -> None:
        spec = ModelSpec.from_config(config_of("meta-llama--Llama-3.2-3B"), "config.json")
        assert stored_bytes(spec) == 2 * 3_212_749_824
        assert checkpoint_bytes(spec, Split()) == 2 * 3_212_749_824 + 788_004_864


def marked(info: TensorInfo) -> dict[int, bytes]:
    """The rows of 6144 bytes that aren't zero, by the place where they begin."""
    found: dict[int, bytes] = {}
    with open(info.file, "rb") as file:
        file.seek(info.begin)
        for start in range(0, info.nbytes, 6144 * 334):
            block = file.read(min(6144 * 334, info.nbytes - start))
            if block.count(0) < len(block):
                rows = {place: block[place : place + 6144] for place in range(0, len(block), 6144)}
                found |= {start + place: row for place, row in rows.items() if any(row)}
    return found


class TestC13:
    """Vocabularies of 32001 and 151851 couldn't be split in two.

    https://github.com/NVIDIA/TensorRT-LLM/issues/98, https://github.com/NVIDIA/TensorRT-LLM/issues/374
    """

    @pytest.mark.parametrize("parallel", [False, True], ids=["whole-embedding", "split-embedding"])
    @pytest.mark.parametrize(
        ("vocab", "tp", "rows", "padding"),
        [(32001, 2, 16001, 1), (151851, 2, 75926, 1), (151552, 6, 25259, 2), (32000, 2, 16000, 0)],
    )
    def test_c13_rows_of_zeros_fill_it_up(
        self, large: Path, vocab: int, tp: int, rows: int, padding: int, parallel: bool
    ) -> None:
        sizes: dict[str, Any] = {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 6}
        config = sized("meta-llama--Llama-2-13b-hf", vocab_size=vocab, num_hidden_layers=1, **sizes)
        config |= {"intermediate_size": 96, "torch_dtype": "bfloat16"}
        tensors = write_model(large / "model", config, {})
        split = Split(tp, use_parallel_embedding=parallel)
        checkpoint = Checkpoint.load(converted(large / "model", config, split))
        assert checkpoint.config["vocab_size"] == vocab
        heads = [rank["lm_head.weight"] for rank in checkpoint.ranks]
        assert [head.shape for head in heads] == [(rows, 96)] * tp
        assert not heads[-1][rows - padding :].any()
        assert heads[-1][rows - padding - 1].any()
        for rank in checkpoint.ranks:
            assert len(rank["transformer.vocab_embedding.weight"]) == (rows if parallel else vocab)
        assert_same_tensors(checkpoint.reassembled(), tensors)
