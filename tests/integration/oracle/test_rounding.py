"""Where ModelOpt's two exports of one quantised model hold other numbers, ours are those of the published one.

Its export for TensorRT-LLM quantises the weights themselves, with the scales that fused linears share there; the
unified one for Hugging Face does so with a scale for each linear. One can't be made of the other to the byte: here
every number of both is computed from the weights, or bounded.
"""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from builder.model.layout import Split
from tests.integration.oracle.comparison import Tensors, converted, same_bytes
from tests.integration.oracle.conftest import Exports
from tests.integration.oracle.conventions import BFLOAT16_STEP
from tests.integration.oracle.models import QUANTIZED, QUANTIZED_EXPERTS, Model

pytestmark = pytest.mark.timeout(1800)  # the second environment may have to be fetched first

LAYERS = range(2)
GROUP = 64

FUSED = {
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.dense": ("self_attn.o_proj",),
    "mlp.fc": ("mlp.gate_proj",),
    "mlp.gate": ("mlp.up_proj",),
    "mlp.proj": ("mlp.down_proj",),
}
NORMS = {
    "attention.qkv": ("input_layernorm", "input_layernorm"),
    "mlp.fc": ("post_layernorm", "post_attention_layernorm"),
    "mlp.gate": ("post_layernorm", "post_attention_layernorm"),
}
"""What is before a linear, in both worlds."""


def fp8(quotients: torch.Tensor) -> torch.Tensor:
    return quotients.to(torch.float8_e4m3fn)


def sources(model: Model, exports: Exports) -> tuple[Tensors, Tensors]:
    """The tensors of the model before it was quantised, and as it was published."""
    published = exports.published(model)
    return (
        load_file(exports.folder / model.name / "source/model.safetensors"),
        load_file(published / "model.safetensors"),
    )


def checkpoints(model: Model, exports: Exports, tmp_path: Path) -> tuple[Tensors, Tensors]:
    """Ours and theirs, of one rank."""
    [theirs] = exports.checkpoint(model).ranks
    [ours] = converted(exports.published(model), tmp_path / "ours", Split()).ranks
    return ours, theirs


def check_published_fp8(source: Tensors, published: Tensors, modules: list[str]) -> None:
    """A number without dimensions doesn't make the quotient a float32, so that it is rounded twice."""
    for module in modules:
        weight, scale = source[f"{module}.weight"], published[f"{module}.weight_scale"]
        assert (weight.dtype, scale.dtype, scale.shape) == (torch.bfloat16, torch.float32, ())
        assert (weight / scale).dtype == torch.bfloat16
        assert same_bytes(published[f"{module}.weight"], fp8(weight / scale))


