"""Public reports on weight files: which of them are the model, what is missing, and what isn't weights at all."""

import json
from pathlib import Path
from typing import Any

import pytest

from builder.checkpoint.source import SourceWeights
from builder.errors import SourceError
from builder.lock import TensorSummary, load_lock
from builder.model.safetensors import TensorIndex, read_header
from builder.model.spec import ModelSpec
from builder.model.weights import parameter_count, stored_bytes
from tests.cases.support import config_of, failed, run_plan, write_case
from tests.cases.weight_files import bf16, decoder, write_header, write_shards, write_tensors
from tests.tiny_model import CONFIG, write_tiny_model

LLAMA_8B = "meta-llama--Llama-3.1-8B"
MISTRAL = "mistralai--Mistral-7B-v0.3"

SMALL = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""Laid over a published config.json where only the files count."""

SMALL_SHAPES = decoder(layers=2, hidden=64, inner=128, heads=4, kv_heads=2, head_dim=16, vocab=1000)


def tensors_of(recipe: Path) -> TensorSummary:
    lock = load_lock(recipe.with_suffix(".lock.json"))
    assert lock is not None
    assert lock.tensors is not None
    return lock.tensors


class TestC28:
    """Files without metadata, with empty metadata, or with null broke readers that index it; gpt-oss has some.

    https://github.com/ml-explore/mlx/issues/743, https://github.com/huggingface/accelerate/issues/1151
    """

    TENSOR = '{"t": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]}}'

    @pytest.mark.parametrize(
        "metadata", [{}, {"__metadata__": {}}, {"__metadata__": None}, {"__metadata__": {"total_size": "8"}}], ids=str
    )
    def test_c28_metadata_is_optional(self, tmp_path: Path, metadata: dict[str, Any]) -> None:
        file = write_case(tmp_path, config_of(LLAMA_8B))
        write_header(tmp_path / "model" / "model.safetensors", {**metadata, **json.loads(self.TENSOR)}, 8)
        assert not run_plan(file).refused
        assert (tensors_of(file).count, tensors_of(file).bytes) == (1, 8)

    @pytest.mark.parametrize("metadata", [[], "pt", {"format": 1}], ids=str)
    def test_c28_metadata_of_another_type_is_refused(self, tmp_path: Path, metadata: Any) -> None:
        file = write_case(tmp_path, config_of(LLAMA_8B))
        header = {"__metadata__": metadata, **json.loads(self.TENSOR)}
        write_header(tmp_path / "model" / "model.safetensors", header, 8)
        error = failed(file)
        assert (error.exit_code, error.code) == (4, "SAFETENSORS_HEADER")


class TestC29:
    """Mistral-7B-Instruct-v0.3 ships its weights twice, and a converter read the copy with other names.

    https://github.com/NVIDIA/TensorRT-LLM/issues/1732, https://github.com/NVIDIA/TensorRT-LLM/issues/7013
    """

    def test_c29_the_files_of_the_index_are_the_model_to_the_byte(self, tmp_path: Path) -> None:
        """All of Mistral-7B-v0.3 as headers: 7,248,023,552 numbers of 2 bytes, as its index on the Hub says."""
        shapes = decoder(layers=32, hidden=4096, inner=14336, heads=32, kv_heads=8, head_dim=128, vocab=32768)
        names = list(shapes)
        thirds = [bf16({name: shapes[name] for name in names[part::3]}) for part in range(3)]
        shards = write_shards(tmp_path, thirds, total_size=14496047104)
        (tmp_path / "consolidated.safetensors").write_bytes(b"the same numbers under Mistral's own names")
        found = TensorIndex.open(tmp_path)
        assert {info.file.name for info in found.tensors.values()} == set(shards)
        assert len(shards) == 3
        assert TensorSummary.of(found).bytes == 14496047104
        spec = ModelSpec.from_config(config_of(MISTRAL), "config.json")
        assert stored_bytes(spec) == 14496047104

    @pytest.mark.parametrize(
        "copies",
        [
            ["consolidated.safetensors"],
            ["pytorch_model.bin", "model-Q4_K_M.gguf", "consolidated.00.pth", "tf_model.h5"],
            ["original/model.safetensors", "metal/model.bin", "onnx/model.onnx"],
            ["model-00003-of-00005.safetensors", "other.safetensors"],
        ],
        ids=lambda copies: copies[0],
    )
    def test_c29_no_other_copy_is_pinned_or_read(self, tmp_path: Path, copies: list[str]) -> None:
        file = write_case(tmp_path, config_of(MISTRAL, **SMALL))
        model, names = tmp_path / "model", list(SMALL_SHAPES)
        shards = write_shards(model, [bf16({name: SMALL_SHAPES[name] for name in names[part::3]}) for part in range(3)])
        for copy in copies:
            (model / copy).parent.mkdir(exist_ok=True)
            (model / copy).write_bytes(b"nobody reads this")
        planned = run_plan(file)
        assert not planned.refused
        assert "TENSOR_BYTES" not in planned.codes
        lock = load_lock(file.with_suffix(".lock.json"))
        assert lock is not None
        assert [weights.path for weights in lock.snapshot.of_kind("weights")] == [
            *shards,
            "model.safetensors.index.json",
        ]
        assert not {item.path for item in lock.snapshot.files} & set(copies)

    def test_c29_one_whole_file_beside_an_index_is_the_model(self, tmp_path: Path) -> None:
        file = write_case(tmp_path, config_of(MISTRAL, **SMALL))
        write_shards(tmp_path / "model", [bf16({"model.norm.weight": (64,)})])
        write_tensors(tmp_path / "model" / "model.safetensors", bf16(SMALL_SHAPES))
        run_plan(file)
        assert tensors_of(file).count == len(SMALL_SHAPES) == 2 * 9 + 3

    def test_c29_copies_alone_are_no_model(self, tmp_path: Path) -> None:
        file = write_case(tmp_path, config_of(MISTRAL, **SMALL))
        write_tensors(tmp_path / "model" / "consolidated.safetensors", bf16(SMALL_SHAPES))
        error = failed(file)
        assert (error.exit_code, error.code) == (4, "WEIGHTS_MISSING")
        assert "consolidated.safetensors" in error.words


class TestC30:
    """A download stopped half-way: the index names 30 files, 15 are there, and a server started all the same.

    https://github.com/sgl-project/sglang/issues/32279, https://github.com/Neph0s/CoSER/issues/3
    """

    @staticmethod
    def case(folder: Path, count: int, missing: list[int]) -> Path:
        file = write_case(folder, config_of(LLAMA_8B, **SMALL))
        shards = write_shards(folder / "model", [bf16({f"t{number}": (2, 2)}) for number in range(count)])
        for number in missing:
            (folder / "model" / shards[number - 1]).unlink()
        return file

    def test_c30_missing_shards_are_counted_and_named(self, tmp_path: Path) -> None:
        error = failed(self.case(tmp_path, 30, list(range(16, 31))))
        assert (error.exit_code, error.code) == (4, "SHARD_MISSING")
        assert "15 of 30" in error.words
        assert "model-00016-of-00030.safetensors" in error.words

    @pytest.mark.parametrize("number", [1, 2, 3])
    def test_c30_a_single_one_as_well(self, tmp_path: Path, number: int) -> None:
        error = failed(self.case(tmp_path, 3, [number]))
        assert (error.exit_code, error.code) == (4, "SHARD_MISSING")
        assert f"1 of 3 weight files are missing: model-0000{number}-of-00003.safetensors" in error.words

    def test_c30_a_tensor_that_is_not_in_its_file_is_named(self, tmp_path: Path) -> None:
        file = self.case(tmp_path, 3, [])
        write_tensors(tmp_path / "model" / "model-00002-of-00003.safetensors", bf16({"of another revision": (2, 2)}))
        error = failed(file)
        assert (error.exit_code, error.code) == (4, "INDEX_MISMATCH")
        assert "t1" in error.words

    def test_c30_shards_without_their_index_are_no_model(self, tmp_path: Path) -> None:
        file = self.case(tmp_path, 3, [])
        (tmp_path / "model" / "model.safetensors.index.json").unlink()
        assert failed(file).code == "INDEX_MISSING"


class TestC31:
    """`git clone` without Git LFS leaves small texts in place of files, and readers say "header too large".

    https://github.com/NVIDIA/TensorRT-LLM/issues/2052, https://github.com/huggingface/transformers/issues/27923
    """

    @staticmethod
    def pointer(size: int) -> bytes:
        return b"version https://git-lfs.github.com/spec/v1\noid sha256:%b\nsize %d\n" % (b"4d" * 32, size)

    @pytest.mark.parametrize("size", [4976698672, 4999802720, 17])
    def test_c31_a_pointer_is_called_by_its_name_with_the_size_that_is_missing(self, tmp_path: Path, size: int) -> None:
        file = write_case(tmp_path, config_of(LLAMA_8B))
        assert len(self.pointer(4976698672)) == 135
        (tmp_path / "model" / "model.safetensors").write_bytes(self.pointer(size))
        error = failed(file)
        assert (error.exit_code, error.code) == (4, "LFS_POINTER")
        assert "LFS" in error.words
        assert str(size) in error.words
        assert "git lfs pull" in error.words

    @pytest.mark.parametrize("name", ["model-00002-of-00002.safetensors", "model.safetensors.index.json"])
    def test_c31_one_of_several_files(self, tmp_path: Path, name: str) -> None:
        file = write_case(tmp_path, config_of(LLAMA_8B))
        write_shards(tmp_path / "model", [bf16({"a": (2, 2)}), bf16({"b": (2, 2)})])
        (tmp_path / "model" / name).write_bytes(self.pointer(4976698672))
        error = failed(file)
        assert error.code == "LFS_POINTER"
        assert name in error.words

    @pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer.model"])
    def test_c31_files_that_are_not_weights(self, tmp_path: Path, name: str) -> None:
        file = write_case(tmp_path, config_of(LLAMA_8B))
        (tmp_path / "model" / name).write_bytes(self.pointer(493443))
        error = failed(file)
        assert error.code == "LFS_POINTER"
        assert "493443" in error.words

    def test_c31_another_text_is_a_malformed_file(self, tmp_path: Path) -> None:
        file = write_case(tmp_path, config_of(LLAMA_8B))
        (tmp_path / "model" / "model.safetensors").write_bytes(b"<html>404 Not Found</html>")
        assert failed(file).code == "SAFETENSORS_HEADER"


class TestC33:
    """Repositories of adapters, of GGUF files, or of pickles alone: "no safetensors", or a pickle that is loaded.

    https://github.com/huggingface/transformers/issues/28310, https://github.com/arcee-ai/mergekit/issues/197
    """

    @pytest.mark.parametrize(
        ("files", "code", "words"),
        [
            (["adapter_config.json", "adapter_model.safetensors"], "ADAPTER_ONLY", ["LoRA", "base"]),
            (["model-Q4_K_M.gguf"], "GGUF_ONLY", ["GGUF", "quantised from"]),
            (
                ["config.json", "pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"],
                "PICKLE_ONLY",
                ["pickle"],
            ),
            (["adapter_config.json", "adapter_model.bin", "README.md"], "ADAPTER_ONLY", ["LoRA"]),
            (["config.json", "model.Q8_0.gguf", "model.Q4_0.gguf"], "GGUF_ONLY", ["GGUF"]),
            (["config.json", "consolidated.00.pth", "params.json"], "PICKLE_ONLY", ["consolidated.00.pth"]),
        ],
    )
    def test_c33_what_is_there_instead_is_called_by_its_name(
        self, tmp_path: Path, files: list[str], code: str, words: list[str]
    ) -> None:
        file = write_case(tmp_path, config_of(LLAMA_8B))
        if "config.json" not in files:
            (tmp_path / "model" / "config.json").unlink()
        for name in set(files) - {"config.json"}:
            (tmp_path / "model" / name).write_bytes(b"\x80\x04 not to be loaded")
        error = failed(file)
        assert (error.exit_code, error.code) == (4, code)
        for word in words:
            assert word in error.words

    @pytest.mark.parametrize("beside", ["pytorch_model.bin", "model-Q4_K_M.gguf", "adapter_config.json"])
    def test_c33_beside_whole_weights_they_do_not_matter(self, tmp_path: Path, beside: str) -> None:
        file = write_case(tmp_path, config_of(LLAMA_8B, **SMALL))
        write_tensors(tmp_path / "model" / "model.safetensors", bf16(SMALL_SHAPES))
        (tmp_path / "model" / beside).write_bytes(b"{}")
        assert not run_plan(file).refused


class TestC39:
    """Qwen3-0.6B is tied and stores its head all the same: estimates from the formula miss a fifth of the download,
    and half of the file isn't the number of parameters.

    https://huggingface.co/Qwen/Qwen3-0.6B
    """

    CONFIG = "Qwen--Qwen3-0.6B"

    @staticmethod
    def shapes() -> dict[str, tuple[int, ...]]:
        """Its 311 tensors in the order of its file, which is that of their names."""
        sizes = {"layers": 28, "hidden": 1024, "inner": 3072, "heads": 16, "kv_heads": 8, "head_dim": 128}
        norms = {f"model.layers.{n}.self_attn.{part}_norm.weight": (128,) for n in range(28) for part in "qk"}
        return dict(sorted({**decoder(**sizes, vocab=151936), **norms}.items()))

    def test_c39_download_and_engine_are_two_numbers(self, tmp_path: Path) -> None:
        """A second head of 151936 · 1024 · 2 = 311,164,928 bytes. Its header has 35,552 bytes, as that on the Hub."""
        file = write_case(tmp_path, config_of(self.CONFIG))
        model = tmp_path / "model" / "model.safetensors"
        assert write_tensors(model, bf16(self.shapes())) == 1503300328
        with open(model, "rb") as content:
            assert int.from_bytes(content.read(8), "little") == 35552
        planned = run_plan(file)
        assert not planned.refused
        assert (tensors_of(file).count, tensors_of(file).bytes) == (311, 1503264768)
        lock = load_lock(file.with_suffix(".lock.json"))
        assert lock is not None
        assert [weights.size for weights in lock.snapshot.of_kind("weights")] == [1503300328]
        others = sum(item.size for item in lock.snapshot.files) - 1503300328
        assert planned.unit["sizes"]["download_bytes"] == 1503300328 + others
        assert planned["HEAD_STORED_TWICE"].values == {
            "tensor_bytes": 1503264768,
            "unique_bytes": 1192099840,
            "head_bytes": 311164928,
        }
        assert "TENSOR_BYTES" not in planned.codes
        assert parameter_count(ModelSpec.from_config(config_of(self.CONFIG), "config.json")) == 596049920

    def test_c39_its_larger_sister(self) -> None:
        """total_size of Qwen3-1.7B's index on the Hub; without the second head 3,441,149,952 bytes."""
        spec = ModelSpec.from_config(config_of("Qwen--Qwen3-1.7B"), "config.json")
        assert stored_bytes(spec, head=True) == 4063479808
        assert stored_bytes(spec, head=True) == 3441149952 + 151936 * 2048 * 2
        assert stored_bytes(spec) == 2 * parameter_count(spec) == 3441149952

    def test_c39_a_tied_model_without_a_second_head_has_one_number(self, tmp_path: Path) -> None:
        file = write_case(tmp_path, config_of(self.CONFIG, num_hidden_layers=1))
        names = [name for name in self.shapes() if ".layers." not in name or ".layers.0." in name]
        shapes = {name: self.shapes()[name] for name in names if name != "lm_head.weight"}
        write_tensors(tmp_path / "model" / "model.safetensors", bf16(shapes))
        codes = run_plan(file).codes
        assert "HEAD_STORED_TWICE" not in codes
        assert "TENSOR_BYTES" not in codes

    @pytest.mark.parametrize("alike", [True, False])
    def test_c39_the_second_head_is_accepted_only_if_it_is_the_embedding(self, tmp_path: Path, alike: bool) -> None:
        folder = write_tiny_model(tmp_path / "model", tie_word_embeddings=True)
        file = folder / "model.safetensors"
        header, content = read_header(file), bytearray(file.read_bytes())
        head, table = header["lm_head.weight"], header["model.embed_tokens.weight"]
        content[head.begin : head.end] = content[table.begin : table.end]
        if not alike:
            content[head.end - 1] ^= 1
        file.write_bytes(content)
        spec = ModelSpec.from_config(CONFIG | {"tie_word_embeddings": True}, "config.json")
        with SourceWeights(folder, spec) as source:
            if alike:
                source.check(None)
                return
            with pytest.raises(SourceError) as caught:
                source.check(None)
        assert caught.value.code == "TIED_HEAD_DIFFERS"
