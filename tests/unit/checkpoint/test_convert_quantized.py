"""Weights that are published quantised arrive with the values that they had, however they are split.

Exactly, with one exception: linears that TensorRT-LLM fuses have one FP8 scale in its checkpoints. Where their own
differ, the smaller ones are brought to the largest, and rounded to FP8 once more. A value v = c · s becomes the FP8
number nearest to v / S, and so, with x = |v / S|, it is off by at most S · max(x · 2^-4, 2^-10): E4M3 has 3 bits of
mantissa, so that numbers from 2^e to 2^(e+1) are 2^(e-3) apart, half of which is at most x · 2^-4; below 2^-6, where
there are no normal numbers, they are 2^-9 apart.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from builder.checkpoint.convert import convert
from builder.errors import PlanRefused, SourceError
from builder.model.config import load_config
from builder.model.layout import Split
from builder.model.spec import ModelSpec
from builder.store import Workspace
from tests.unit.checkpoint.families import edit_config, edit_weights, stored_tensors
from tests.unit.checkpoint.quantized import (
    GROUP,
    config_of,
    quantization_config,
    rank_values,
    save_quantized,
    source_values,
)
from tests.unit.checkpoint.reassembly import Checkpoint, Rank, assert_same_tensors

Convert = Callable[..., Workspace]

SPLITS = {"one rank": Split(), "tp 3": Split(3), "tp 3, pp 2": Split(3, 2), "pp 3": Split(1, 3)}

KINDS = [
    ("fp8", "modelopt"),
    ("fp8", "compressed-tensors"),
    ("fp8-rowwise", "modelopt"),
    ("fp8-rowwise", "compressed-tensors"),
    ("fp8-rowwise", "fbgemm_fp8"),
    ("nvfp4", "modelopt"),
    ("int4-awq", "modelopt"),
    ("w4a8-awq", "modelopt"),
    ("int8-sq", "modelopt"),
]


def values(out: Workspace, precision: str) -> tuple[dict[str, torch.Tensor], list[Rank]]:
    """The Hugging Face tensors that the ranks hold together, dequantised, and each rank's scales of activations."""
    checkpoint = Checkpoint.load(out.path)
    found = [rank_values(rank, precision) for rank in checkpoint.ranks]
    return Checkpoint(checkpoint.config, [rank for rank, _ in found]).reassembled(), [other for _, other in found]


def expected(source: Path, precision: str) -> dict[str, torch.Tensor]:
    found = source_values(stored_tensors(source), precision)
    for name in found:
        if name.endswith((".mlp.gate.weight", ".block_sparse_moe.gate.weight")):
            found[name] = found[name].float()
    return found


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize(("precision", "method"), KINDS)
def test_the_ranks_stand_for_the_values_of_the_source(
    checkpoint: Convert, tmp_path: Path, precision: str, method: str, split: str
) -> None:
    source = save_quantized(tmp_path / "source", precision, method, alike=True)
    ours, _ = values(checkpoint(source, split=SPLITS[split]), precision)
    assert_same_tensors(ours, expected(source, precision))


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "gemma", "mistral with a window"])
@pytest.mark.parametrize("precision", ["fp8", "int4-awq"])
def test_other_families_too(checkpoint: Convert, tmp_path: Path, precision: str, family: str) -> None:
    source = save_quantized(tmp_path / "source", precision, family=family, alike=True)
    ours, _ = values(checkpoint(source, tp=3), precision)
    theirs = expected(source, precision)
    theirs.setdefault("lm_head.weight", theirs["model.embed_tokens.weight"])
    if family == "gemma":
        theirs = {name: (t.float() + 1).bfloat16() if "norm" in name else t for name, t in theirs.items()}
    assert_same_tensors(ours, theirs)


# the form of a rank's tensors


