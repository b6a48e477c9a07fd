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
from tests.unit.reference.sharding import write_checkpoint
from tests.unit.reference.tiny import tiny, tiny_llama


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tiny_llama(num_hidden_layers=1), tmp_path, tp=3)


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "GPT2LMHeadModel"}, "architecture 'GPT2LMHeadModel' is not implemented"),
        ({"architecture": ["LlamaForCausalLM"]}, r"architecture \['LlamaForCausalLM'\] is not implemented"),
        ({"architecture": None}, "architecture is missing"),
        ({"dtype": "float8"}, "dtype 'float8' is not implemented"),
        ({"hidden_act": "relu"}, "hidden_act 'relu' is not implemented"),
        ({"position_embedding_type": "learned_absolute"}, "position_embedding_type 'learned_absolute'"),
        ({"position_embedding_type": "long_rope"}, "long_rope needs the factors of longrope"),
        ({"rotary_scaling": {"type": "mrope"}}, "rotary_scaling: type 'mrope' is not implemented"),
        ({"rotary_scaling": "linear"}, "rotary_scaling: a JSON object is expected"),
        ({"rotary_embedding_dim": 4}, "rotary_embedding_dim 4 must be head_size 8 times rotary_pct 1"),
        ({"rotary_pct": 0.4}, "rotary_embedding_dim 3 must be head_size 8 times rotary_pct 0.4, and even"),
        ({"qk_layernorm": True}, "qk_layernorm True is not implemented for LlamaForCausalLM"),
        ({"inter_layernorms": True}, "inter_layernorms True is not implemented for LlamaForCausalLM"),
        ({"embedding_sharding_dim": 2}, "embedding_sharding_dim must be 0 or 1"),
        ({"moe": {"num_experts": 8}}, r"mixture of experts \(moe\) is not implemented for LlamaForCausalLM"),
        ({"qwen_type": "qwen2"}, "the key 'qwen_type' is not known"),
        ({"sliding_window": 4096}, "the key 'sliding_window' is not known"),
        ({"final_logit_softcapping": 30.0}, "the key 'final_logit_softcapping' is not known"),
        ({"runtime_defaults": {"max_attention_window": 512}}, "max_attention_window must be a list"),
        ({"runtime_defaults": {"max_attention_window": [0]}}, "max_attention_window must be a list"),
        ({"runtime_defaults": {"sink_token_length": 4}}, "runtime_defaults: the key 'sink_token_length' is not known"),
        ({"bias": True}, "bias True contradicts attn_bias False"),
        ({"lm_head_bias": True}, "lm_head_bias True is not implemented"),
        ({"attn_bias": "no"}, "attn_bias must be true or false"),
        ({"hidden_size": True}, "hidden_size must be a positive integer"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"norm_epsilon": -1e-5}, "norm_epsilon must be a positive number"),
        ({"num_key_value_heads": 4}, "6 attention heads don't share 4 KV heads"),
        ({"mapping": {"tp_size": 4}}, "tp_size 4 doesn't divide"),
        ({"mapping": {"tp_size": 3, "pp_size": 2}}, "pp_size 2 exceeds num_hidden_layers 1"),
        ({"mapping": {"tp_size": 3, "world_size": 6}}, "world_size 6 is not tp_size 3 times pp_size 1 times cp_size 1"),
        ({"mapping": {"tp_size": 3, "cp_size": 2, "world_size": 3}}, "world_size 3 is not .* times cp_size 2"),
        ({"mapping": {"tp_size": 3, "moe_ep_size": 2}}, "moe_tp_size 1 times moe_ep_size 2 is not tp_size 3"),
        ({"mapping": {"tp_size": 3, "moe_cluster_size": 3}}, "moe_cluster_size 3 is not implemented"),
        ({"mapping": {"tp_size": 3, "enable_attention_dp": True}}, "the key 'enable_attention_dp' is not known"),
    ],
)
def test_a_config_that_is_not_implemented_is_refused(checkpoint: Path, changes: dict[str, Any], message: str) -> None:
    change_config(checkpoint, **changes)
    with pytest.raises(ReferenceModelError, match=message) as caught:
        ModelFolder.open(checkpoint)
    assert str(checkpoint / "config.json") in str(caught.value)


def test_keys_without_effect_and_switched_off_keys_are_accepted(checkpoint: Path) -> None:
    change_config(checkpoint, moe={"num_experts": 0}, new_feature=False, other=None, runtime_defaults=None)
    change_config(checkpoint, mapping={"tp_size": 3, "rank": 2, "gpus_per_node": 8, "moe_tp_size": -1, "cp_size": 1})
    assert ModelFolder.open(checkpoint).config.tp_size == 3


def test_what_modelopt_writes_besides_is_accepted(checkpoint: Path) -> None:
    change_config(
        checkpoint,
        producer={"name": "modelopt", "version": "0.47.0"},
        share_embedding_table=False,
        residual_mlp=False,
        bias=False,
        rotary_pct=1.0,
        rank=0,
        decoder="llama",
        rmsnorm=True,
        lm_head_bias=False,
        logits_dtype="float16",
        embedding_sharding_dim=0,
    )
    assert ModelFolder.open(checkpoint).config.tp_size == 3


