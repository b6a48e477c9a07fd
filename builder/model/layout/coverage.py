"""Which models the table of tensors is for.

How the layout is known. From NVIDIA's export_tensorrt_llm_checkpoint, bit for bit (ModelOpt 0.47; Mixtral 0.37), which
the tests repeat: Llama, Mistral, Mixtral, Qwen2, Qwen3, Gemma. From TensorRT-LLM's sources alone (tensorrt_llm/):
Gemma-2 and Gemma-3 (models/gemma/convert.py@65b31db1, model.py@5dedf53b), Qwen3-MoE (models/qwen/model.py@14e801da,
layers/moe.py@03961722), Phi-3 (models/phi3/convert.py@89fd9b74; for tp > 1 the halves of its MLP are split one by one,
as its swiglu needs them: that file's split_weights.py cuts the fused tensor through the middle).
"""

from __future__ import annotations

from builder.errors import SourceError
from builder.model.spec import Layer, ModelSpec

COVERED = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
}
"""model_type → architecture."""

FORMATS = ("fp8", "fp8-rowwise", "nvfp4", "int4-awq", "w4a8-awq", "int8-sq")
"""Published precisions whose tensors are known; with experts only the first."""

_METHODS = {
    "modelopt": FORMATS,
    "compressed-tensors": ("fp8", "fp8-rowwise"),
    "fbgemm_fp8": ("fp8-rowwise",),
    "gptq": ("int4-gptq",),
}
_KV_METHODS = ("modelopt", "compressed-tensors")
_ADOPTED = ("phi3",)
"""Published with code of their own, which is transformers' own by now."""

_ACTIVATIONS = ("silu", "gelu", "gelu_new", "gelu_pytorch_tanh")
_ROPES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


def require_covered(spec: ModelSpec) -> None:
    """SourceError for a model that has other tensors than those of the table."""
    if (reason := not_covered(spec)) is not None:
        raise SourceError(
            f"our own converter can't convert this model: {reason}",
            why=f"it converts {', '.join(COVERED.values())}, unquantised or as ModelOpt, compressed-tensors and FBGEMM "
            "quantise them",
            hint="use a toolchain that runs TensorRT-LLM's converters, or the pytorch flow",
            code="UNSUPPORTED_ARCHITECTURE",
        )


def not_covered(spec: ModelSpec) -> str | None:
    """Why our own converter can't convert a model, in words; None if it can."""
    if COVERED.get(spec.model_type) != spec.architecture:
        return f"the layout of {spec.architecture} (model_type {spec.model_type}) is not known"
    if spec.custom_code and spec.model_type not in _ADOPTED:
        return "it brings its own code (auto_map), which is never run"
    if spec.hidden_act not in (_ACTIVATIONS if spec.experts is None else _ACTIVATIONS[:1]):
        return f"its activation is {spec.hidden_act}"
    for layer in dict.fromkeys(spec.layers):
        if (reason := _layer(spec, layer)) is not None:
            return reason
    if spec.model_type == "gemma3_text" and full_attention_interval(spec) is None:
        return "its layers with full attention don't come at one interval"
    return _quantization(spec)


def full_attention_interval(spec: ModelSpec) -> int | None:
    """n, where of layers 1, 2, … every nth has full attention and all others have a window; None where it isn't so."""
    full = [number for number, layer in enumerate(spec.layers, 1) if layer.attention and not layer.attention.window]
    interval = full[0] if full else spec.num_hidden_layers + 1
    return interval if interval > 1 and full == list(range(interval, len(spec.layers) + 1, interval)) else None


def _layer(spec: ModelSpec, layer: Layer) -> str | None:
    attention = layer.attention
    if attention is None or attention.mla is not None or layer.recurrent is not None or attention.shares_cache:
        return "its layers are not all plain attention"
    if (layer.intermediate_size is None) == (layer.experts is None):
        return "its layers are not all attention and one MLP, or one mixture of experts"
    if layer.intermediate_size not in (None, spec.intermediate_size) or attention.heads != spec.num_attention_heads:
        return "its layers differ in width"
    if attention.head_dim != spec.head_dim or attention.kv_heads != spec.num_key_value_heads:
        return "its layers differ in their heads"
    if layer.experts is not None and (layer.experts.shared_count or layer.experts.latent_size):
        return "it has shared experts"
    if attention.rope is None or attention.rope.type not in _ROPES:
        return f"its rotary embedding is {attention.rope.type if attention.rope else 'missing'}"
    if attention.rope.partial_factor != 1 and spec.model_type != "phi3":
        return f"only {attention.rope.partial_factor:.4g} of each head is turned"
    return None


def _quantization(spec: ModelSpec) -> str | None:
    found = spec.quantization
    if found is None:
        return None
    if found.precision not in _METHODS.get(found.method, ()):
        return f"its weights are quantised by {found.method} ({found.precision or 'unknown numbers'})"
    if found.kv_cache not in (None, "fp8") or (found.kv_cache is not None and found.method not in _KV_METHODS):
        return f"the scales of its KV cache ({found.kv_cache}) are not known with {found.method}"
    if spec.model_type == "phi3":
        return "its fused projections are quantised"
    if found.method == "gptq" and (found.desc_act or found.has_zero_point or not found.group_size):
        what = "reordered inputs" if found.desc_act else "zero points" if found.has_zero_point else "no groups"
        return f"its weights are quantised by gptq with {what}"
    if spec.experts is not None and found.precision != "fp8":
        return f"its experts are quantised ({found.precision})"
    if found.precision in ("fp8", "int8-sq", "w4a8-awq", "nvfp4") and found.activations == "dynamic":
        return f"its {found.precision} activations are scaled when it runs, and TensorRT-LLM wants the scale stored"
    return None
