"""The parts of the process that quantises which need no ModelOpt: configs, batches, ranks, checks, failures."""

from __future__ import annotations

import errno
import fnmatch
import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from builder.catalog import kv_precisions, precisions
from builder.checkpoint.modelopt import configs
from builder.checkpoint.modelopt.calibration import batches, run_batches
from builder.checkpoint.modelopt.checks import check_tensors
from builder.checkpoint.modelopt.configs import passes, quantization_config
from builder.checkpoint.modelopt.exporting import agree
from builder.checkpoint.modelopt.failure import Failure, failure_of
from builder.checkpoint.modelopt.ranks import add_missing_prequant, excluded, share, staged
from tests.tiny_model import tiny_tokenizer

HEAD = "*lm_head*"

AS_LISTS = SimpleNamespace(
    FP8_DEFAULT_CFG={
        "quant_cfg": [
            {"quantizer_name": "*", "enable": False},
            {"quantizer_name": "*weight_quantizer", "cfg": {"num_bits": (4, 3), "axis": None}},
            {"quantizer_name": HEAD, "enable": False},
        ],
        "algorithm": "max",
    },
    INT4_AWQ_CFG={
        "quant_cfg": [
            {"quantizer_name": "*weight_quantizer", "cfg": {"num_bits": 4, "block_sizes": {-1: 128, "type": "static"}}},
            {"quantizer_name": "*input_quantizer", "enable": False},
        ],
        "algorithm": {"method": "awq_lite", "alpha_step": 0.1},
    },
    W4A8_AWQ_BETA_CFG={
        "quant_cfg": [
            {
                "quantizer_name": "*weight_quantizer",
                "cfg": [{"num_bits": 4, "block_sizes": {-1: 128, "type": "static"}}, {"num_bits": (4, 3)}],
            },
        ],
        "algorithm": "awq_lite",
    },
    INT8_SMOOTHQUANT_CFG={"quant_cfg": [], "algorithm": "smoothquant"},
    FP8_KV_CFG={"quant_cfg": [{"quantizer_name": "*[kv]_bmm_quantizer", "cfg": {"num_bits": (4, 3)}}]},
)
"""As in ModelOpt 0.47."""

AS_MAPPINGS = SimpleNamespace(
    FP8_DEFAULT_CFG={
        "quant_cfg": {
            "*weight_quantizer": {"num_bits": (4, 3), "axis": None},
            HEAD: {"enable": False},
            "default": {"enable": False},
        },
        "algorithm": "max",
    },
    INT4_AWQ_CFG={
        "quant_cfg": {
            "*weight_quantizer": {"num_bits": 4, "block_sizes": {-1: 128, "type": "static"}, "enable": True},
            "*input_quantizer": {"enable": False},
        },
        "algorithm": {"method": "awq_lite", "alpha_step": 0.1},
    },
    W4A8_AWQ_BETA_CFG={
        "quant_cfg": {
            "*weight_quantizer": [
                {"num_bits": 4, "block_sizes": {-1: 128, "type": "static"}, "enable": True},
                {"num_bits": (4, 3), "axis": None, "enable": True},
            ],
        },
        "algorithm": "awq_lite",
    },
    INT8_SMOOTHQUANT_CFG={"quant_cfg": {}, "algorithm": "smoothquant"},
    FP8_KV_CFG={"quant_cfg": {"*[kv]_bmm_quantizer": {"num_bits": (4, 3), "axis": None, "enable": True}}},
)
"""As in ModelOpt 0.37."""

both = pytest.mark.parametrize("mtq", [AS_LISTS, AS_MAPPINGS], ids=["0.47", "0.37"])


def config(mtq: Any, precision: str, **job: Any) -> dict[str, Any]:
    settings = {"kv_cache": None, "group_size": None, "smoothquant_alpha": None, "quantize_lm_head": False}
    return quantization_config(mtq, {**settings, "model_type": "llama", "precision": precision, **job})


def of(quantizer: str, made: Mapping[str, Any]) -> Any:
    """What a config says of a quantizer: the last pattern that fits counts. None: it isn't there."""
    found = None
    quantizers = made["quant_cfg"]
    if isinstance(quantizers, list):
        for entry in quantizers:
            if fnmatch.fnmatch(quantizer, entry["quantizer_name"]):
                found = entry.get("cfg") if entry.get("enable", True) else None
    else:
        for pattern, value in quantizers.items():
            if fnmatch.fnmatch(quantizer, pattern):
                found = None if isinstance(value, dict) and not value.get("enable", True) else value
    return found


