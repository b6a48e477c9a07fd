"""GPTQ repositories: the numbers stay, the layout becomes one that fits every GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from builder.checkpoint.convert import convert
from builder.errors import PlanRefused, SourceError
from builder.model.config import load_config
from builder.model.layout import Split, not_covered
from builder.model.spec import ModelSpec
from builder.reference.model import ReferenceModel
from builder.store import Workspace

GROUP = 128
ONE_RANK = Split()


def pack(values: torch.Tensor, bits: int = 4) -> torch.Tensor:
    """Eight numbers of 4 bits of neighbouring rows in one word, the first one lowest."""
    rows = values.to(torch.int64).reshape(len(values) // 8, 8, -1)
    words = sum(rows[:, place] << (bits * place) for place in range(8))
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def gptq_model(folder: Path, *, zero: int = 7, shuffled: bool = False, **config: Any) -> dict[str, torch.Tensor]:
    """A Llama of one layer as AutoGPTQ stores it; returns what each of its linears stands for, (out, in)."""
    sizes = {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 64,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        "torch_dtype": "float16",
        **config,
    }
    head = sizes["hidden_size"] // sizes["num_attention_heads"]
    hidden, inner, kv = sizes["hidden_size"], sizes["intermediate_size"], sizes["num_key_value_heads"] * head
    generator = torch.Generator().manual_seed(3)
    tensors, values = {}, {}
    for name, outputs, inputs in (
        ("self_attn.q_proj", hidden, hidden),
        ("self_attn.k_proj", kv, hidden),
        ("self_attn.v_proj", kv, hidden),
        ("self_attn.o_proj", hidden, hidden),
        ("mlp.gate_proj", inner, hidden),
        ("mlp.up_proj", inner, hidden),
        ("mlp.down_proj", hidden, inner),
    ):
        codes = torch.randint(0, 16, (inputs, outputs), generator=generator)
        scales = (torch.rand((inputs // GROUP, outputs), generator=generator) * 0.02 + 0.001).half()
        order = torch.arange(inputs) // GROUP
        module = f"model.layers.0.{name}"
        tensors |= {
            f"{module}.qweight": pack(codes),
            f"{module}.scales": scales,
            f"{module}.qzeros": pack(torch.full((8, inputs // GROUP * outputs // 8), zero)).reshape(-1, outputs // 8),
            f"{module}.g_idx": (order.flip(0) if shuffled else order).to(torch.int32),
        }
        values[name] = ((codes - 8) * scales.float().repeat_interleave(GROUP, 0)).T
    plain = {
        "model.embed_tokens.weight": (sizes["vocab_size"], hidden),
        "model.layers.0.input_layernorm.weight": (hidden,),
        "model.layers.0.post_attention_layernorm.weight": (hidden,),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (sizes["vocab_size"], hidden),
    }
    tensors |= {name: torch.rand(shape, generator=generator).half() for name, shape in plain.items()}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    quantization = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True}
    text = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "quantization_config": quantization, **sizes}
    (folder / "config.json").write_text(json.dumps(text))
    return values


def converted(source: Path, out: Path, split: Split = ONE_RANK) -> list[dict[str, torch.Tensor]]:
    out.mkdir()
    convert(source, ModelSpec.from_config(load_config(source), source), Workspace(out), split)
    return [load_file(out / f"rank{rank}.safetensors") for rank in range(split.files)]


def dequantized(rank: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    packed, scales = rank[f"{name}.weight"], rank[f"{name}.weights_scaling_factor"]
    low = (packed << 4) >> 4
    codes = torch.stack([low, packed >> 4], dim=1).flatten(0, 1).float()
    return codes * scales.repeat_interleave(codes.shape[1] // scales.shape[1], 1)


@pytest.mark.parametrize("zero", [7, 8])
def test_every_number_stays(tmp_path: Path, zero: int) -> None:
    values = gptq_model(tmp_path / "source", zero=zero)
    (rank,) = converted(tmp_path / "source", tmp_path / "out")
    layer = "transformer.layers.0."
    qkv = torch.cat([values[f"self_attn.{name}_proj"] for name in "qkv"])
    assert torch.equal(dequantized(rank, f"{layer}attention.qkv"), qkv)
    assert torch.equal(dequantized(rank, f"{layer}mlp.fc"), values["mlp.gate_proj"])
    assert torch.equal(dequantized(rank, f"{layer}mlp.proj"), values["mlp.down_proj"])
    config = json.loads((tmp_path / "out/config.json").read_text())["quantization"]
    assert (config["quant_algo"], config["group_size"], config["has_zero_point"]) == ("W4A16_AWQ", 128, False)
    ReferenceModel.load(tmp_path / "out")


def test_c38_ranks_hold_whole_groups_and_can_be_read_again(tmp_path: Path) -> None:
    """https://github.com/NVIDIA/TensorRT-LLM/issues/1249: splitting GPTQ tensors for TP gave views, which couldn't be
    saved. K 11,008 and N 4,096 on two ranks: 5,504 inputs each, 43 groups of 128, 688 words of eight."""
    sizes = {"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "num_key_value_heads": 32}
    values = gptq_model(tmp_path / "source", **sizes)
    words = load_file(tmp_path / "source/model.safetensors")["model.layers.0.mlp.down_proj.qweight"]
    assert words.shape == (2 * 688, 4096)
    ranks = converted(tmp_path / "source", tmp_path / "out", Split(2))
    down, gate = "transformer.layers.0.mlp.proj", "transformer.layers.0.mlp.fc"
    for number, rank in enumerate(ranks):
        assert rank[f"{down}.weights_scaling_factor"].T.shape == (43, 4096)  # row parallel: K/g/tp groups
        assert rank[f"{down}.weight"].shape == (4096 // 2, 5504)
        assert rank[f"{gate}.weights_scaling_factor"].T.shape == (32, 5504)  # column parallel: N/tp outputs
        inputs = slice(5504 * number, 5504 * (number + 1))
        assert torch.equal(dequantized(rank, down), values["mlp.down_proj"][:, inputs])
        assert torch.equal(dequantized(rank, gate), values["mlp.gate_proj"][inputs])


def test_c38_groups_are_not_cut(tmp_path: Path) -> None:
    gptq_model(tmp_path / "source", intermediate_size=384)
    with pytest.raises(PlanRefused) as caught:
        converted(tmp_path / "source", tmp_path / "out", Split(2))
    assert "group size 128" in str(caught.value.why)


@pytest.mark.parametrize(("fault", "words"), [({"zero": 5}, "zero points"), ({"shuffled": True}, "in their order")])
def test_what_the_config_does_not_admit_is_refused(tmp_path: Path, fault: dict[str, Any], words: str) -> None:
    gptq_model(tmp_path / "source", **fault)
    with pytest.raises(SourceError) as caught:
        converted(tmp_path / "source", tmp_path / "out")
    assert caught.value.code == "GPTQ_LAYOUT"
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"desc_act": True}, "reordered inputs"), ({"sym": False}, "zero points"), ({"group_size": -1}, "no groups")],
)
def test_other_kinds_are_left_to_the_release(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    gptq_model(tmp_path)
    config = load_config(tmp_path)
    config["quantization_config"] |= changes
    assert words in str(not_covered(ModelSpec.from_config(config, tmp_path)))
