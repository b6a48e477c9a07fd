"""Where ModelOpt and we mean the same in other words: everything else in a checkpoint must be equal.

Three are in how the tests ask. ModelOpt always splits the embedding and always writes one thing per rank: so ours is
asked for `Split(use_parallel_embedding=True)`. It splits stages only where they are even: others are made of its one
stage (`comparison.staged`). It splits experts by their width alone: whole ones are taken from its ranks of that width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch

from tests.integration.oracle.comparison import Tensors, same_bytes
from tests.integration.oracle.models import ODD_VOCABULARY, Model

BFLOAT16_STEP = 2.0**-7
"""From one number to the next, relative to the smaller; rounding is wrong by half of it at most."""

Ranks = list[Tensors]


@dataclass(frozen=True)
class TensorConvention:
    """Tensors that differ, in the models where `applies`. `settle(ours, theirs, tp)` asserts how, and takes them out of
    both, or writes theirs as ours."""

    why: str
    applies: Callable[[Model], bool]
    settle: Callable[[Ranks, Ranks, int], None]


def _head_of_gemma(ours: Ranks, theirs: Ranks, tp: int) -> None:
    for rank, tensors in enumerate(ours[-tp:]):
        assert same_bytes(tensors.pop("lm_head.weight"), theirs[rank]["transformer.vocab_embedding.weight"])


def _halves_of_phi3(ours: Ranks, theirs: Ranks, tp: int) -> None:
    for name in [name for name in theirs[0] if name.endswith("mlp.fc.weight")]:
        up, gate = torch.cat([tensors.pop(name) for tensors in theirs]).chunk(2)
        for rank, tensors in enumerate(ours):
            assert same_bytes(tensors.pop(name), torch.cat([up.chunk(tp)[rank], gate.chunk(tp)[rank]]))


def _scales_of_the_cache(ours: Ranks, theirs: Ranks, tp: int) -> None:
    for own, other in zip(ours, theirs, strict=True):
        for name in [name for name in own if name.endswith(".kv_cache_scaling_factor")]:
            key, value = (other.pop(name.replace("kv_cache", f"{kind}_cache")) for kind in "kv")
            assert same_bytes(other[name], torch.maximum(key, value))
            assert own[name].item() < 1, "the clamp makes no difference here"
            assert same_bytes(other.pop(name), own.pop(name).clamp(min=1))


def _numbers_of_nvfp4(ours: Ranks, theirs: Ranks, tp: int) -> None:
    for tensors in theirs:
        for name in tensors:
            if name.endswith(("activation_scaling_factor", "weights_scaling_factor_2")):
                assert tensors[name].shape == ()
                tensors[name] = tensors[name].reshape(1)


def _padded_vocabulary(ours: Ranks, theirs: Ranks, tp: int) -> None:
    """64 tokens more at most, which are zeros in both."""
    for name, stage in (("transformer.vocab_embedding.weight", slice(tp)), ("lm_head.weight", slice(-tp, None))):
        own = torch.cat([tensors.pop(name) for tensors in ours[stage]])
        other = torch.cat([tensors.pop(name) for tensors in theirs[stage]])
        assert other.shape[0] == 128
        assert same_bytes(own[:ODD_VOCABULARY], other[:ODD_VOCABULARY])
        assert not own[ODD_VOCABULARY:].any()
        assert not other[ODD_VOCABULARY:].any()


def _scales_in_norms(ours: Ranks, theirs: Ranks, tp: int) -> None:
    """Three roundings are between the products: of the norm and of the scale there, of the product here."""
    for own, other in zip(ours, theirs, strict=True):
        for norm in [name for name in own if name.endswith(("input_layernorm.weight", "post_layernorm.weight"))]:
            layer, kind = norm.split(".")[2], norm.split(".")[3]
            product = own.pop(norm).float()
            weight = other.pop(norm).float()
            for linear in ("attention.qkv",) if kind == "input_layernorm" else ("mlp.fc", "mlp.gate"):
                name = f"transformer.layers.{layer}.{linear}.prequant_scaling_factor"
                assert same_bytes(own[name], torch.ones_like(own.pop(name)))
                scale = other.pop(name).float()
                assert scale.unique().numel() > 1
                torch.testing.assert_close(product, weight * scale, rtol=3 * BFLOAT16_STEP / 2, atol=0)


TENSORS = (
    TensorConvention(
        "TensorRT-LLM makes the head of Gemma from the embedding where there is none, so ModelOpt leaves it out; we "
        "store it for every tied model",
        lambda model: (model.family or "").startswith("Gemma"),
        _head_of_gemma,
    ),
    TensorConvention(
        "ModelOpt cuts the fused MLP of Phi-3 through the middle, which gives one rank up_proj and another gate_proj; "
        "swiglu needs the halves that belong together on one rank",
        lambda model: model.family == "Phi3",
        _halves_of_phi3,
    ),
    TensorConvention(
        "TensorRT-LLM reads one scale of the KV cache, the larger of two; ModelOpt writes all three, and none below 1, "
        "while the scales that it publishes are what it measured, and we keep those",
        lambda model: model.quantization == "fp8-kv",
        _scales_of_the_cache,
    ),
    TensorConvention(
        "numbers of NVFP4 have no dimension in ModelOpt; ours have the one of TensorRT-LLM's parameters, which accept "
        "both (Parameter.value in tensorrt_llm/parameter.py)",
        lambda model: model.quantization == "nvfp4",
        _numbers_of_nvfp4,
    ),
    TensorConvention(
        "ModelOpt pads the vocabulary of models in AWQ to multiples of 64 for the kernels of a quantised head, which "
        "none of these has; both pad it so that all ranks have as much of it",
        lambda model: (model.quantization or "").endswith("awq") and "vocab_size" in model.values,
        _padded_vocabulary,
    ),
    TensorConvention(
        "ModelOpt's unified export multiplies the norm before fused projections by their pre-quantisation scale; the "
        "one for TensorRT-LLM stores both",
        lambda model: (model.quantization or "").endswith("awq"),
        _scales_in_norms,
    ),
)


Config = dict[str, Any]


@dataclass(frozen=True)
class KeyConvention:
    """A key of config.json that isn't equal, or that one side doesn't write; `agree(ours, theirs)` where they mean the
    same."""

    key: str
    why: str
    agree: Callable[[Config, Config], bool]


def _exclusions(ours: Config, theirs: Config) -> bool:
    """Each name that they exclude is one that we do. The last layers of a stage are named alike on all stages."""
    own, other = dict(ours["quantization"]), dict(theirs["quantization"])
    patterns, names = own.pop("exclude_modules", []), other.pop("exclude_modules", [])
    if own != other:
        return False
    known = all(any(fnmatchcase(name, pattern) for pattern in patterns) for name in names)
    unused = {pattern for pattern in patterns if not any(fnmatchcase(name, pattern) for name in names)}
    return known and unused <= ({"lm_head"} if ours["mapping"]["pp_size"] > 1 else set())


def _vocabulary(ours: Config, theirs: Config) -> bool:
    size, algorithm = ours["vocab_size"], ours["quantization"]["quant_algo"] or ""
    return bool(theirs["vocab_size"] == (-(-size // 64) * 64 if "AWQ" in algorithm else size))


def _scaling(ours: Config, theirs: Config) -> bool:
    scaling = dict(theirs.get("rotary_scaling") or {})
    if scaling:
        scaling["type"] = scaling.pop("rope_type")
    return (ours["rotary_scaling"] or {}) == scaling


def _only(key: str, why: str, value: Any) -> KeyConvention:
    """Only theirs has it, and it is always the same."""
    return KeyConvention(key, why, lambda ours, theirs: key not in ours and theirs[key] == value)


def _unsaid(key: str, why: str) -> KeyConvention:
    """Only ours has it."""
    return KeyConvention(key, why, lambda ours, theirs: key not in theirs)


_DEFAULT = "ModelOpt leaves it to the defaults of TensorRT-LLM's classes, or to an installed TensorRT-LLM"

KEYS = (
    KeyConvention(
        "logits_dtype",
        "TensorRT-LLM's own default is float32; ModelOpt asks for float16",
        lambda ours, theirs: (ours["logits_dtype"], theirs["logits_dtype"]) == ("float32", "float16"),
    ),
    KeyConvention(
        "use_parallel_embedding",
        "one rank has nothing to split, and TensorRT-LLM ignores what Gemma says",
        lambda ours, theirs: (
            theirs["use_parallel_embedding"] and (ours["use_parallel_embedding"] or ours["mapping"]["tp_size"] == 1)
        ),
    ),
    KeyConvention(
        "rotary_base",
        "transformers 5 keeps it where ModelOpt doesn't look",
        lambda ours, theirs: theirs.get("rotary_base", ours["rotary_base"]) == ours["rotary_base"],
    ),
    KeyConvention(
        "rotary_scaling",
        "the same, and ModelOpt hands on transformers' name of the type; we use the one of TensorRT-LLM",
        lambda ours, theirs: ("rotary_base" not in theirs and "rotary_scaling" not in theirs) or _scaling(ours, theirs),
    ),
    KeyConvention(
        "vocab_size",
        "ModelOpt pads that of models in AWQ",
        _vocabulary,
    ),
    KeyConvention("quantization", "we name routers by a pattern, and lm_head on every stage", _exclusions),
    KeyConvention("producer", "a note", lambda ours, theirs: theirs["producer"]["name"] == "modelopt"),
    KeyConvention(
        "rank",
        "one config stands for all ranks; theirs is the last one's",
        lambda ours, theirs: theirs["rank"] == ours["mapping"]["world_size"] - 1,
    ),
    KeyConvention(
        "decoder",
        "ModelOpt's kind of a model",
        lambda ours, theirs: theirs["decoder"] in ("llama", "qwen", "gemma"),
    ),
    KeyConvention(
        "bias",
        "ModelOpt's word for the bias of attention.dense, which Qwen has none of",
        lambda ours, theirs: theirs["bias"] == (ours["attn_bias"] and "qwen_type" not in ours),
    ),
    KeyConvention(
        "share_embedding_table",
        "whether the head was left out, as ModelOpt does for Gemma in one stage",
        lambda ours, theirs: (
            theirs["share_embedding_table"]
            == (ours["architecture"] == "GemmaForCausalLM" and ours["mapping"]["pp_size"] == 1)
        ),
    ),
    _only("rotary_pct", "ours says it where it isn't 1", 1.0),
    _only("residual_mlp", "of other families", value=False),
    _only("rmsnorm", "of other families", value=True),
    _only("lm_head_bias", "of other families", value=False),
    _unsaid("attn_bias", _DEFAULT),
    _unsaid("mlp_bias", _DEFAULT),
    _unsaid("qk_layernorm", _DEFAULT),
    _unsaid("tie_word_embeddings", _DEFAULT),
    _unsaid("inter_layernorms", _DEFAULT),
    _unsaid("qwen_type", _DEFAULT),
    _unsaid("runtime_defaults", _DEFAULT),
)
