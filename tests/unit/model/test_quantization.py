from typing import Any

import pytest

from builder.errors import SourceError
from builder.model.spec import ModelSpec, SourceQuantization
from builder.model.weights import weights
from tests.unit.model.published import published_config, published_spec

LLAMA = published_config("meta-llama--Llama-3.1-8B")
MODELOPT_FP8 = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}


def quantization(config: dict[str, Any] | None, hf: dict[str, Any] | None = None) -> SourceQuantization | None:
    described = ModelSpec.from_config({**LLAMA, "quantization_config": config}, "config.json", hf_quant_config=hf)
    return described.quantization


def refusal(config: dict[str, Any] | None, hf: dict[str, Any] | None = None) -> SourceError:
    with pytest.raises(SourceError) as caught:
        quantization(config, hf)
    assert "config.json" in str(caught.value.where)
    return caught.value


def test_a_model_that_is_not_quantised_says_nothing() -> None:
    assert quantization(None) is None
    assert quantization(None, {"quantization": {"quant_algo": None, "kv_cache_quant_algo": None}}) is None


@pytest.mark.parametrize(
    ("config", "precision", "details"),
    [
        ({"quant_method": "fp8", "fmt": "e4m3"}, "fp8", {"bits": 8, "block": None}),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8-block", {"block": (128, 128)}),
        ({"quant_method": "fp8", "weight_block_size": [64, 64]}, None, {"block": (64, 64)}),
        ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, "fp8-rowwise", {}),
        (
            {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True},
            "int4-awq",
            {"bits": 4, "group_size": 128, "has_zero_point": True},
        ),
        (
            {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True, "sym": True},
            "int4-gptq",
            {"group_size": 32, "desc_act": True, "has_zero_point": False},
        ),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1, "sym": False}, "int8-gptq", {"group_size": None}),
        ({"quant_method": "gptq", "bits": 3, "group_size": 128}, None, {"bits": 3}),
        ({"quant_method": "mxfp4"}, "mxfp4", {"bits": 4, "group_size": 32}),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, None, {}),
        ({"quant_method": "aqlm"}, None, {}),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4", {"group_size": 16, "bits": 4}),
        ({"quant_algo": "MIXED_PRECISION", "quantized_layers": {}}, "mixed", {}),
    ],
)
def test_a_method_is_described_and_not_judged(
    config: dict[str, Any], precision: str | None, details: dict[str, Any]
) -> None:
    found = quantization(config)
    assert found is not None
    assert found.method == config.get("quant_method", "modelopt")
    assert found.precision == precision
    assert {name: getattr(found, name) for name in details} == details