def brought_to_one_scale(published: Tensors, modules: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """The published weights of linears that are fused, at the largest of their scales, and that scale."""
    scales = [published[f"{module}.weight_scale"].double() for module in modules]
    largest = max(scales)
    weights = [published[f"{module}.weight"].double() for module in modules]
    fused = torch.cat([fp8(weight * (scale / largest)) for weight, scale in zip(weights, scales, strict=True)])
    return fused, largest.float()


@pytest.mark.parametrize("model", [m for m in QUANTIZED if m.name in ("llama fp8", "llama fp8-kv")], ids=str)
def test_fp8_weights_are_the_published_ones_and_theirs_are_quantised_with_shared_scales(
    model: Model, exports: Exports, tmp_path: Path
) -> None:
    """q, k and v share a scale in both. Of gate and up, theirs share one; TensorRT-LLM doesn't need that, since where
    it fuses them it brings them to one itself (fuse_gate_mlp in tensorrt_llm/models/modeling_utils.py)."""
    source, published = sources(model, exports)
    ours, theirs = checkpoints(model, exports, tmp_path)
    for layer in LAYERS:
        mlp = [f"model.layers.{layer}.mlp.{name}.weight_scale" for name in ("gate_proj", "up_proj")]
        for name, parts in FUSED.items():
            target = f"transformer.layers.{layer}.{name}"
            modules = [f"model.layers.{layer}.{part}" for part in parts]
            check_published_fp8(source, published, modules)
            fused, scale = brought_to_one_scale(published, modules)
            assert same_bytes(ours[f"{target}.weight"], fused)
            assert same_bytes(ours[f"{target}.weights_scaling_factor"], scale[None])

            shared = theirs[f"{target}.weights_scaling_factor"]
            assert shared == (max(published[other] for other in mlp) if name in ("mlp.fc", "mlp.gate") else scale)
            weight = torch.cat([source[f"{module}.weight"] for module in modules])
            assert same_bytes(theirs[f"{target}.weight"], fp8(weight / shared))
            activations = f"{target}.activation_scaling_factor"
            assert same_bytes(ours[activations], theirs[activations])


@pytest.mark.parametrize("model", [model for model in QUANTIZED_EXPERTS if not model.alike], ids=str)
def test_fp8_experts_are_the_published_ones_and_theirs_are_quantised_with_shared_scales(
    model: Model, exports: Exports, tmp_path: Path
) -> None:
    source, published = sources(model, exports)
    ours, theirs = checkpoints(model, exports, tmp_path)
    for layer in LAYERS:
        for name, parts in {"fc": ("w3", "w1"), "proj": ("w2",)}.items():
            target = f"transformer.layers.{layer}.mlp.{name}"
            own, other = ours[f"{target}.weight"], theirs[f"{target}.weight"]
            assert own.shape == other.shape
            for expert in range(own.shape[0]):
                modules = [f"model.layers.{layer}.block_sparse_moe.experts.{expert}.{part}" for part in parts]
                check_published_fp8(source, published, modules)
                fused, scale = brought_to_one_scale(published, modules)
                assert same_bytes(own[expert], fused)
                assert same_bytes(ours[f"{target}.weights_scaling_factor"][expert], scale[None])

                assert same_bytes(theirs[f"{target}.weights_scaling_factor"][expert], scale[None])
                weight = torch.cat([source[f"{module}.weight"] for module in modules])
                assert same_bytes(other[expert], fp8(weight / scale[None]))
            activations = f"{target}.activation_scaling_factor"
            assert same_bytes(ours[activations], theirs[activations])


@pytest.mark.parametrize("model", [m for m in QUANTIZED if not m.alike and m.name.endswith("awq")], ids=str)
def test_awq_weights_of_both_are_within_half_a_step_of_those_that_were_quantised(
    model: Model, exports: Exports, tmp_path: Path
) -> None:
    """The product of what acts on a linear's input, its norm, its pre-quantisation scale and its weight, is what is to
    be kept: ModelOpt finds a scale each for gate and up, and gives them one between both where it publishes them.

    In bfloat16 are, besides the norm, the scale, the weight divided by it, and once more divided by a scale that is
    shared: each is off by half a step at most.
    """
    source, _ = sources(model, exports)
    for tensors in checkpoints(model, exports, tmp_path):
        for layer in LAYERS:
            for name, parts in FUSED.items():
                target = f"transformer.layers.{layer}."
                exact = torch.cat([source[f"model.layers.{layer}.{part}.weight"].float() for part in parts])
                scale = tensors[f"{target}{name}.prequant_scaling_factor"].float()
                if name in NORMS:
                    theirs, huggingface = NORMS[name]
                    norm = source[f"model.layers.{layer}.{huggingface}.weight"].float()
                    exact *= norm + 1 if model.family == "Gemma" else norm
                    scale *= tensors[f"{target}{theirs}.weight"].float()
                packed = tensors[f"{target}{name}.weight"]
                low, high = packed << 4 >> 4, packed >> 4  # of signed bytes: two rows, the first one in the lower half
                values = torch.stack([low, high], dim=1).reshape(exact.shape).float()
                steps = scale * tensors[f"{target}{name}.weights_scaling_factor"].repeat_interleave(GROUP, dim=1)
                error = (values * steps - exact).abs()
                assert (error <= steps / 2 + 4 * BFLOAT16_STEP / 2 * exact.abs()).all()