# configs


def test_the_catalog_and_the_configs_know_the_same_precisions() -> None:
    assert {name: precisions()[name].quant_algo for name in configs.ALGORITHMS} == configs.ALGORITHMS
    assert all(precisions()[name].modelopt == configs.FORMATS[name] for name in configs.CONFIGS)
    caches = {name: algorithm for name, algorithm in configs.KV_ALGORITHMS.items() if name is not None}
    assert caches == {name: known.quant_algo for name, known in kv_precisions().items() if known.quant_algo}


@both
def test_the_kv_cache_is_quantised_where_the_recipe_says_so(mtq: Any) -> None:
    key = "model.layers.0.self_attn.k_bmm_quantizer"
    assert of(key, config(mtq, "fp8")) is None
    assert of(key, config(mtq, "fp8", kv_cache="fp8"))["num_bits"] == (4, 3)
    assert of(key, config(mtq, "fp8", kv_cache="int8"))["num_bits"] == 8


@both
def test_the_kv_cache_can_be_quantised_alone(mtq: Any) -> None:
    made = config(mtq, "bf16", kv_cache="fp8")
    assert of("model.layers.0.mlp.up_proj.weight_quantizer", made) is None
    assert of("model.layers.0.self_attn.v_bmm_quantizer", made)["num_bits"] == (4, 3)


@both
def test_the_head_is_quantised_only_when_asked_for(mtq: Any) -> None:
    head = "lm_head.weight_quantizer"
    assert of(head, config(mtq, "fp8")) is None
    assert of(head, config(mtq, "fp8", quantize_lm_head=True))["num_bits"] == (4, 3)


@both
@pytest.mark.parametrize("precision", ["int4-awq", "w4a8-awq"])
def test_the_group_size_is_that_of_blocks_along_the_inputs(mtq: Any, precision: str) -> None:
    steps = of("x.weight_quantizer", config(mtq, precision, group_size=64))
    first = steps[0] if isinstance(steps, list) else steps
    assert first["block_sizes"] == {-1: 64, "type": "static"}
    again = of("x.weight_quantizer", config(mtq, precision))  # the library's own config is untouched
    assert (again[0] if isinstance(again, list) else again)["block_sizes"][-1] == 128


@both
def test_smoothquant_takes_the_recipes_alpha_and_half_for_gemma(mtq: Any) -> None:
    assert config(mtq, "int8-sq")["algorithm"] == "smoothquant"
    assert config(mtq, "int8-sq", smoothquant_alpha=0.0)["algorithm"] == {"method": "smoothquant", "alpha": 0.0}
    assert config(mtq, "int8-sq", model_type="gemma")["algorithm"] == {"method": "smoothquant", "alpha": 0.5}


@both
def test_gemma_searches_w4a8_coarsely(mtq: Any) -> None:
    assert config(mtq, "w4a8-awq", model_type="gemma")["algorithm"] == {"method": "awq_lite", "alpha_step": 1}
    assert config(mtq, "w4a8-awq")["algorithm"] == "awq_lite"


@pytest.mark.parametrize(
    ("algorithm", "count"), [("max", 1), ("awq_lite", 2), ({"method": "awq_lite"}, 2), (None, 1), ({}, 1)]
)
def test_awq_runs_the_texts_twice(algorithm: Any, count: int) -> None:
    assert passes(algorithm) == count


# batches


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    made = Tokenizer.from_str(json.dumps(tiny_tokenizer()))
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="</s>", padding_side="left")


def test_texts_are_cut_and_padded_on_the_left(tokenizer: PreTrainedTokenizerFast) -> None:
    [(ids, mask)] = batches(tokenizer, ["abcdefgh", "ab"], 2, 5, 260)
    letters = tokenizer("abcde")["input_ids"]
    assert ids.tolist() == [letters, [257, 257, 257, *letters[:2]]]
    assert mask.tolist() == [[1, 1, 1, 1, 1], [0, 0, 0, 1, 1]]


def test_batches_keep_the_order_and_leave_out_what_has_no_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    made = batches(tokenizer, ["a", "", "b", "c"], 2, 5, 260)
    assert [tokenizer.batch_decode(ids) for ids, _ in made] == [["a", "b"], ["c"]]