FORMS: dict[str, dict[str, tuple[torch.dtype, tuple[int, ...]]]] = {
    "fp8": {
        "weight": (torch.float8_e4m3fn, (64, 96)),
        "weights_scaling_factor": (torch.float32, (1,)),
        "activation_scaling_factor": (torch.float32, (1,)),
    },
    "fp8-rowwise": {
        "weight": (torch.float8_e4m3fn, (64, 96)),
        "per_channel_scale": (torch.float32, (64,)),
    },
    "nvfp4": {
        "weight": (torch.uint8, (64, 48)),
        "weights_scaling_factor": (torch.float8_e4m3fn, (64, 6)),
        "weights_scaling_factor_2": (torch.float32, (1,)),
        "activation_scaling_factor": (torch.float32, (1,)),
    },
    "int4-awq": {
        "weight": (torch.int8, (32, 96)),
        "weights_scaling_factor": (torch.float32, (64, 3)),
        "prequant_scaling_factor": (torch.bfloat16, (96,)),
    },
    "w4a8-awq": {
        "weight": (torch.int8, (32, 96)),
        "weights_scaling_factor": (torch.float32, (64, 3)),
        "weights_scaling_factor_2": (torch.float32, (1,)),
        "prequant_scaling_factor": (torch.bfloat16, (96,)),
        "activation_scaling_factor": (torch.float32, (1,)),
    },
    "int8-sq": {
        "weight": (torch.int8, (64, 96)),
        "weights_scaling_factor": (torch.float32, (64,)),
        "prequant_scaling_factor": (torch.bfloat16, (96,)),
        "activation_scaling_factor": (torch.float32, (1,)),
    },
}
"""attention.qkv on one of three ranks: (2 + 1 + 1) heads of 16, a hidden size of 96."""


@pytest.mark.parametrize("precision", FORMS)
def test_names_shapes_and_dtypes_are_modelopts(checkpoint: Convert, tmp_path: Path, precision: str) -> None:
    source = save_quantized(tmp_path / "source", precision)
    for rank in Checkpoint.load(checkpoint(source, tp=3).path).ranks:
        module = "transformer.layers.0.attention.qkv."
        found = {
            name.removeprefix(module): (tensor.dtype, tuple(tensor.shape))
            for name, tensor in rank.items()
            if name.startswith(module)
        }
        assert found == FORMS[precision]


def plain_quantization(**changes: Any) -> dict[str, Any]:
    return {"kv_cache_quant_algo": None, "exclude_modules": ["lm_head"], **changes}


@pytest.mark.parametrize(
    ("precision", "section"),
    [
        ("fp8", plain_quantization(quant_algo="FP8")),
        ("fp8-rowwise", plain_quantization(quant_algo="FP8_PER_CHANNEL_PER_TOKEN")),
        ("nvfp4", plain_quantization(quant_algo="NVFP4", group_size=16)),
        (
            "int4-awq",
            plain_quantization(quant_algo="W4A16_AWQ", group_size=GROUP, has_zero_point=False, pre_quant_scale=True),
        ),
        (
            "w4a8-awq",
            plain_quantization(quant_algo="W4A8_AWQ", group_size=GROUP, has_zero_point=False, pre_quant_scale=True),
        ),
        ("int8-sq", plain_quantization(quant_algo="W8A8_SQ_PER_CHANNEL")),
    ],
)
def test_the_config_says_how_the_weights_are_quantised(
    checkpoint: Convert, tmp_path: Path, precision: str, section: dict[str, Any]
) -> None:
    source = save_quantized(tmp_path / "source", precision)
    assert config_of(checkpoint(source, tp=3).path)["quantization"] == section


@pytest.mark.parametrize("precision", ["fp8", "nvfp4", "w4a8-awq", "int8-sq"])
def test_a_fused_linears_activations_have_the_largest_scale(
    checkpoint: Convert, tmp_path: Path, precision: str
) -> None:
    source = save_quantized(tmp_path / "source", precision)
    tensors = stored_tensors(source)
    _, others = values(checkpoint(source, tp=3), precision)
    attention, mlp = "model.layers.1.self_attn.", "model.layers.1.mlp."
    for rank in others:
        for ours, theirs in {
            "attention.qkv": [f"{attention}{name}_proj" for name in "qkv"],
            "attention.dense": [f"{attention}o_proj"],
            "mlp.fc": [f"{mlp}gate_proj"],
            "mlp.gate": [f"{mlp}up_proj"],
            "mlp.proj": [f"{mlp}down_proj"],
        }.items():
            scale = rank[f"transformer.layers.1.{ours}.activation_scaling_factor"]
            assert torch.equal(scale, torch.stack([tensors[f"{name}.input_scale"] for name in theirs]).max().reshape(1))