@pytest.mark.parametrize(
    ("scheme", "precision"),
    [
        ({"num_bits": 8, "type": "float", "strategy": "tensor"}, "fp8"),
        ({"num_bits": 8, "type": "float", "strategy": "channel"}, "fp8-rowwise"),
        ({"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}, "fp8-block"),
        ({"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [64, 64]}, None),
        ({"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}, "nvfp4"),
        ({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}, None),
    ],
)
def test_compressed_tensors_are_known_by_their_only_scheme(scheme: dict[str, Any], precision: str | None) -> None:
    config: dict[str, Any] = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": scheme}}}
    found = quantization(config)
    assert found is not None
    assert (found.method, found.precision) == ("compressed-tensors", precision)
    assert found.group_size == scheme.get("group_size")
    two = {**config["config_groups"], "group_1": {"weights": scheme}}
    found = quantization({**config, "config_groups": two})
    assert found is not None
    assert found.precision is None


def test_an_algorithm_that_we_do_not_know_keeps_its_name() -> None:
    found = quantization(None, {"quantization": {"quant_algo": "W3A7", "kv_cache_quant_algo": None}})
    assert found == SourceQuantization("modelopt W3A7", None)


def test_a_method_that_is_not_named_is_refused() -> None:
    assert refusal({"bits": 4, "group_size": 64}).message == "quant_method is missing"
    assert refusal({}).code == "CONFIG_FIELD"
    assert refusal({"quant_method": 4}).code == "CONFIG_FIELD"


# ModelOpt's two files


def test_modelopt_may_describe_the_weights_beside_the_config() -> None:
    found = published_spec("nvidia--Llama-3.1-70B-Instruct-FP8").quantization
    assert found == SourceQuantization(
        "modelopt", "fp8", kv_cache="fp8", bits=8, excluded=("lm_head",), activations="static"
    )
    found = published_spec("nvidia--Qwen3-235B-A22B-NVFP4").quantization
    assert found is not None
    assert (found.precision, found.kv_cache, found.group_size, len(found.excluded)) == ("nvfp4", "fp8", 16, 95)


def test_a_config_without_quant_method_is_modelopts() -> None:
    described = published_spec("Qwen--Qwen3-32B-FP8-Static-PerTensor")
    assert described.quantization is not None
    assert (described.quantization.method, described.quantization.precision) == ("modelopt", "fp8")
    assert described.quantization.kv_cache == "fp8"
    assert described.kv_bytes_per_token(1, tp=1) == 131_072


@pytest.mark.parametrize(
    ("config", "hf", "words"),
    [
        ({"quant_algo": "NVFP4"}, MODELOPT_FP8, "precision: nvfp4 and fp8"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, MODELOPT_FP8, "precision: fp8-block and fp8"),
        ({"quant_algo": "FP8", "kv_cache_scheme": "INT8"}, MODELOPT_FP8, "kv_cache: int8 and fp8"),
        ({"quant_algo": "FP8", "kv_cache_scheme": None}, MODELOPT_FP8, "kv_cache: None and fp8"),
        (
            {"quant_algo": "W4A16_AWQ", "group_size": 64},
            {"quantization": {"quant_algo": "W4A16_AWQ", "group_size": 128}},
            "group_size: 64 and 128",
        ),
    ],
)
def test_files_that_disagree_are_refused(config: dict[str, Any], hf: dict[str, Any], words: str) -> None:
    error = refusal(config, hf)
    assert error.code == "QUANT_CONTRADICTION"
    assert words in error.message


def test_files_that_agree_are_joined() -> None:
    found = quantization({"quant_algo": "FP8", "ignore": ["model.layers.0*"]}, MODELOPT_FP8)
    assert found is not None
    assert (found.kv_cache, found.excluded) == ("fp8", ("model.layers.0*", "lm_head"))


@pytest.mark.parametrize(
    "hf",
    [
        {},
        {"quantization": []},
        {"quantization": {"quant_algo": 8}},
        {"quantization": {"quant_algo": "FP8", "exclude_modules": "lm_head"}},
    ],
)
def test_a_description_that_can_not_be_understood_is_refused(hf: dict[str, Any]) -> None:
    assert refusal(None, hf).code == "CONFIG_FIELD"


# KV cache


@pytest.mark.parametrize(
    ("scheme", "kv_cache"),
    [
        ("FP8", "fp8"),
        ("int8", "int8"),
        ({"dynamic": False, "num_bits": 8, "type": "float"}, "fp8"),
        ({"num_bits": 8, "type": "int"}, "int8"),
        ({"num_bits": 4, "type": "float"}, "nvfp4"),
        (None, None),
    ],
)
def test_the_kv_cache_is_a_name_or_an_object(scheme: Any, kv_cache: str | None) -> None:
    found = quantization({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": scheme})
    assert found is not None
    assert found.kv_cache == kv_cache


@pytest.mark.parametrize("scheme", ["FP6", {"num_bits": 6, "type": "float"}, {"num_bits": [8], "type": "float"}, 8, []])
def test_an_unknown_kv_cache_is_refused(scheme: Any) -> None:
    assert refusal({"quant_algo": "FP8", "kv_cache_scheme": scheme}).code == "UNSUPPORTED_QUANTIZATION"


def test_a_quantised_kv_cache_alone_is_refused() -> None:
    error = refusal(None, {"quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8"}})
    assert error.code == "UNSUPPORTED_QUANTIZATION"


# exclusions


def quantised(patterns: list[str], model: dict[str, Any] = LLAMA) -> dict[str, tuple[int, ...]]:
    """Which layers' linears are quantised, by the last part of the module."""
    config = {**model, "quantization_config": {"quant_method": "fp8", "modules_to_not_convert": patterns}}
    return {
        weight.name.split(".")[-2]: weight.layers
        for weight in weights(ModelSpec.from_config(config, "config.json"))
        if weight.quantized
    }


ALL = tuple(range(32))


@pytest.mark.parametrize(
    ("pattern", "left"),
    [
        ("lm_head", set()),
        ("model.layers.*.self_attn", {"q_proj", "k_proj", "v_proj", "o_proj"}),
        ("self_attn", {"q_proj", "k_proj", "v_proj", "o_proj"}),
        ("o_proj", {"o_proj"}),
        ("*.mlp*", {"gate_proj", "up_proj", "down_proj"}),
        ("re:.*mlp\\.(gate|up)_proj", {"gate_proj", "up_proj"}),
        ("proj", set()),
        ("model.layers.3.mlp.down", set()),
    ],
)
def test_a_pattern_names_a_module_or_what_is_around_it(pattern: str, left: set[str]) -> None:
    everything = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert quantised([pattern]) == dict.fromkeys(everything - left, ALL)


def test_single_layers_may_be_left_alone() -> None:
    found = quantised(["model.layers.0.mlp.down_proj", "model.layers.31*"])
    assert found["down_proj"] == ALL[1:31]
    assert found["up_proj"] == ALL[:31]


@pytest.mark.parametrize("pattern", ["re:(", "re:(a+)+$", "re:(a|b)*c", "re:.*.*.*.*.*x"])
def test_expressions_that_are_wrong_or_slow_are_refused(pattern: str) -> None:
    error = refusal({"quant_method": "fp8", "ignore": [pattern]})
    assert error.code == "CONFIG_FIELD"
    assert pattern in error.message


def test_endless_lists_of_patterns_are_refused() -> None:
    assert refusal({"quant_method": "fp8", "ignore": [f"*{number}" for number in range(2001)]}).code == "CONFIG_FIELD"
