"""Every family, split in every way that it allows: the ranks together are what transformers saved, bit for bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from builder.errors import PlanRefused, SourceError
from builder.model.layout import Split, checkpoint_bytes
from builder.model.spec import ModelSpec
from builder.store import Workspace
from tests.unit.checkpoint.families import FAMILIES, SIZES, edit_weights, save_model, stored_tensors
from tests.unit.checkpoint.reassembly import Checkpoint, assert_same_tensors

Convert = Callable[..., Workspace]

SPLITS = {
    "one rank": Split(),
    "tp 2": Split(2),
    "tp 3": Split(3),
    "tp 6": Split(6),
    "pp 3": Split(1, 3),
    "tp 3, pp 4": Split(3, 4),
    "rows of the embedding": Split(3, use_parallel_embedding=True),
    "columns of the embedding": Split(3, 2, use_parallel_embedding=True, embedding_sharding_dim=1),
    "context": Split(3, cp=2),
}
EXPERT_SPLITS = {
    "experts apart": Split(3, moe_ep=3),
    "experts apart and cut": Split(6, moe_ep=2),
    "experts apart and cut, with stages": Split(6, 2, moe_tp=2, moe_ep=3),
    "one expert on each rank": Split(6, 4, moe_tp=1, moe_ep=6),
}
"""Six experts, widths of 96 or 24."""


def splits_of(name: str) -> dict[str, Split]:
    """3 KV heads of 6 can be split by 1, 3 and 6; Phi-3 has no stages."""
    family, changes = FAMILIES[name]
    heads = {"num_key_value_heads": SIZES["num_key_value_heads"], **changes}["num_key_value_heads"]
    found = dict(SPLITS) if heads != 3 else {key: split for key, split in SPLITS.items() if split.tp != 2}
    if family == "Phi3":
        return {key: split for key, split in found.items() if split.pp == 1}
    return found | EXPERT_SPLITS if "Moe" in family or family == "Mixtral" else found


def expected(folder: Path, name: str, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """What a checkpoint in `dtype` has to hold, under Hugging Face's names."""
    tensors = stored_tensors(folder)
    tensors.setdefault("lm_head.weight", tensors["model.embed_tokens.weight"])
    for key, tensor in tensors.items():
        if key.endswith((".mlp.gate.weight", ".block_sparse_moe.gate.weight")):
            tensors[key] = tensor.float()  # routers
        elif key.endswith("norm.weight") and name.startswith("gemma"):
            tensors[key] = (tensor.float() + 1).to(dtype)
        else:
            tensors[key] = tensor.to(dtype)
    return tensors


CASES = [(name, split) for name in FAMILIES for split in splits_of(name)]


@pytest.mark.parametrize(("name", "split"), CASES, ids=lambda value: value.replace(" ", "-").replace(",", ""))
def test_the_ranks_together_are_the_source(
    checkpoint: Convert, spec_of: Callable[[Path], ModelSpec], tmp_path: Path, name: str, split: str
) -> None:
    source = save_model(tmp_path / "source", name)
    written: list[int] = []
    out = checkpoint(source, split=splits_of(name)[split], advance=written.append)
    assert_same_tensors(Checkpoint.load(out.path).reassembled(), expected(source, name, torch.bfloat16))
    assert sum(written) == checkpoint_bytes(spec_of(source), splits_of(name)[split])