@pytest.mark.parametrize("precision", ["int4-awq", "w4a8-awq", "int8-sq"])
@pytest.mark.parametrize(
    "prequant",
    [("o_proj", "down_proj"), (), ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")],
    ids=["behind-no-norm", "none", "all"],
)
def test_pre_quantisation_scales_go_with_the_inputs_and_are_ones_where_there_are_none(
    checkpoint: Convert, tmp_path: Path, precision: str, prequant: tuple[str, ...]
) -> None:
    source = save_quantized(tmp_path / "source", precision, prequant=prequant)
    tensors = stored_tensors(source)
    ours, others = values(checkpoint(source, tp=3), precision)
    assert_same_tensors(ours, expected(source, precision))
    layer = "transformer.layers.2."
    for ours_name, theirs, split in (
        ("attention.qkv", "self_attn.k_proj", False),
        ("attention.dense", "self_attn.o_proj", True),
        ("mlp.fc", "mlp.gate_proj", False),
        ("mlp.proj", "mlp.down_proj", True),
    ):
        scales = [rank[f"{layer}{ours_name}.prequant_scaling_factor"] for rank in others]
        width = 192 if theirs.endswith("down_proj") else 96
        whole = tensors.get(f"model.layers.2.{theirs}.pre_quant_scale", torch.ones(width, dtype=torch.bfloat16))
        assert (theirs.rpartition(".")[2] in prequant) is bool((whole != 1).any())
        if split:
            assert torch.equal(torch.cat(scales), whole)
        else:
            assert all(torch.equal(scale, whole) for scale in scales)


@pytest.mark.parametrize("method", ["modelopt", "compressed-tensors"])
def test_the_kv_cache_has_the_larger_of_its_scales(checkpoint: Convert, tmp_path: Path, method: str) -> None:
    source = save_quantized(tmp_path / "source", "fp8", method, kv_cache=True)
    tensors = stored_tensors(source)
    out = checkpoint(source, tp=3)
    _, others = values(out, "fp8")
    places = ("k_proj.k_scale", "v_proj.v_scale") if method == "modelopt" else ("k_scale", "v_scale")
    for layer in range(3):
        largest = torch.stack(
            [tensors[f"model.layers.{layer}.self_attn.{place}"].reshape(()) for place in places]
        ).max()
        for rank in others:
            assert torch.equal(
                rank[f"transformer.layers.{layer}.attention.kv_cache_scaling_factor"], largest.reshape(1)
            )
    assert config_of(out.path)["quantization"]["kv_cache_quant_algo"] == "FP8"


# FP8 with different scales


@pytest.mark.parametrize("split", SPLITS)
def test_fused_fp8_weights_are_rounded_to_the_largest_scale_once(
    checkpoint: Convert, tmp_path: Path, split: str
) -> None:
    source = save_quantized(tmp_path / "source", "fp8")
    tensors = stored_tensors(source)
    out = checkpoint(source, split=SPLITS[split])
    ours, _ = values(out, "fp8")
    theirs = expected(source, "fp8")
    rounded = 0
    for layer in range(3):
        modules = [f"model.layers.{layer}.self_attn.{name}_proj" for name in "qkv"]
        largest = max(float(tensors[f"{module}.weight_scale"]) for module in modules)
        for module in modules:
            one, other = ours.pop(f"{module}.weight"), theirs.pop(f"{module}.weight")
            if float(tensors[f"{module}.weight_scale"]) == largest:
                assert torch.equal(one, other)
                continue
            x = other.abs() / largest
            assert ((one - other).abs() <= largest * torch.maximum(x * 2**-4, torch.tensor(2.0**-10))).all()
            assert torch.equal((one < 0), (one != 0) & (other < 0))
            rounded += int((one != other).sum())
    assert rounded
    assert_same_tensors(ours, theirs)


def test_a_fused_fp8_weight_is_the_nearest_that_its_scale_can_say(checkpoint: Convert, tmp_path: Path) -> None:
    """Against all 256 numbers of E4M3."""
    source = save_quantized(tmp_path / "source", "fp8", num_hidden_layers=1)
    (rank,) = Checkpoint.load(checkpoint(source).path).ranks
    scale = rank["transformer.layers.0.attention.qkv.weights_scaling_factor"].double()
    grid = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).double()
    grid = grid[~grid.isnan()]
    theirs = torch.cat([expected(source, "fp8")[f"model.layers.0.self_attn.{name}_proj.weight"] for name in "qkv"])
    exact = (theirs / scale).flatten()
    off = (rank["transformer.layers.0.attention.qkv.weight"].double().flatten() - exact).abs()
    assert torch.equal(off, (exact[:, None] - grid).abs().min(dim=1).values)