def test_texts_without_any_token_are_no_texts(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(Failure, match="no tokens") as error:
        batches(tokenizer, ["", ""], 2, 5, 260)
    assert error.value.kind == "TEXT"


def test_a_token_that_the_model_doesnt_have_is_found_before_the_model_is(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(Failure, match="it makes token 258, and the model has 258") as error:
        batches(tokenizer, ["<|im_start|>"], 2, 5, 258)
    assert error.value.kind == "TOKENIZER"


def test_the_model_is_run_without_gradients_and_told_of(tokenizer: PreTrainedTokenizerFast) -> None:
    ran, told = [], []

    class Model(torch.nn.Module):
        def get_input_embeddings(self) -> Any:
            return SimpleNamespace(weight=torch.zeros(1))

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, use_cache: bool) -> None:
            ran.append((input_ids.shape, attention_mask.shape, use_cache, torch.is_grad_enabled()))

    run_batches(Model(), batches(tokenizer, ["abc", "de", "f"], 2, 5, 260), told.append)
    assert ran == [((2, 3), (2, 3), False, False), ((1, 1), (1, 1), False, False)]
    assert told == [2, 1]


# ranks


@pytest.mark.parametrize("tp", [1, 2, 3, 4])
def test_ranks_share_the_vocabulary_evenly_with_zeros_at_the_end(tp: int) -> None:
    weight = torch.arange(1, 15, dtype=torch.float32).reshape(7, 2)
    shares = [share(weight, tp, rank, torch.bfloat16) for rank in range(tp)]
    assert {part.shape for part in shares} == {(-(-7 // tp), 2)}
    whole = torch.cat(shares)
    assert torch.equal(whole[:7].float(), weight)
    assert not whole[7:].any()


def test_stages_number_their_layers_anew() -> None:
    tensors = {
        "transformer.vocab_embedding.weight": torch.tensor(0),
        **{f"transformer.layers.{number}.input_layernorm.weight": torch.tensor(number) for number in range(12)},
        "transformer.ln_f.weight": torch.tensor(12),
        "lm_head.weight": torch.tensor(13),
    }
    first, second, third = (
        {name: int(tensor) for name, tensor in own.items()} for own in staged(tensors, [[0, 4], [4, 8], [8, 12]])
    )
    layers = [f"transformer.layers.{number}.input_layernorm.weight" for number in range(4)]
    assert first == {"transformer.vocab_embedding.weight": 0, **dict(zip(layers, (0, 1, 2, 3), strict=True))}
    assert second == dict(zip(layers, (4, 5, 6, 7), strict=True))
    assert third == {
        **dict(zip(layers, (8, 9, 10, 11), strict=True)),
        "transformer.ln_f.weight": 12,
        "lm_head.weight": 13,
    }


def linear(name: str, scale: str | None = "weights_scaling_factor") -> dict[str, torch.Tensor]:
    weight = {f"{name}.weight": torch.zeros(2, 2)}
    return weight | ({f"{name}.{scale}": torch.ones(1)} if scale else {})


def test_linears_without_a_scale_are_left_out_by_name() -> None:
    stage = {
        **linear("transformer.layers.0.mlp.fc"),
        **linear("transformer.layers.0.mlp.proj", "per_channel_scale"),
        **linear("transformer.layers.0.mlp.router", None),
        **linear("transformer.layers.0.input_layernorm", None),
        **linear("lm_head", None),
    }
    assert excluded([stage]) == ["lm_head", "transformer.layers.0.mlp.router"]


def test_stages_that_leave_out_the_same_layers_have_one_config() -> None:
    stage = {**linear("transformer.layers.0.mlp.fc", None), **linear("transformer.layers.1.mlp.fc")}
    last = {**linear("transformer.layers.0.mlp.fc", None), **linear("lm_head", None)}
    assert excluded([stage, last]) == ["lm_head", "transformer.layers.0.mlp.fc"]


def test_stages_that_leave_out_different_layers_have_none() -> None:
    with pytest.raises(Failure) as error:
        excluded([linear("transformer.layers.0.mlp.fc", None), linear("transformer.layers.0.mlp.fc")])
    assert error.value.kind == "STAGES"


def test_int4_without_a_scale_of_its_inputs_gets_one_of_ones() -> None:
    tensors = {
        "transformer.layers.0.mlp.fc.weight": torch.zeros(3, 8, dtype=torch.int8),
        "transformer.layers.0.mlp.fc.weights_scaling_factor": torch.ones(6, 1),
        "lm_head.weight": torch.zeros(2, 8),
    }
    add_missing_prequant(tensors, torch.float16)
    [name] = tensors.keys() - {"lm_head.weight", *linear("transformer.layers.0.mlp.fc")}
    assert name == "transformer.layers.0.mlp.fc.prequant_scaling_factor"
    assert torch.equal(tensors[name], torch.ones(8, dtype=torch.float16))


@pytest.mark.parametrize(
    ("found", "layers", "agrees"),
    [
        ({"quant_algo": "W4A16_AWQ", "kv_cache_quant_algo": "FP8", "group_size": 64}, {}, True),
        ({"quant_algo": "W4A16_AWQ", "kv_cache_quant_algo": None, "group_size": 64}, {}, False),
        ({"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16}, {}, False),
        ({"quant_algo": "W4A16_AWQ", "kv_cache_quant_algo": "FP8", "group_size": 128}, {}, False),
        ({"quant_algo": "W4A16_AWQ", "kv_cache_quant_algo": "FP8"}, {"quantized_layers": {"x": {}}}, False),
        ({"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": "FP8"}, {}, False),
    ],
)
def test_what_came_out_must_be_what_was_asked_for(found: dict[str, Any], layers: dict[str, Any], agrees: bool) -> None:
    job = {"precision": "int4-awq", "kv_cache": "fp8", "group_size": 64}
    if agrees:
        agree(found, layers, job)
        return
    with pytest.raises(Failure) as error:
        agree(found, layers, job)
    assert error.value.kind == "DIFFERENT"


# checks and failures


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("x.weight", torch.tensor([1.0, float("nan")])),
        ("x.weight", torch.tensor([float("inf")], dtype=torch.bfloat16)),
        ("x.weight", torch.tensor([127], dtype=torch.uint8).view(torch.float8_e4m3fn)),
        ("x.weights_scaling_factor", torch.tensor([0.0])),
        ("x.weights_scaling_factor", torch.tensor([1.0, -1.0])),
        ("x.activation_scaling_factor", torch.tensor([0.0])),
        ("x.prequant_scaling_factor", torch.tensor([1.0, 0.0])),
        ("x.k_scale", torch.tensor(0.0)),
        ("x.weights_scaling_factor", torch.tensor([255], dtype=torch.uint8).view(torch.float8_e4m3fn)),
    ],
)
def test_numbers_that_are_none_are_found(name: str, tensor: torch.Tensor) -> None:
    with pytest.raises(Failure, match=name) as error:
        check_tensors([("y.weight", torch.ones(2)), (name, tensor)])
    assert error.value.kind == "NOT_FINITE"


def test_blocks_of_zeros_may_have_a_scale_of_0() -> None:
    check_tensors(
        [
            ("x.weights_scaling_factor", torch.tensor([1.0, 0.0])),
            ("x.weights_scaling_factor", torch.tensor([1.0, 0.0]).to(torch.float8_e4m3fn)),
            ("x.weight", torch.tensor([-8, 7], dtype=torch.int8)),
        ]
    )


@pytest.mark.parametrize(
    ("error", "doing", "kind"),
    [
        (MemoryError(), "load", "MEMORY"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to …"), "load", "MEMORY"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), "calibrate", "MEMORY"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "export", "MEMORY"),
        (OSError(errno.ENOSPC, "No space left on device"), "export", "DISK"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "export", "DISK"),
        (Exception("I/O error: No space left on device (os error 28)"), "export", "DISK"),
        (AssertionError("detected inf values in amax. inf in original tensor: True"), "calibrate", "NOT_FINITE"),
        (AssertionError("scaling factor tensor([0.]) not positive."), "export", "NOT_FINITE"),
        (AssertionError(), "export", "EXPORT"),
        (NotImplementedError("It's not supported by TensorRT-LLM yet."), "export", "EXPORT"),
        (KeyError("model_type"), "load", "MODEL"),
        (ValueError("shapes"), "calibrate", "CALIBRATE"),
        (Failure("TEXT", "none"), "calibrate", "TEXT"),
    ],
)
def test_errors_have_a_kind_by_what_they_say_and_when(error: BaseException, doing: str, kind: str) -> None:
    found = failure_of(error, doing)
    assert found.kind == kind
    assert str(found)