@pytest.mark.parametrize(("dim", "shape"), [(0, [33, 36]), (1, [97, 12])])
def test_a_parallel_embedding_must_be_split(checkpoint: Path, dim: int, shape: list[int]) -> None:
    change_config(checkpoint, use_parallel_embedding=True, embedding_sharding_dim=dim)
    with pytest.raises(ReferenceModelError) as caught:
        ModelFolder.open(checkpoint)
    assert f"vocab_embedding.weight is F32 [97, 36], expected F32 {shape}" in str(caught.value)


def test_a_key_that_is_absent_stands_for_tensorrt_llms_default(checkpoint: Path) -> None:
    change_config(checkpoint, hidden_act=None, quantization=None)
    config = ModelFolder.open(checkpoint).config
    assert config.activation == "gelu_tanh"
    assert config.quantization.algo is None


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("qwen2", {"qwen_type": "qwen"}, "qwen_type 'qwen' is not implemented"),
        ("qwen3", {"qk_layernorm": False}, "qk_layernorm False is not implemented for Qwen3ForCausalLM"),
        ("qwen2", {"attn_bias": False}, r"tensors not known: .*attention\.qkv\.bias"),
        ("mixtral", {"moe": None}, "num_experts is missing"),
        ("mixtral", {"moe": {"num_experts": 4}}, "top_k is missing"),
        ("mixtral", {"moe": {"num_experts": 4, "top_k": 5}}, "top_k 5 is more than num_experts 4"),
        ("mixtral", {"moe": {"num_experts": 4, "top_k": 2, "normalization_mode": 2}}, "normalization_mode 2"),
        ("mixtral", {"moe": {"num_experts": 4, "top_k": 2, "tp_mode": 1}}, "the key 'tp_mode' is not known"),
        (
            "mixtral",
            {"moe": {"num_experts": 4, "top_k": 2, "shared_expert_intermediate_size": 8}},
            "shared_expert_intermediate_size 8 is not implemented",
        ),
        ("mixtral", {"hidden_act": "silu"}, "hidden_act 'silu' is not implemented; implemented: swiglu, geglu"),
        ("mixtral", {"mapping": {"tp_size": 3, "moe_ep_size": 3}}, "moe_ep_size 3 and moe_tp_size 1 don't divide 4"),
        ("mixtral", {"mlp_bias": True}, "mlp_bias True is not implemented for MixtralForCausalLM"),
        ("qwen3_moe", {"mlp_only_layers": [3]}, "mlp_only_layers must be a list of layers, from 0 to 2"),
        ("qwen3_moe", {"moe_intermediate_size": None}, "moe_intermediate_size is missing"),
        ("qwen3_moe", {"moe_shared_expert_intermediate_size": 8}, "moe_shared_expert_intermediate_size 8"),
        ("gemma2", {"query_pre_attn_scalar": None}, "query_pre_attn_scalar is missing"),
        ("gemma2", {"final_logit_softcapping": -1}, "final_logit_softcapping must be a positive number"),
        ("gemma3", {"inter_layernorms": False}, "inter_layernorms False is not implemented for Gemma3ForCausalLM"),
        ("gemma3", {"attn_logit_softcapping": 50.0}, "the key 'attn_logit_softcapping' is not known"),
        ("gemma3", {"runtime_defaults": None, "sliding_window": None}, "sliding_window is missing"),
        ("phi3", {"hidden_act": "silu"}, "hidden_act 'silu' is not implemented"),
        ("phi3", {"attn_bias": True}, "attn_bias True is not implemented for Phi3ForCausalLM"),
        ("phi3", {"mapping": {"pp_size": 2}}, "pp_size other than 1 is not implemented"),
        (
            "llama",
            {"use_parallel_embedding": True, "embedding_sharding_dim": 1, "mapping": {"tp_size": 5}},
            "tp_size 5",
        ),
    ],
)
def test_what_a_family_does_not_have_is_refused(
    family: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = write_checkpoint(tiny(family), tmp_path)
    change_config(folder, **changes)
    with pytest.raises(ReferenceModelError, match=message):
        ModelFolder.open(folder)


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


def with_an_unknown_dtype(tensors: dict[str, torch.Tensor]) -> None:
    tensors["transformer.ln_f.weight"] = tensors["transformer.ln_f.weight"].to(torch.int64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_a_tensor, r"tensors missing: transformer\.layers\.0\.mlp\.gate\.weight"),
        (with_one_more_tensor, r"tensors not known: transformer\.layers\.1\.mlp\.gate\.weight"),
        (with_a_transposed_tensor, r"mlp\.gate\.weight is F32 \[36, 22\], expected F32 \[22, 36\]"),
        (with_another_dtype, r"ln_f\.weight is F16 \[36\], expected F32 \[36\]"),
        (with_an_integer_tensor, r"ln_f\.weight is I8 \[36\], expected F32 \[36\]"),
        (with_an_unknown_dtype, r"ln_f\.weight has dtype I64"),
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