# experts


@pytest.mark.parametrize("family", ["mixtral", "qwen3-moe"])
@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize(
    "split", [Split(), Split(3), Split(6, moe_ep=2), Split(3, 2, moe_ep=3)], ids=["one", "cut", "both", "apart"]
)
def test_every_expert_has_a_scale_of_its_own(
    checkpoint: Convert, tmp_path: Path, family: str, alike: bool, split: Split
) -> None:
    """The halves of an expert's fused linear share one; other experts don't matter to it."""
    source = save_quantized(tmp_path / "source", "fp8", family=family, alike=alike, excluded=("self_attn",))
    tensors = stored_tensors(source)
    ours, others = values(checkpoint(source, split=split), "fp8")
    theirs = expected(source, "fp8")
    names = ("w1", "w3") if family == "mixtral" else ("gate_proj", "up_proj")
    for name in [name for name in theirs if ".experts." in name and name.split(".")[-2] in names]:
        module = name.rpartition(".")[0].rpartition(".")[0]
        largest = max(float(tensors[f"{module}.{half}.weight_scale"]) for half in names)
        one, other = ours.pop(name), theirs.pop(name)
        if alike or float(tensors[f"{name}_scale"]) == largest:
            assert torch.equal(one, other), name
        else:
            bound = largest * torch.maximum(other.abs() / largest * 2**-4, torch.tensor(2.0**-10))
            assert ((one - other).abs() <= bound).all(), name
    assert_same_tensors(ours, theirs)
    for rank, scales in enumerate(others[: split.tp]):
        group = rank % split.moe_ep
        own = [
            tensors[f"{name.removesuffix('.weight')}.input_scale"].item()
            for name in tensors
            if name.startswith("model.layers.0.")
            and name.endswith(tuple(f".{half}.weight" for half in names))
            and int(name.split(".experts.")[1].split(".")[0]) * split.moe_ep // 6 == group
        ]
        assert len(own) == 2 * 6 // split.moe_ep
        assert scales["transformer.layers.0.mlp.fc.activation_scaling_factor"].item() == max(own)


def test_routers_of_quantised_experts_are_whole_and_float32(checkpoint: Convert, tmp_path: Path) -> None:
    source = save_quantized(tmp_path / "source", "fp8", family="mixtral")
    for rank in Checkpoint.load(checkpoint(source, split=Split(3, moe_ep=3)).path).ranks:
        assert rank["transformer.layers.0.mlp.router.weight"].dtype == torch.float32
        assert rank["transformer.layers.0.mlp.fc.weights_scaling_factor"].shape == (2, 1)
        assert rank["transformer.layers.0.mlp.proj.weights_scaling_factor"].shape == (2, 1)


# modules that aren't quantised


