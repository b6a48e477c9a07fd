from typing import Any

import pytest

from tests.unit.plan.found import found
from tests.unit.plan.plans import MakeUnits
from tests.unit.plan.test_rules_fusion import CALIBRATION

REUSE = {"enable_kv_cache_reuse": True}
CHUNKS = {"enable_chunked_context": True}


def kv(cache: str, weights: str = "bf16") -> dict[str, Any]:
    return {"precision": {"weights": weights, "kv_cache": cache}, "calibration": CALIBRATION}


def test_reuse_of_an_int8_cache_is_refused(make_units: MakeUnits) -> None:
    """NVIDIA/TensorRT-LLM issue 2166."""
    finding = found(make_units, serving=REUSE, **kv("int8"))["KV_REUSE_INT8"]
    assert finding.severity == "refuse"
    assert "int8" in finding.message
    assert "paged context" in finding.message


def test_an_int8_cache_without_reuse_is_told_what_it_costs(make_units: MakeUnits) -> None:
    codes = found(make_units, **kv("int8"))
    assert "KV_REUSE_INT8" not in codes
    assert codes["PAGED_CONTEXT_FMHA_OFF"].values == {"becomes": "disable"}


@pytest.mark.parametrize("weights", ["bf16", "int8-wo"])
def test_reuse_of_an_fp8_cache_is_refused_under_other_weights(make_units: MakeUnits, weights: str) -> None:
    codes = found(make_units, serving=REUSE, **kv("fp8", weights))
    assert codes["KV_REUSE_FP8_KV"].severity == "refuse"
    assert "PAGED_CONTEXT_FMHA_OFF" in codes


@pytest.mark.parametrize("weights", ["fp8", "w4a8-awq"])
def test_reuse_of_an_fp8_cache_works_under_fp8_weights(make_units: MakeUnits, weights: str) -> None:
    codes = found(make_units, serving=REUSE | CHUNKS, **kv("fp8", weights))
    assert not codes.keys() & {"KV_REUSE_FP8_KV", "PAGED_CONTEXT_FMHA_OFF", "CHUNKED_CONTEXT_NEEDS_PAGED_CONTEXT_FMHA"}


def test_reuse_of_a_cache_in_the_format_of_the_model_works(make_units: MakeUnits) -> None:
    assert found(make_units, serving=REUSE | CHUNKS) == {}


@pytest.mark.parametrize("option", ["use_paged_context_fmha", "context_fmha"])
def test_reuse_and_chunks_contradict_an_engine_built_without(make_units: MakeUnits, option: str) -> None:
    """triton-inference-server/tensorrtllm_backend issue 271."""
    codes = found(make_units, serving=REUSE | CHUNKS, engine={option: False})
    for code in ("KV_REUSE_NEEDS_PAGED_CONTEXT_FMHA", "CHUNKED_CONTEXT_NEEDS_PAGED_CONTEXT_FMHA"):
        assert codes[code].severity == "refuse"
        assert "use_paged_context_fmha" in codes[code].message
    assert not found(make_units, engine={option: False}).keys() & {
        "KV_REUSE_NEEDS_PAGED_CONTEXT_FMHA",
        "CHUNKED_CONTEXT_NEEDS_PAGED_CONTEXT_FMHA",
    }


@pytest.mark.parametrize("cache", ["int8", "fp8"])
def test_chunked_context_is_refused_where_the_cache_rules_it_out(make_units: MakeUnits, cache: str) -> None:
    finding = found(make_units, serving=CHUNKS, **kv(cache))["CHUNKED_CONTEXT_NEEDS_PAGED_CONTEXT_FMHA"]
    assert cache in finding.message


def test_fused_attention_off_takes_the_others_along(make_units: MakeUnits) -> None:
    finding = found(make_units, engine={"context_fmha": False})["CONTEXT_FMHA_OFF"]
    assert finding.values["becomes"] == {"use_paged_context_fmha": "disable", "use_fp8_context_fmha": "disable"}
    assert "CONTEXT_FMHA_OFF" not in found(make_units, engine={"context_fmha": True})


@pytest.mark.parametrize(
    ("weights", "cache", "wanted", "becomes"),
    [
        ("bf16", "auto", True, "disable"),
        ("fp8", "auto", True, "disable"),
        ("fp8", "fp8", False, "enable"),
        ("fp8", "fp8", True, None),
        ("bf16", "auto", False, None),
    ],
)
def test_fp8_attention_follows_weights_and_cache(
    make_units: MakeUnits, weights: str, cache: str, wanted: bool, becomes: str | None
) -> None:
    codes = found(make_units, engine={"use_fp8_context_fmha": wanted}, **kv(cache, weights))
    finding = codes.get("FP8_CONTEXT_FMHA")
    assert (finding.values["becomes"] if finding else None) == becomes


def test_fp8_attention_without_paged_attention_may_be_off(make_units: MakeUnits) -> None:
    engine = {"use_fp8_context_fmha": False, "use_paged_context_fmha": False}
    assert "FP8_CONTEXT_FMHA" not in found(make_units, engine=engine, **kv("fp8", "fp8"))


def test_volta_has_no_paged_attention(make_units: MakeUnits) -> None:
    fp16 = {"precision": {"weights": "fp16"}}
    codes = found(make_units, serving=REUSE, sku="v100-sxm-32gb", **fp16)
    assert codes["PAGED_CONTEXT_FMHA_VOLTA"].severity == "refuse"
    assert "PAGED_CONTEXT_FMHA_VOLTA" not in found(make_units, sku="v100-sxm-32gb", **fp16)
    assert "PAGED_CONTEXT_FMHA_VOLTA" not in found(make_units, serving=REUSE, sku="a100-sxm-80gb", **fp16)
