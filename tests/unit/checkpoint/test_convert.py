"""A Llama becomes the files of its ranks: each weight in its place, bit for bit, or rounded where that is asked for."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from builder.checkpoint.convert import convert
from builder.errors import PlanRefused, SourceError
from builder.model.layout import Split, checkpoint_bytes
from builder.model.spec import ModelSpec
from builder.store import Workspace, hash_file
from tests.unit.checkpoint.families import edit_config, edit_weights, stored_tensors
from tests.unit.checkpoint.reassembly import Checkpoint, assert_same_tensors

MakeLlama = Callable[..., Path]
SpecOf = Callable[[Path], ModelSpec]


def ranks(out: Workspace) -> list[dict[str, torch.Tensor]]:
    return Checkpoint.load(out.path).ranks


def reassemble(out: Workspace) -> dict[str, torch.Tensor]:
    return Checkpoint.load(out.path).reassembled()


def digests(out: Workspace) -> dict[str, str]:
    return {path.name: hash_file(path).sha256 for path in sorted(out.path.iterdir())}


# the weights


@pytest.mark.parametrize("pp", [1, 2])
@pytest.mark.parametrize(
    ("key_value_heads", "tp"),
    [(3, 1), (3, 3), (3, 6), (2, 2), (2, 6), (6, 1), (6, 2), (6, 3), (6, 6), (1, 2), (1, 3), (1, 6)],
)
def test_the_ranks_together_are_the_source_bit_for_bit(
    tiny_llama: MakeLlama, checkpoint: Callable[..., Workspace], key_value_heads: int, tp: int, pp: int
) -> None:
    source = tiny_llama(num_key_value_heads=key_value_heads)
    assert_same_tensors(reassemble(checkpoint(source, tp=tp, pp=pp)), stored_tensors(source))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_precision_of_the_model_is_kept(
    tiny_llama: MakeLlama, checkpoint: Callable[..., Workspace], dtype: torch.dtype
) -> None:
    source = tiny_llama(dtype)
    out = checkpoint(source, tp=3)
    assert_same_tensors(reassemble(out), stored_tensors(source))
    assert json.loads((out.path / "config.json").read_text())["dtype"] == str(dtype).removeprefix("torch.")


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (3, 2), (6, 7)])
def test_biases_come_along(tiny_llama: MakeLlama, checkpoint: Callable[..., Workspace], tp: int, pp: int) -> None:
    source = tiny_llama(attention_bias=True, mlp_bias=True)
    assert_same_tensors(reassemble(checkpoint(source, tp=tp, pp=pp)), stored_tensors(source))


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (3, 1), (1, 2)])
def test_a_tied_head_is_stored_on_its_own(
    tiny_llama: MakeLlama, checkpoint: Callable[..., Workspace], tp: int, pp: int
) -> None:
    source = tiny_llama(tie_word_embeddings=True)
    tensors = stored_tensors(source)
    assert "lm_head.weight" not in tensors
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    assert_same_tensors(reassemble(checkpoint(source, tp=tp, pp=pp)), tensors)


def test_an_explicit_head_dim_gives_attention_its_own_width(
    tiny_llama: MakeLlama, checkpoint: Callable[..., Workspace]
) -> None:
    source = tiny_llama(head_dim=16)
    out = checkpoint(source, tp=3)
    assert ranks(out)[0]["transformer.layers.0.attention.dense.weight"].shape == (48, 32)
    assert_same_tensors(reassemble(out), stored_tensors(source))


@pytest.mark.parametrize("tp", [1, 3])
def test_weights_larger_than_a_block_are_copied_in_pieces(
    tiny_llama: MakeLlama, checkpoint: Callable[..., Workspace], tp: int
) -> None:
    source = tiny_llama(torch.float32, hidden_size=768, intermediate_size=3072, num_hidden_layers=1, vocab_size=5003)
    assert max(tensor.nbytes for tensor in stored_tensors(source).values()) > 8 << 20
    assert_same_tensors(reassemble(checkpoint(source, tp=tp)), stored_tensors(source))


def test_a_rank_file_is_what_the_safetensors_library_writes(
    tiny_llama: MakeLlama, checkpoint: Callable[..., Workspace], tmp_path: Path
) -> None:
    out = checkpoint(tiny_llama(), tp=3)
    for file in out.path.glob("rank*.safetensors"):
        save_file(load_file(file), tmp_path / "theirs", metadata={"format": "pt"})
        assert file.read_bytes() == (tmp_path / "theirs").read_bytes()


def test_shards_give_the_same_bytes_as_a_single_file(
    tiny_llama: MakeLlama, checkpoint: Callable[..., Workspace]
) -> None:
    single, shards = tiny_llama(folder="single"), tiny_llama(folder="shards", max_shard_size="50KB")
    assert (single / "model.safetensors").exists()
    assert len(list(shards.glob("model-*.safetensors"))) > 2
    assert digests(checkpoint(single, "a", tp=3)) == digests(checkpoint(shards, "b", tp=3))


def test_the_same_source_gives_the_same_bytes_and_their_digests_are_recorded(
    tiny_llama: MakeLlama, checkpoint: Callable[..., Workspace]
) -> None:
    source = tiny_llama()
    one, other = checkpoint(source, "one", tp=3, pp=2), checkpoint(source, "other", tp=3, pp=2)
    assert sorted(one.digests) == ["config.json", *(f"rank{rank}.safetensors" for rank in range(6))]
    assert digests(one) == digests(other)
    assert {name: digest.sha256 for name, digest in one.digests.items()} == digests(one)
    for name, digest in one.digests.items():
        content = (one.path / name).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (digest.size, digest.sha256)


def test_progress_counts_every_byte_of_the_tensors(tiny_llama: MakeLlama, tmp_path: Path, spec_of: SpecOf) -> None:
    source, out = tiny_llama(vocab_size=98), Workspace(tmp_path / "out")
    out.path.mkdir()
    steps: list[int] = []
    convert(source, spec_of(source), out, Split(3, 2), advance=steps.append)
    assert sum(steps) == checkpoint_bytes(spec_of(source), Split(3, 2))
    assert sum(steps) == sum(tensor.nbytes for rank in ranks(out) for tensor in rank.values())


# precision


@pytest.mark.parametrize("tp", [1, 3])
@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("wanted", ["float32", "float16", "bfloat16"])
def test_a_precision_that_is_asked_for_is_rounded_to_as_torch_does(
    tiny_llama: MakeLlama, checkpoint: Callable[..., Workspace], stored: torch.dtype, wanted: str, tp: int
) -> None:
    source = tiny_llama(stored)
    out = checkpoint(source, tp=tp, dtype=wanted)
    expected = {name: tensor.to(getattr(torch, wanted)) for name, tensor in stored_tensors(source).items()}
    assert_same_tensors(reassemble(out), expected)
    assert json.loads((out.path / "config.json").read_text())["dtype"] == wanted


def test_weights_in_another_precision_than_the_config_says_are_refused_unless_one_is_asked_for(
    tiny_llama: MakeLlama, checkpoint: Callable[..., Workspace]
) -> None:
    source = tiny_llama(torch.float32)
    edit_config(source, dtype="bfloat16")
    with pytest.raises(SourceError) as caught:
        checkpoint(source, "refused")
    assert caught.value.code == "DTYPE_MISMATCH"
    assert "stored as F32; config.json says bfloat16" in caught.value.message
    expected = {name: tensor.to(torch.bfloat16) for name, tensor in stored_tensors(source).items()}
    assert_same_tensors(reassemble(checkpoint(source, "asked", dtype="bfloat16")), expected)


def test_numbers_that_float16_can_not_hold_are_refused_by_name(
    tiny_llama: MakeLlama, checkpoint: Callable[..., Workspace]
) -> None:
    source = tiny_llama()
    edit_weights(source, lambda tensors: tensors["model.layers.3.mlp.up_proj.weight"].fill_(70000))
    with pytest.raises(SourceError) as caught:
        checkpoint(source, dtype="float16")
    assert caught.value.code == "DTYPE_OVERFLOW"
    assert "model.layers.3.mlp.up_proj.weight" in caught.value.message
    assert "70144 is beyond the range of F16" in str(caught.value.why)


def test_quantised_weights_are_not_converted_even_if_a_precision_is_asked_for(
    tiny_llama: MakeLlama, checkpoint: Callable[..., Workspace]
) -> None:
    source = tiny_llama()
    name = "model.layers.0.mlp.up_proj.weight"
    edit_weights(source, lambda tensors: tensors.update({name: tensors[name].to(torch.float8_e4m3fn)}))
    with pytest.raises(SourceError) as caught:
        checkpoint(source, dtype="bfloat16")
    assert caught.value.code == "DTYPE_MISMATCH"


# splits


@pytest.mark.parametrize(
    ("split", "code"),
    [(Split(2), "TP_HEADS"), (Split(1, 8), "PP_LAYERS"), (Split(3, moe_tp=1), "MOE_SPLIT")],
)
def test_a_split_that_is_not_possible_is_refused_before_anything_is_written(
    tiny_llama: MakeLlama, checkpoint: Callable[..., Workspace], tmp_path: Path, split: Split, code: str
) -> None:
    with pytest.raises(PlanRefused) as caught:
        checkpoint(tiny_llama(), split=split)
    assert caught.value.code == code
    assert not list((tmp_path / "checkpoint").iterdir())


def test_more_ranks_than_tokens_leave_some_with_padding_alone(
    tiny_llama: MakeLlama, checkpoint: Callable[..., Workspace]
) -> None:
    """Five tokens on six ranks: one row each, the last one a row of zeros."""
    source = tiny_llama(vocab_size=5, bos_token_id=1, eos_token_id=2)
    out = checkpoint(source, split=Split(6, use_parallel_embedding=True))
    assert_same_tensors(reassemble(out), stored_tensors(source))


def test_context_parallel_ranks_share_the_files(tiny_llama: MakeLlama, checkpoint: Callable[..., Workspace]) -> None:
    source = tiny_llama()
    plain, shared = checkpoint(source, "plain", tp=3, pp=2), checkpoint(source, "shared", split=Split(3, 2, cp=2))
    assert {name: digest for name, digest in digests(plain).items() if name != "config.json"} == {
        name: digest for name, digest in digests(shared).items() if name != "config.json"
    }
    config = json.loads((shared.path / "config.json").read_text())
    assert config["mapping"] == {"world_size": 12, "tp_size": 3, "pp_size": 2, "cp_size": 2}
