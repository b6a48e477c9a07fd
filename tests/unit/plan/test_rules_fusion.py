from typing import Any

import pytest

from tests.unit.plan.found import LLAMA_8B, found
from tests.unit.plan.plans import MakeUnits

MISTRAL: dict[str, Any] = LLAMA_8B | {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "rope_scaling": None,
    "sliding_window": None,
}
CALIBRATION = {"dataset": "file:texts.jsonl"}
FP8: dict[str, Any] = {"precision": {"weights": "fp8"}, "calibration": CALIBRATION}
NVFP4: dict[str, Any] = {"precision": {"weights": "nvfp4"}, "calibration": CALIBRATION, "sku": "b200-180gb"}


def test_reduce_fusion_is_off_without_tensor_parallelism(make_units: MakeUnits) -> None:
    finding = found(make_units, engine={"reduce_fusion": True})["REDUCE_FUSION_OFF"]
    assert finding.values == {"becomes": "disable"}
    assert "one tensor rank" in finding.message


def test_reduce_fusion_is_off_for_other_models(make_units: MakeUnits) -> None:
    finding = found(make_units, MISTRAL, engine={"reduce_fusion": True}, parallelism={"tensor": 2})["REDUCE_FUSION_OFF"]
    assert "not MistralForCausalLM" in finding.message


@pytest.mark.parametrize("wanted", [True, False])
def test_reduce_fusion_stays_on_for_a_llama_over_two_ranks(make_units: MakeUnits, wanted: bool) -> None:
    assert found(make_units, engine={"reduce_fusion": wanted}, parallelism={"tensor": 2}) == {}


def test_user_buffer_is_off_without_reduce_fusion(make_units: MakeUnits) -> None:
    finding = found(make_units, engine={"user_buffer": True}, parallelism={"tensor": 2}, **FP8)["USER_BUFFER_OFF"]
    assert finding.values == {"becomes": "disable"}


def test_user_buffer_falls_with_reduce_fusion(make_units: MakeUnits) -> None:
    codes = found(make_units, engine={"user_buffer": True, "reduce_fusion": True}, **FP8)
    assert codes["USER_BUFFER_OFF"].values == codes["REDUCE_FUSION_OFF"].values == {"becomes": "disable"}


def test_user_buffer_is_documented_for_llama_in_fp8_only(make_units: MakeUnits) -> None:
    engine = {"user_buffer": True, "reduce_fusion": True}
    bf16 = found(make_units, engine=engine, parallelism={"tensor": 2})["USER_BUFFER_OFF"]
    assert "documented for Llama in FP8 only" in bf16.message
    assert "USER_BUFFER_OFF" not in found(make_units, engine=engine, parallelism={"tensor": 2}, **FP8)


def test_norm_quant_fusion_is_for_a_llama_in_nvfp4(make_units: MakeUnits) -> None:
    engine = {"norm_quant_fusion": True}
    assert "not bf16" in found(make_units, engine=engine)["NORM_QUANT_FUSION_OFF"].message
    assert "NORM_QUANT_FUSION_OFF" not in found(make_units, engine=engine, **NVFP4)


def test_norm_quant_fusion_and_reduce_fusion_exclude_each_other(make_units: MakeUnits) -> None:
    engine = {"norm_quant_fusion": True, "reduce_fusion": True}
    finding = found(make_units, engine=engine, parallelism={"tensor": 2}, **NVFP4)["NORM_QUANT_FUSION_OFF"]
    assert "reduce_fusion is on" in finding.message