@pytest.mark.parametrize("precision", ["fp8", "nvfp4", "int4-awq", "int8-sq"])
def test_excluded_modules_stay_as_they_are_and_are_told(checkpoint: Convert, tmp_path: Path, precision: str) -> None:
    excluded = ("layers.0.self_attn", "down_proj")
    source = save_quantized(tmp_path / "source", precision, alike=True, excluded=excluded)
    edit_config(
        source,
        quantization_config=quantization_config(
            precision, "modelopt", ["lm_head", "model.layers.0.self_attn*", "*down_proj"]
        ),
    )
    out = checkpoint(source, tp=3)
    ours, _ = values(out, precision)
    assert ours["model.layers.0.self_attn.q_proj.weight"].dtype == torch.bfloat16
    assert_same_tensors(ours, expected(source, precision))
    assert config_of(out.path)["quantization"]["exclude_modules"] == [
        "lm_head",
        "transformer.layers.0.attention.dense",
        "transformer.layers.0.attention.qkv",
        "transformer.layers.0.mlp.proj",
        "transformer.layers.1.mlp.proj",
        "transformer.layers.2.mlp.proj",
    ]


@pytest.mark.parametrize(
    "ignored",
    [
        ["lm_head", "model.layers.1.mlp.gate_proj", "model.layers.1.mlp.up_proj", "model.layers.1.mlp.down_proj"],
        ["lm_head", "re:.*layers\\.1\\.mlp.*"],
        ["lm_head", "model.layers.1.mlp"],
    ],
    ids=["names", "expression", "parent"],
)
def test_modules_are_excluded_in_every_spelling(checkpoint: Convert, tmp_path: Path, ignored: list[str]) -> None:
    source = save_quantized(tmp_path / "source", "fp8", alike=True, excluded=("layers.1.mlp",))
    edit_config(source, quantization_config=quantization_config("fp8", "compressed-tensors", ignored))
    ours, _ = values(checkpoint(source, tp=3), "fp8")
    assert_same_tensors(ours, expected(source, "fp8"))


def test_a_projection_that_is_quantised_alone_is_refused(checkpoint: Convert, tmp_path: Path) -> None:
    source = save_quantized(tmp_path / "source", "fp8", excluded=("layers.1.self_attn.k_proj",))
    with pytest.raises(SourceError) as caught:
        checkpoint(source)
    assert caught.value.code == "MIXED_FUSION"
    assert "transformer.layers.1.attention.qkv" in caught.value.message


def test_stages_that_would_differ_are_refused(checkpoint: Convert, tmp_path: Path) -> None:
    """Layers 0 and 2 of three are the first ones of their stages."""
    source = save_quantized(tmp_path / "source", "fp8", excluded=("layers.0.mlp",))
    with pytest.raises(SourceError) as caught:
        checkpoint(source, "two", pp=2)
    assert caught.value.code == "MIXED_STAGES"
    assert "tensor parallelism" in str(caught.value.hint)
    checkpoint(source, "one", tp=3)


# what else config files say


def test_hf_quant_config_alone_is_enough(tmp_path: Path, checkpoint: Convert) -> None:
    """Older exports of ModelOpt have nothing in config.json."""
    source = save_quantized(tmp_path / "source", "int4-awq")
    edit_config(source, quantization_config=None)
    section = {"quant_algo": "W4A16_AWQ", "group_size": GROUP, "exclude_modules": ["lm_head"]}
    spec = ModelSpec.from_config(
        load_config(source), source, hf_quant_config={"producer": {"name": "modelopt"}, "quantization": section}
    )
    out = Workspace(tmp_path / "out")
    out.path.mkdir()
    convert(source, spec, out, Split(3))
    ours, _ = values(out, "int4-awq")
    assert_same_tensors(ours, expected(source, "int4-awq"))


@pytest.mark.parametrize("precision", ["fp8", "fp8-rowwise", "nvfp4", "int4-awq", "int8-sq"])
def test_a_precision_that_is_asked_for_is_that_of_what_is_not_quantised(
    checkpoint: Convert, tmp_path: Path, precision: str
) -> None:
    source = save_quantized(tmp_path / "source", precision, alike=True)
    out = checkpoint(source, tp=3, dtype="float16")
    ours, others = values(out, precision)
    theirs = {
        name: tensor.half() if tensor.dtype == torch.bfloat16 else tensor
        for name, tensor in expected(source, precision).items()
    }
    assert_same_tensors(ours, theirs)
    assert config_of(out.path)["dtype"] == "float16"
    for rank in others:
        for name, tensor in rank.items():
            assert tensor.dtype == (torch.float16 if name.endswith("prequant_scaling_factor") else torch.float32)


