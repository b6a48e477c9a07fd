from typing import Any

import pytest

from tests.unit.plan.found import LLAMA_8B, found
from tests.unit.plan.plans import MakeUnits
from tests.unit.plan.test_rules_fusion import CALIBRATION, FP8, NVFP4

MIXTRAL: dict[str, Any] = LLAMA_8B | {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "rope_scaling": None,
    "sliding_window": None,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}


@pytest.mark.parametrize(
    "option",
    [
        {"gemm_swiglu_plugin": "fp8"},
        {"fp8_rowwise_gemm_plugin": "auto"},
        {"low_latency_gemm_plugin": "fp8"},
        {"low_latency_gemm_swiglu_plugin": "fp8"},
        {"bert_context_fmha_fp32_acc": True},
    ],
)
def test_plugins_of_hopper_are_refused_on_blackwell(make_units: MakeUnits, option: dict[str, Any]) -> None:
    codes = found(make_units, engine=option, **FP8, sku="b200-180gb")
    assert codes["PLUGIN_NOT_ON_BLACKWELL"].severity == "refuse"
    assert "PLUGIN_NOT_ON_BLACKWELL" not in found(make_units, engine=option, **FP8, sku="h100-sxm-80gb")
    off = {name: False if value is True else "disable" for name, value in option.items()}
    assert "PLUGIN_NOT_ON_BLACKWELL" not in found(make_units, engine=off, **FP8, sku="b200-180gb")


def test_what_no_source_says_of_sm_103_can_be_waived(make_units: MakeUnits) -> None:
    codes = found(make_units, engine={"low_latency_gemm_plugin": "fp8"}, **FP8, sku="b300-269gb")
    assert codes["PLUGIN_NOT_ON_BLACKWELL"].severity == "refuse-waivable"


@pytest.mark.parametrize("option", ["gemm_swiglu_plugin", "low_latency_gemm_swiglu_plugin"])
def test_swiglu_plugins_need_fp8_and_the_fused_mlp(make_units: MakeUnits, option: str) -> None:
    assert "not bf16" in found(make_units, engine={option: "fp8"})["SWIGLU_PLUGIN"].message
    unfused = found(make_units, engine={option: "fp8", "use_fused_mlp": False}, **FP8)["SWIGLU_PLUGIN"]
    assert (unfused.severity, unfused.message) == ("refuse", f"{option} needs use_fused_mlp: enable")
    assert "SWIGLU_PLUGIN" not in found(make_units, engine={option: "fp8"}, **FP8)


def test_gemm_swiglu_is_for_hopper(make_units: MakeUnits) -> None:
    assert (
        "Hopper"
        in found(make_units, engine={"gemm_swiglu_plugin": "fp8"}, **FP8, sku="l40s-48gb")["SWIGLU_PLUGIN"].message
    )


def test_low_latency_gemm_needs_fp8_weights(make_units: MakeUnits) -> None:
    assert "LOW_LATENCY_GEMM_UNUSED" in found(make_units, engine={"low_latency_gemm_plugin": "fp8"})
    assert "LOW_LATENCY_GEMM_UNUSED" not in found(make_units, engine={"low_latency_gemm_plugin": "fp8"}, **FP8)


def test_pp_reduce_scatter_is_for_mixtral(make_units: MakeUnits) -> None:
    assert found(make_units, engine={"pp_reduce_scatter": True})["PP_REDUCE_SCATTER"].severity == "refuse"
    assert "PP_REDUCE_SCATTER" not in found(make_units, MIXTRAL, engine={"pp_reduce_scatter": True})


def test_streamingllm_is_gone_from_1_0_on(make_units: MakeUnits) -> None:
    assert found(make_units, engine={"streamingllm": True})["STREAMINGLLM"].severity == "refuse"
    assert "STREAMINGLLM" not in found(make_units, engine={"streamingllm": True}, toolchain="trtllm-0.21.0")