@pytest.mark.parametrize("name", ["llama", "qwen3-moe", "mixtral", "qwen2", "gemma-3", "phi-4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_other_precisions_are_kept(checkpoint: Convert, tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    source = save_model(tmp_path / "source", name, dtype)
    out = checkpoint(source, tp=3)
    assert_same_tensors(Checkpoint.load(out.path).reassembled(), expected(source, name, dtype))
    assert json.loads((out.path / "config.json").read_text())["dtype"] == str(dtype).removeprefix("torch.")


@pytest.mark.parametrize("name", ["qwen3-moe", "mixtral", "gemma-2", "phi-3-mini"])
@pytest.mark.parametrize(
    ("stored", "wanted"),
    [(torch.float32, "bfloat16"), (torch.float32, "float16"), (torch.float16, "bfloat16"), (torch.bfloat16, "float32")],
    ids=str,
)
def test_a_precision_that_is_asked_for_is_rounded_to_once(
    checkpoint: Convert, tmp_path: Path, name: str, stored: torch.dtype, wanted: str
) -> None:
    """Routers are float32 whatever is asked for, and Gemma's norms are rounded after 1 was added."""
    source = save_model(tmp_path / "source", name, stored)
    out = checkpoint(source, tp=3, dtype=wanted)
    assert_same_tensors(Checkpoint.load(out.path).reassembled(), expected(source, name, getattr(torch, wanted)))


@pytest.mark.parametrize("name", ["llama", "mixtral", "qwen3-moe with dense layers", "gemma-3", "phi-4"])
def test_shards_and_a_single_file_give_the_same_bytes(checkpoint: Convert, tmp_path: Path, name: str) -> None:
    single = save_model(tmp_path / "single", name)
    shards = save_model(tmp_path / "shards", name, max_shard_size="30KB")
    assert len(list(shards.glob("model-*.safetensors"))) > 3
    split = Split(6, moe_ep=2) if "moe" in name or name == "mixtral" else Split(3)
    one, other = checkpoint(single, "one", split=split), checkpoint(shards, "other", split=split)
    assert one.digests == other.digests


@pytest.mark.parametrize("moe_ep", [1, 2])
def test_experts_larger_than_a_block_are_copied_in_pieces(checkpoint: Convert, tmp_path: Path, moe_ep: int) -> None:
    """2,304 rows of 1,024 in float32: 9.4 MB each."""
    sizes: dict[str, Any] = {
        "hidden_size": 1024,
        "intermediate_size": 2304,
        "num_hidden_layers": 1,
        "num_local_experts": 2,
    }
    source = save_model(tmp_path / "source", "mixtral", torch.float32, **sizes)
    out = checkpoint(source, split=Split(6, moe_ep=moe_ep))
    assert_same_tensors(Checkpoint.load(out.path).reassembled(), expected(source, "mixtral", torch.float32))


def test_halves_of_a_fused_mlp_larger_than_a_block_are_copied_in_pieces(checkpoint: Convert, tmp_path: Path) -> None:
    source = save_model(tmp_path / "source", "phi-4", torch.float32, hidden_size=768, intermediate_size=3000)
    assert stored_tensors(source)["model.layers.0.mlp.gate_up_proj.weight"].nbytes > 16 << 20
    out = checkpoint(source, tp=3)
    assert_same_tensors(Checkpoint.load(out.path).reassembled(), expected(source, "phi-4", torch.float32))


def test_a_norm_that_float16_can_not_hold_with_one_added_is_refused(checkpoint: Convert, tmp_path: Path) -> None:
    source = save_model(tmp_path / "source", "gemma", torch.float16)
    edit_weights(source, lambda tensors: tensors["model.layers.1.input_layernorm.weight"].fill_(65504))
    assert_same_tensors(
        Checkpoint.load(checkpoint(source, "rounds").path).reassembled(), expected(source, "gemma", torch.float16)
    )
    wide = save_model(tmp_path / "wide", "gemma", torch.float32)
    edit_weights(wide, lambda tensors: tensors["model.layers.1.input_layernorm.weight"].fill_(65519.5))
    with pytest.raises(SourceError) as caught:
        checkpoint(wide, "overflows", dtype="float16")
    assert caught.value.code == "DTYPE_OVERFLOW"
    assert "model.layers.1.input_layernorm.weight" in caught.value.message


@pytest.mark.parametrize(
    ("name", "split", "code"),
    [
        ("mixtral", Split(3, moe_ep=2), "MOE_SPLIT"),  # 3 ranks can't be two groups
        ("mixtral", Split(3, moe_tp=3, moe_ep=3), "MOE_SPLIT"),
        ("qwen3-moe", Split(6, moe_tp=5), "TP_HEADS"),  # a width of 24
        ("phi-4", Split(1, 2), "PP_UNSUPPORTED"),
        ("phi-4", Split(2), "TP_HEADS"),
    ],
)
def test_a_split_that_is_not_possible_is_refused(
    checkpoint: Convert, tmp_path: Path, name: str, split: Split, code: str
) -> None:
    with pytest.raises(PlanRefused) as caught:
        checkpoint(save_model(tmp_path / "source", name), split=split)
    assert caught.value.code == code


def test_gemma_splits_its_embedding_whatever_is_asked_for(checkpoint: Convert, tmp_path: Path) -> None:
    """GemmaConfig of TensorRT-LLM does; a single rank has it whole."""
    source = save_model(tmp_path / "source", "gemma")
    whole = Checkpoint.load(checkpoint(source, "one").path)
    assert not whole.config["use_parallel_embedding"]
    columns = Split(3, use_parallel_embedding=True, embedding_sharding_dim=1)
    for name, split in {"plain": Split(3), "columns": columns}.items():
        ranks = Checkpoint.load(checkpoint(source, name, split=split).path)
        assert (ranks.config["use_parallel_embedding"], ranks.config["embedding_sharding_dim"]) == (True, 0)
        shapes = [rank["transformer.vocab_embedding.weight"].shape for rank in ranks.ranks]
        assert shapes == [(33, 48)] * 3  # 97 rows and two of zeros