def test_groups_are_not_cut(checkpoint: Convert, tmp_path: Path) -> None:
    """96 inputs of the output projection are 3 groups of 32; a sixth of them is 16."""
    for precision in ("int4-awq", "w4a8-awq"):
        source = save_quantized(tmp_path / precision, precision)
        with pytest.raises(PlanRefused) as caught:
            checkpoint(source, f"out-{precision}", tp=6)
        assert "group size 32" in str(caught.value.why)
    source = save_quantized(tmp_path / "nvfp4", "nvfp4")
    ours, _ = values(checkpoint(source, tp=6), "nvfp4")  # blocks of 16
    assert_same_tensors(ours, expected(source, "nvfp4"))


# what is refused


def set_to(value: float, *names: str) -> Callable[[dict[str, torch.Tensor]], None]:
    def edit(tensors: dict[str, torch.Tensor]) -> None:
        for name in names:
            tensors[f"model.layers.1.{name}"].fill_(value)

    return edit


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("precision", "names", "values"),
    [
        ("fp8", ["self_attn.q_proj.weight_scale"], [0.0, -1.0, NAN, INF]),
        ("fp8", [f"self_attn.{name}_proj.weight_scale" for name in "qkv"], [0.0, -1.0, NAN, INF]),
        ("fp8", ["mlp.down_proj.weight_scale"], [0.0, -1.0, NAN, INF]),
        ("fp8", ["mlp.up_proj.input_scale"], [0.0, -1.0, NAN, INF]),
        ("fp8-rowwise", ["mlp.up_proj.weight_scale"], [-1.0, NAN, INF]),
        ("nvfp4", [f"self_attn.{name}_proj.weight_scale_2" for name in "qkv"], [0.0, NAN, INF]),
        ("nvfp4", ["mlp.up_proj.weight_scale"], [NAN]),
        ("int4-awq", ["mlp.up_proj.weight_scale"], [-1.0, NAN, INF]),
        ("int4-awq", ["mlp.down_proj.pre_quant_scale"], [0.0, NAN, INF]),
        ("int8-sq", ["self_attn.q_proj.weight_scale"], [-1.0, NAN, INF]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_scale_that_can_not_be_one_is_refused(
    checkpoint: Convert, tmp_path: Path, precision: str, names: list[str], values: list[float]
) -> None:
    source = save_quantized(tmp_path / "source", precision)
    content = (source / "model.safetensors").read_bytes()
    for number, value in enumerate(values):
        (source / "model.safetensors").write_bytes(content)
        edit_weights(source, set_to(value, *names))
        with pytest.raises(SourceError) as caught:
            checkpoint(source, f"out-{number}", tp=3)
        assert caught.value.code == "SCALE_VALUE"
        assert names[0] in caught.value.message


def test_rows_of_zeros_may_have_scales_of_zero(checkpoint: Convert, tmp_path: Path) -> None:
    """A row or group without a number in it, which pruned models have."""
    for precision in ("fp8-rowwise", "int4-awq", "nvfp4"):
        source = save_quantized(tmp_path / precision, precision)
        edit_weights(source, set_to(0.0, "mlp.up_proj.weight_scale"))
        ours, _ = values(checkpoint(source, f"out-{precision}", tp=3), precision)
        assert_same_tensors(ours, expected(source, precision))


@pytest.mark.parametrize(
    ("precision", "name", "where"),
    [
        ("nvfp4", "self_attn.k_proj.weight_scale_2", "attention.qkv"),
        ("w4a8-awq", "self_attn.v_proj.weight_scale_2", "attention.qkv"),
    ],
)
def test_scales_that_can_not_be_brought_together_are_refused(
    checkpoint: Convert, tmp_path: Path, precision: str, name: str, where: str
) -> None:
    source = save_quantized(tmp_path / "source", precision)
    edit_weights(source, lambda tensors: tensors[f"model.layers.1.{name}"].mul_(2))
    with pytest.raises(SourceError) as caught:
        checkpoint(source, tp=3)
    assert caught.value.code == "SCALES_DIFFER"
    assert where in caught.value.message


@pytest.mark.parametrize("edit", ["another", "missing in one", "missing in the first"])
def test_pre_quantisation_scales_of_fused_linears_that_differ_are_refused(
    checkpoint: Convert, tmp_path: Path, edit: str
) -> None:
    source = save_quantized(tmp_path / "source", "int4-awq", prequant=("q_proj", "k_proj", "v_proj"))
    first, second = (f"model.layers.1.self_attn.{name}_proj.pre_quant_scale" for name in "qk")

    def change(tensors: dict[str, torch.Tensor]) -> None:
        if edit == "another":
            tensors[second][5] *= 2
        else:
            del tensors[second if edit == "missing in one" else first]

    edit_weights(source, change)
    with pytest.raises(SourceError) as caught:
        checkpoint(source, tp=3)
    assert caught.value.code == "SCALES_DIFFER"
    assert "transformer.layers.1.attention.qkv" in caught.value.message


@pytest.mark.parametrize(
    ("precision", "edit", "code"),
    [
        ("fp8", lambda t: t.pop("model.layers.0.mlp.up_proj.input_scale"), "TENSOR_MISSING"),
        ("fp8", lambda t: t.pop("model.layers.0.mlp.up_proj.weight_scale"), "TENSOR_MISSING"),
        ("fp8", lambda t: t.update({"lm_head.weight_scale": torch.ones(())}), "TENSOR_UNEXPECTED"),
        ("fp8", lambda t: t.update({"model.layers.0.mlp.up_proj.weight_scale": torch.ones(192)}), "TENSOR_SHAPE"),
        (
            "fp8",
            lambda t: t.update({"model.layers.0.mlp.up_proj.weight": torch.zeros(192, 96, dtype=torch.bfloat16)}),
            "DTYPE_MISMATCH",
        ),
        (
            "fp8",
            lambda t: t.update({"model.layers.0.mlp.up_proj.weight": torch.zeros(192, 96, dtype=torch.float8_e5m2)}),
            "DTYPE_MISMATCH",
        ),
        (
            "fp8",
            lambda t: t.update({"model.layers.0.mlp.up_proj.weight_scale": torch.ones((), dtype=torch.int32)}),
            "DTYPE_MISMATCH",
        ),
        (
            "fp8",
            lambda t: t.update({"lm_head.weight": torch.zeros(97, 96, dtype=torch.float8_e4m3fn)}),
            "DTYPE_MISMATCH",
        ),
        (
            "nvfp4",
            lambda t: t.update({"model.layers.0.mlp.up_proj.weight_scale": torch.ones(192, 6)}),
            "DTYPE_MISMATCH",
        ),
        (
            "int4-awq",
            lambda t: t.update({"model.layers.0.mlp.up_proj.weight_scale": torch.ones(192, 6)}),
            "TENSOR_SHAPE",
        ),
    ],
    ids=[
        "no-input-scale",
        "no-weight-scale",
        "a-quantised-head",
        "a-scale-per-row",
        "plain-weights",
        "e5m2",
        "a-whole-number",
        "a-head-in-fp8",
        "float-blocks",
        "another-group-size",
    ],
)
@pytest.mark.parametrize("dtype", [None, "float32"])
def test_tensors_that_are_not_those_of_the_format_are_refused(
    checkpoint: Convert,
    tmp_path: Path,
    precision: str,
    edit: Callable[[dict[str, torch.Tensor]], object],
    code: str,
    dtype: str | None,
) -> None:
    source = save_quantized(tmp_path / "source", precision)
    edit_weights(source, edit)
    with pytest.raises(SourceError) as caught:
        checkpoint(source, dtype=dtype)
    assert caught.value.code == code


def compressed(weights: dict[str, Any], inputs: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": inputs}}
    return {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["lm_head"], **more}


FLOAT8 = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False}


@pytest.mark.parametrize(
    ("quantization", "words"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8 (fp8-block)"),
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, "fp8 (fp8)"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, "awq (int4-awq)"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": False}, "gptq with zero points"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True}, "gptq with reordered inputs"),
        ({"quant_method": "gptq", "bits": 8, "group_size": 128}, "gptq (int8-gptq)"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes (unknown numbers)"),
        ({"quant_method": "mxfp4"}, "mxfp4 (mxfp4)"),
        (compressed({**FLOAT8, "strategy": "block", "block_structure": [128, 128]}, None), "fp8-block"),
        (compressed({"num_bits": 4, "type": "int", "strategy": "group"}, None), "unknown numbers"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "modelopt (mixed)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_quantisations_are_refused_with_their_name(
    checkpoint: Convert, tmp_path: Path, quantization: dict[str, Any], words: str
) -> None:
    source = save_quantized(tmp_path / "source", "fp8")
    edit_config(source, quantization_config=quantization)
    with pytest.raises(SourceError) as caught:
        checkpoint(source)
    assert caught.value.code == "UNSUPPORTED_ARCHITECTURE"
    assert words in caught.value.message
    assert not list((tmp_path / "checkpoint").iterdir())


def test_activations_that_are_scaled_when_it_runs_are_refused(checkpoint: Convert, tmp_path: Path) -> None:
    """Per tensor: TensorRT-LLM wants that scale stored."""
    source = save_quantized(tmp_path / "source", "fp8", "compressed-tensors")
    inputs = {**FLOAT8, "strategy": "tensor", "dynamic": True}
    edit_config(source, quantization_config=compressed({**FLOAT8, "strategy": "tensor"}, inputs))
    edit_weights(source, lambda t: [t.pop(name) for name in list(t) if name.endswith("input_scale")])
    with pytest.raises(SourceError, match=r"input_scale|scaled when it runs"):
        checkpoint(source)


@pytest.mark.parametrize(
    ("family", "precision", "words"),
    [
        ("phi-4", "fp8", "fused projections are quantised"),
        ("mixtral", "nvfp4", "experts are quantised (nvfp4)"),
        ("qwen3-moe", "int4-awq", "experts are quantised (int4-awq)"),
    ],
)
def test_families_whose_quantised_form_is_not_known_are_refused(
    checkpoint: Convert, tmp_path: Path, family: str, precision: str, words: str
) -> None:
    source = save_quantized(tmp_path / "source", "fp8", family=family)
    edit_config(source, quantization_config=quantization_config(precision, "modelopt", ["lm_head"]))
    with pytest.raises(SourceError) as caught:
        checkpoint(source)
    assert caught.value.code == "UNSUPPORTED_ARCHITECTURE"
    assert words in caught.value.message


@pytest.mark.parametrize("method", ["fbgemm_fp8", "gptq"])
def test_a_kv_cache_whose_scales_are_nowhere_is_refused(checkpoint: Convert, tmp_path: Path, method: str) -> None:
    source = save_quantized(tmp_path / "source", "fp8-rowwise", "fbgemm_fp8")
    quantization: dict[str, Any] = {"quant_method": method, "kv_cache_scheme": {"num_bits": 8, "type": "float"}}
    edit_config(source, quantization_config=quantization | {"bits": 4, "group_size": 32})
    with pytest.raises(SourceError) as caught:
        checkpoint(source)
    assert caught.value.code == "UNSUPPORTED_ARCHITECTURE"
    assert "KV cache" in caught.value.message


def test_the_files_of_a_quantised_checkpoint_can_be_read_by_the_library(checkpoint: Convert, tmp_path: Path) -> None:
    source = save_quantized(tmp_path / "source", "nvfp4")
    out = checkpoint(source, tp=3)
    for rank in range(3):
        assert load_file(out.path / f"rank{rank}.safetensors")