def test_weights_of_plugins_cannot_be_streamed(make_units: MakeUnits) -> None:
    streamed = {"weight_streaming": True}
    assert found(make_units, engine=streamed | {"gemm_plugin": "auto"})["WEIGHT_STREAMING"].severity == "refuse"
    assert "WEIGHT_STREAMING" in found(make_units, engine=streamed, **NVFP4)
    assert "WEIGHT_STREAMING" not in found(make_units, engine=streamed | {"gemm_plugin": "disable"}, **NVFP4)
    assert "WEIGHT_STREAMING" not in found(make_units, engine=streamed)


def test_fast_build_is_not_for_int8_without_plugins(make_units: MakeUnits) -> None:
    smoothquant = {"precision": {"weights": "int8-sq"}, "calibration": CALIBRATION}
    assert found(make_units, engine={"fast_build": True}, **smoothquant)["FAST_BUILD"].severity == "refuse"
    assert "FAST_BUILD" not in found(make_units, engine={"fast_build": True}, **FP8)


def test_an_engine_without_weights_is_refused_unless_waived(make_units: MakeUnits) -> None:
    assert found(make_units, engine={"strip_plan": True})["STRIPPED_PLAN"].severity == "refuse-waivable"
    assert "STRIPPED_PLAN" not in found(make_units, engine={"strip_plan": False})


def test_nccl_is_off_on_one_gpu(make_units: MakeUnits) -> None:
    assert found(make_units, engine={"nccl_plugin": "auto"})["NCCL_PLUGIN_OFF"].values == {"becomes": "disable"}
    assert "NCCL_PLUGIN_OFF" not in found(make_units, engine={"nccl_plugin": "auto"}, parallelism={"tensor": 2})
    assert "NCCL_PLUGIN_OFF" not in found(make_units, engine={"nccl_plugin": "disable"})


@pytest.mark.parametrize("option", ["paged_kv_cache", "gather_generation_logits"])
def test_deprecated_options_are_told(make_units: MakeUnits, option: str) -> None:
    codes = found(make_units, engine={option: True})
    assert {code: finding.severity for code, finding in codes.items()} == {"DEPRECATED_OPTION": "warn"}


def test_the_gemm_plugin_is_not_for_fp8(make_units: MakeUnits) -> None:
    assert "GEMM_PLUGIN_FP8" in found(make_units, engine={"gemm_plugin": "auto"}, **FP8)
    assert "GEMM_PLUGIN_FP8" not in found(make_units, engine={"gemm_plugin": "disable"}, **FP8)
    assert found(make_units, engine={"gemm_plugin": "auto"}) == {}


def test_the_gemm_plugin_becomes_nvfp4_for_nvfp4(make_units: MakeUnits) -> None:
    assert found(make_units, engine={"gemm_plugin": "auto"}, **NVFP4)["GEMM_PLUGIN_NVFP4"].values == {
        "becomes": "nvfp4"
    }
    assert "GEMM_PLUGIN_NVFP4" not in found(make_units, engine={"gemm_plugin": "nvfp4"}, **NVFP4)


@pytest.mark.parametrize(
    "option",
    [{"gpt_attention_plugin": "disable"}, {"remove_input_padding": False}, {"kv_cache_type": "continuous"}],
)
def test_an_engine_that_cannot_batch_in_flight_is_refused(make_units: MakeUnits, option: dict[str, Any]) -> None:
    assert found(make_units, engine=option)["INFLIGHT_BATCHING"].severity == "refuse"


def test_an_engine_with_a_paged_cache_batches_in_flight(make_units: MakeUnits) -> None:
    assert found(make_units, engine={"kv_cache_type": "paged", "gpt_attention_plugin": "auto"}) == {}


def test_a_model_class_needs_its_file(make_units: MakeUnits) -> None:
    assert found(make_units, engine={"model_cls_name": "Mine"})["MODEL_CLASS"].severity == "refuse"
    assert found(make_units, engine={"model_cls_name": "Mine", "model_cls_file": "mine.py"}) == {}


def test_options_of_the_build_mean_nothing_to_the_reference_engine(make_units: MakeUnits) -> None:
    assert found(make_units, engine={"reduce_fusion": True, "strip_plan": True}, sku="cpu") == {}
