"""Weights that aren't what config.json describes are refused before anything is written."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from builder.checkpoint.convert import convert
from builder.checkpoint.source import BLOCK_BYTES, SourceWeights
from builder.errors import SourceError
from builder.model.safetensors import TensorIndex
from builder.model.spec import ModelSpec
from builder.store import Workspace, hash_file
from tests.unit.checkpoint.families import edit_config, edit_weights, save_model, stored_tensors
from tests.unit.checkpoint.reassembly import Checkpoint, assert_same_tensors

MakeLlama = Callable[..., Path]
SpecOf = Callable[[Path], ModelSpec]
Edit = Callable[[dict[str, torch.Tensor]], object]


def a_missing_norm(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["model.norm.weight"]


def an_added_norm(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.0.self_attn.q_norm.weight"] = torch.ones(8, dtype=torch.bfloat16)


def an_added_scale(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.0.mlp.up_proj.weight_scale"] = torch.ones(())


def a_longer_vocabulary(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.embed_tokens.weight"] = torch.zeros(98, 48, dtype=torch.bfloat16)


def a_transposed_projection(tensors: dict[str, torch.Tensor]) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[name] = tensors[name].T.contiguous()


def a_flat_projection(tensors: dict[str, torch.Tensor]) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[name] = tensors[name].flatten()


def an_embedding_of_integers(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.embed_tokens.weight"] = torch.zeros(97, 48, dtype=torch.int16)


@pytest.mark.parametrize(
    ("edit", "code", "words"),
    [
        (a_missing_norm, "TENSOR_MISSING", "model.norm.weight"),
        (an_added_norm, "TENSOR_UNEXPECTED", "q_norm.weight"),
        (an_added_scale, "TENSOR_UNEXPECTED", "up_proj.weight_scale"),
        (a_longer_vocabulary, "TENSOR_SHAPE", "[98, 48]; config.json makes it [97, 48]"),
        (a_transposed_projection, "TENSOR_SHAPE", "[48, 96]; config.json makes it [96, 48]"),
        (a_flat_projection, "TENSOR_SHAPE", "[4608]; config.json makes it [96, 48]"),
        (an_embedding_of_integers, "DTYPE_MISMATCH", "stored as I16"),
    ],
)
@pytest.mark.parametrize("dtype", [None, "float32"])
def test_weights_that_are_not_the_models_are_refused_before_anything_is_written(
    tiny_llama: MakeLlama,
    checkpoint: Callable[..., Workspace],
    tmp_path: Path,
    edit: Edit,
    code: str,
    words: str,
    dtype: str | None,
) -> None:
    source = tiny_llama()
    edit_weights(source, edit)
    with pytest.raises(SourceError) as caught:
        checkpoint(source, dtype=dtype)
    assert caught.value.code == code
    assert words in caught.value.message
    assert not list((tmp_path / "checkpoint").iterdir())


@pytest.mark.parametrize(
    ("changes", "code"),
    [({"num_hidden_layers": 8}, "TENSOR_MISSING"), ({"num_hidden_layers": 6}, "TENSOR_UNEXPECTED")],
)
def test_a_config_with_another_number_of_layers_is_refused(
    tiny_llama: MakeLlama, checkpoint: Callable[..., Workspace], changes: dict[str, Any], code: str
) -> None:
    source = tiny_llama()
    edit_config(source, **changes)
    with pytest.raises(SourceError) as caught:
        checkpoint(source)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("name", "changes", "code", "words"),
    [
        ("mixtral", {"num_local_experts": 5}, "TENSOR_UNEXPECTED", "experts.5.w1"),
        ("mixtral", {"num_local_experts": 7}, "TENSOR_MISSING", "experts.6.w"),
        ("qwen3-moe with dense layers", {"mlp_only_layers": []}, "TENSOR_MISSING", "layers.0.mlp.experts.0"),
        ("qwen2", {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, "TENSOR_UNEXPECTED", "q_proj.bias"),
        ("qwen3", {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}, "TENSOR_MISSING", "q_proj.bias"),
        ("phi-4", {"num_key_value_heads": 6}, "TENSOR_SHAPE", "qkv_proj.weight"),
        ("gemma-2", {"model_type": "gemma", "architectures": ["GemmaForCausalLM"]}, "TENSOR_UNEXPECTED", "feedforward"),
    ],
)
def test_a_config_of_another_model_is_refused(
    checkpoint: Callable[..., Workspace], tmp_path: Path, name: str, changes: dict[str, Any], code: str, words: str
) -> None:
    source = save_model(tmp_path / "source", name)
    edit_config(source, **changes)
    with pytest.raises(SourceError) as caught:
        checkpoint(source)
    assert caught.value.code == code
    assert words in caught.value.message


def test_frequencies_that_old_files_store_are_left_out(
    tiny_llama: MakeLlama, checkpoint: Callable[..., Workspace]
) -> None:
    source = tiny_llama()
    expected = stored_tensors(source)
    derived = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4, dtype=torch.float32)}
    edit_weights(source, lambda tensors: tensors.update(derived))
    assert_same_tensors(Checkpoint.load(checkpoint(source).path).reassembled(), expected)


def test_a_tied_model_may_store_its_head_if_it_is_the_embedding(
    tiny_llama: MakeLlama, checkpoint: Callable[..., Workspace]
) -> None:
    source = tiny_llama(tie_word_embeddings=True)

    def digests(name: str) -> dict[str, str]:
        return {path.name: hash_file(path).sha256 for path in checkpoint(source, name, tp=3).path.iterdir()}

    plain = digests("plain")
    edit_weights(
        source, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].clone()})
    )
    assert digests("stored") == plain
    edit_weights(source, lambda tensors: tensors["lm_head.weight"][96, 47].add_(1))
    with pytest.raises(SourceError) as caught:
        checkpoint(source, "differs", tp=3)
    assert caught.value.code == "TIED_HEAD_DIFFERS"


@pytest.mark.parametrize("place", [0, -1])
def test_a_tied_head_of_several_blocks_is_compared_to_its_last_byte(
    tmp_path: Path, spec_of: SpecOf, place: int
) -> None:
    source = save_model(tmp_path, "llama, tied", vocab_size=60_000)
    edit_weights(source, lambda tensors: tensors.update(head_of(tensors["model.embed_tokens.weight"], None)))
    assert stored_tensors(source)["lm_head.weight"].nbytes > BLOCK_BYTES
    with SourceWeights(source, spec_of(source)) as weights:
        weights.check(None)
    edit_weights(source, lambda tensors: tensors.update(head_of(tensors["model.embed_tokens.weight"], place)))
    with SourceWeights(source, spec_of(source)) as weights, pytest.raises(SourceError) as caught:
        weights.check(None)
    assert caught.value.code == "TIED_HEAD_DIFFERS"


def head_of(embedding: torch.Tensor, other: int | None) -> dict[str, torch.Tensor]:
    """A head like the embedding, but for the lowest bit of one of its bytes."""
    head = embedding.clone()
    if other is not None:
        head.view(torch.uint8).view(-1)[other] ^= 1
    return {"lm_head.weight": head}


def test_a_tied_head_in_another_precision_is_another_head(tiny_llama: MakeLlama, spec_of: SpecOf) -> None:
    source = tiny_llama(tie_word_embeddings=True)
    edit_weights(
        source, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].float()})
    )
    with SourceWeights(source, spec_of(source)) as weights, pytest.raises(SourceError) as caught:
        weights.check(None)
    assert caught.value.code == "TIED_HEAD_DIFFERS"


def test_a_source_that_shrinks_while_it_is_read_is_noticed(
    tiny_llama: MakeLlama, tmp_path: Path, spec_of: SpecOf
) -> None:
    source, out = tiny_llama(), Workspace(tmp_path / "out")
    out.path.mkdir()

    def truncate(_: int) -> None:
        os.truncate(source / "model.safetensors", 10_000)

    with pytest.raises(SourceError) as caught:
        convert(source, spec_of(source), out, advance=truncate)
    assert caught.value.code == "SHARD_TRUNCATED"


def test_a_source_that_goes_away_while_it_is_read_is_named(
    tiny_llama: MakeLlama, tmp_path: Path, spec_of: SpecOf
) -> None:
    source, out = tiny_llama(max_shard_size="50KB"), Workspace(tmp_path / "out")
    out.path.mkdir()
    last = TensorIndex.open(source).tensors["model.layers.6.mlp.up_proj.weight"].file

    def remove(_: int) -> None:
        last.unlink(missing_ok=True)

    with pytest.raises(SourceError) as caught:
        convert(source, spec_of(source), out, advance=remove)
    assert (caught.value.code, caught.value.where) == ("UNREADABLE", str(last))


def test_a_source_that_can_not_be_opened_is_named(tiny_llama: MakeLlama, tmp_path: Path, spec_of: SpecOf) -> None:
    source = tiny_llama()
    spec = spec_of(source)
    (source / "model.safetensors").unlink()
    (source / "model.safetensors").mkdir()
    with pytest.raises(SourceError) as caught:
        convert(source, spec, Workspace(tmp_path))
    assert caught.value.where == str(source / "model.safetensors")


def test_a_tensor_is_read_from_the_byte_that_is_asked_for(tmp_path: Path, spec_of: SpecOf) -> None:
    source = save_model(tmp_path, "llama")
    embedding = stored_tensors(source)["model.embed_tokens.weight"]
    with SourceWeights(source, spec_of(source)) as weights:
        buffer = memoryview(bytearray(20))
        weights.read(weights.tensors["model.embed_tokens.weight"], 6, buffer)
    assert bytes(buffer) == embedding.view(torch.uint8).flatten()[6:26].numpy().tobytes()


def test_files_are_closed_again(tmp_path: Path, spec_of: SpecOf) -> None:
    source = save_model(tmp_path, "llama", max_shard_size="50KB")
    before = set(os.listdir("/proc/self/fd"))
    with SourceWeights(source, spec_of(source)) as weights:
        for info in weights.tensors.values():
            weights.read(info, 0, memoryview(bytearray(2)))
        assert len(set(os.listdir("/proc/self/fd")) - before) == len(list(source.glob("model-*.safetensors")))
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_scale_may_have_dimensions_of_one(tmp_path: Path, spec_of: SpecOf) -> None:
    """compressed-tensors stores [1] and [N, 1], ModelOpt [] and [N]: see test_convert_quantized.py."""
    source = save_model(tmp_path, "llama", num_hidden_layers=1)
    tensors = {}
    for name, tensor in stored_tensors(source).items():
        if "_proj" in name:
            tensors[name] = tensor.to(torch.float8_e4m3fn)
            tensors[f"{name}_scale"] = torch.ones(1, 1, 1)
            tensors[f"{name.removesuffix('weight')}input_scale"] = torch.ones(1, dtype=torch.float16)
        else:
            tensors[name] = tensor
    save_file(tensors, source / "model.safetensors")
    edit_config(source, quantization_config={"quant_method": "modelopt", "quant_algo": "FP8"})
    with SourceWeights(source, spec_of(source)) as weights:
        weights.check(None)
    save_file(
        {name: torch.ones(2) if name.endswith("input_scale") else tensor for name, tensor in tensors.items()},
        source / "model.safetensors",
    )
    with SourceWeights(source, spec_of(source)) as weights, pytest.raises(SourceError) as caught:
        weights.check(None)
    assert caught.value.code == "TENSOR_SHAPE"
