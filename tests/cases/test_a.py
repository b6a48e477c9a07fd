"""Reports of class A on formats: what a card and its kernels can't do, said before anything is downloaded."""

from pathlib import Path
from typing import Any

import pytest

from tests.cases.support import AS_PUBLISHED, AWQ, GPTQ, PYTORCH, TEXTS, Planned, config_of, failure, plan


def fp8(folder: Path, sku: str, weights: str = "fp8") -> Planned:
    target = {"sku": sku}
    config = config_of("meta-llama--Llama-2-7b-hf")
    return plan(folder, config, precision={"weights": weights}, calibration=TEXTS, target=target)


class TestA01:
    """https://github.com/NVIDIA/TensorRT-LLM/issues/1428: a Llama-7B was quantised to FP8 for hours before TensorRT
    said, at the very last step, that an A100 has no FP8. Also basetenlabs/truss issues 1043 and 1044."""

    def test_a01_fp8_on_an_a100_is_refused_with_what_it_can_do(self, tmp_path: Path) -> None:
        planned = fp8(tmp_path, "a100-sxm-80gb")
        assert planned.refusing == {"SM_TOO_OLD_FOR_FP8"}
        assert planned.refused
        finding = planned["SM_TOO_OLD_FOR_FP8"]
        assert finding.severity == "refuse"
        assert (finding.values["sku_sm"], finding.values["min_sm"]) == ("8.0", "8.9")
        assert all(word in finding.words for word in ("A100", "FP8", "8.9"))
        assert all(word in finding.suggestion for word in ("fp16", "bf16", "int8-sq", "int8-wo", "int4-wo", "int4-awq"))

    @pytest.mark.parametrize(("sku", "sm"), [("a10g-24gb", "8.6"), ("a30-24gb", "8.0"), ("rtx-3090-24gb", "8.6")])
    def test_a01_other_ampere_cards_have_no_fp8_either(self, tmp_path: Path, sku: str, sm: str) -> None:
        finding = fp8(tmp_path, sku)["SM_TOO_OLD_FOR_FP8"]
        assert (finding.values["sku_sm"], finding.values["min_sm"]) == (sm, "8.9")

    def test_a01_fp4_is_newer_still(self, tmp_path: Path) -> None:
        """NVFP4 came with Blackwell, SM 10.0: a Hopper card has FP8 and no FP4."""
        finding = fp8(tmp_path, "h100-sxm-80gb", "nvfp4")["SM_TOO_OLD_FOR_NVFP4"]
        assert (finding.values["sku_sm"], finding.values["min_sm"]) == ("9.0", "10.0")

    @pytest.mark.parametrize("sku", ["l40s-48gb", "h100-sxm-80gb", "rtx-4090-24gb", "b200-180gb"])
    def test_a01_fp8_on_ada_and_newer_is_accepted(self, tmp_path: Path, sku: str) -> None:
        assert not fp8(tmp_path, sku).refused

    @pytest.mark.parametrize("weights", ["bf16", "int8-wo", "int4-awq", "int8-sq"])
    def test_a01_what_the_suggestion_offers_is_accepted(self, tmp_path: Path, weights: str) -> None:
        assert not fp8(tmp_path, "a100-sxm-80gb", weights).refused


class TestA03:
    """https://github.com/NVIDIA/TensorRT-LLM/issues/4599: Qwen3-30B-A3B-FP8, with a scale per block of 128x128, fails
    on an RTX 5880 Ada, which has FP8, only not with this kind of scales."""

    MODEL = "Qwen--Qwen3-30B-A3B-FP8"

    def test_a03_block_scales_on_ada_are_told_apart_from_fp8(self, tmp_path: Path) -> None:
        config = config_of(self.MODEL)
        assert config["quantization_config"]["weight_block_size"] == [128, 128]
        planned = plan(tmp_path, config, precision=AS_PUBLISHED, **PYTORCH, target={"sku": "rtx-5880-ada-48gb"})
        assert planned.refused
        finding = planned["SM_TOO_OLD_FOR_FP8_BLOCK"]
        assert finding.severity == "refuse"
        assert finding.values["block_scale_sms"] == ["9.0", "10.0", "10.3"]
        assert finding.values["per_tensor_fp8_ok"] is True
        assert "block" in finding.words
        assert "9.0" in finding.words
        assert "bf16" in finding.suggestion
        assert "per-tensor fp8" in finding.suggestion
        assert "SM_TOO_OLD_FOR_FP8" not in planned.codes

    def test_a03_an_ampere_card_has_neither_kind(self, tmp_path: Path) -> None:
        config = config_of("deepseek-ai--DeepSeek-R1")
        split = {"tensor": 8}
        planned = plan(
            tmp_path, config, precision=AS_PUBLISHED, parallelism=split, **PYTORCH, target={"sku": "a100-sxm-80gb"}
        )
        finding = planned["SM_TOO_OLD_FOR_FP8_BLOCK"]
        assert finding.values["sku_sm"] == "8.0"
        assert finding.values["per_tensor_fp8_ok"] is False

    def test_a03_a_newer_card_may_lack_them_too(self, tmp_path: Path) -> None:
        """Support is a set: SM 12.0 is above 10.0, and isn't in it."""
        planned = plan(
            tmp_path,
            config_of(self.MODEL),
            precision=AS_PUBLISHED,
            **PYTORCH,
            target={"sku": "rtx-pro-6000-server-96gb"},
        )
        assert planned.refused
        assert "SM_TOO_OLD_FOR_FP8_BLOCK" not in planned.codes
        assert planned["SM_UNSUPPORTED_PRECISION"].values["supported_sms"] == ["9.0", "10.0", "10.3"]

    @pytest.mark.parametrize(
        ("model", "sku", "tensor"),
        [
            (MODEL, "h100-sxm-80gb", 1),
            (MODEL, "b200-180gb", 1),
            ("deepseek-ai--DeepSeek-R1", "h200-sxm-141gb", 8),  # 689 GB
        ],
    )
    def test_a03_hopper_and_blackwell_run_them(self, tmp_path: Path, model: str, sku: str, tensor: int) -> None:
        split, target = {"tensor": tensor}, {"sku": sku}
        planned = plan(tmp_path, config_of(model), precision=AS_PUBLISHED, parallelism=split, **PYTORCH, target=target)
        assert not planned.refused

    def test_a03_the_unquantised_model_is_accepted_on_ada(self, tmp_path: Path) -> None:
        split = {"tensor": 2}
        planned = plan(
            tmp_path,
            config_of("Qwen--Qwen3-30B-A3B"),
            parallelism=split,
            **PYTORCH,
            target={"sku": "rtx-5880-ada-48gb"},
        )
        assert not planned.refused


class TestA12:
    """https://github.com/NVIDIA/TensorRT-LLM/issues/1353: INT8 weights, SmoothQuant, an INT8 KV cache and a group size
    on one command line; the converter took it, and nobody could explain what came out."""

    OPTIONS = {  # noqa: RUF012
        "use_weight_only": True,
        "weight_only_precision": "int8",
        "smoothquant": 0.5,
        "per_token": True,
        "per_channel": True,
        "int8_kv_cache": True,
        "group_size": 128,
    }

    @pytest.mark.parametrize("section", [None, "engine", "precision", "target"])
    def test_a12_the_options_are_refused_and_named_wherever_they_are_written(
        self, tmp_path: Path, section: str | None
    ) -> None:
        recipe: dict[str, Any] = {section: self.OPTIONS} if section else self.OPTIONS
        error = failure(tmp_path, config_of("meta-llama--Llama-2-7b-hf"), **recipe)
        assert (error.exit_code, error.code) == (2, "QUANT_CONFLICT")
        assert "weight_only" in error.words
        assert "smoothquant" in error.words

    @pytest.mark.parametrize(
        ("precision", "field"),
        [
            ({"weights": "int8-wo", "smoothquant_alpha": 0.5}, "smoothquant_alpha"),
            ({"weights": "int8-sq", "group_size": 128}, "group_size"),
            ({"weights": "fp8", "group_size": 64}, "group_size"),
            ({"weights": "bf16", "activations": "fp16"}, "activations"),
        ],
    )
    def test_a12_a_field_of_another_scheme_is_refused_with_both_names(
        self, tmp_path: Path, precision: dict[str, Any], field: str
    ) -> None:
        error = failure(tmp_path, config_of("meta-llama--Llama-2-7b-hf"), precision=precision)
        assert (error.exit_code, error.code) == (2, "QUANT_CONFLICT")
        assert f"precision.{field}" in error.words
        assert f"precision.weights {precision['weights']}" in error.words

    @pytest.mark.parametrize(
        "precision",
        [
            {"weights": "int8-wo", "kv_cache": "int8"},
            {"weights": "int8-sq", "smoothquant_alpha": 0.5},
            {"weights": "int4-awq", "group_size": 64},
        ],
    )
    def test_a12_one_scheme_with_its_own_fields_is_accepted(self, tmp_path: Path, precision: dict[str, Any]) -> None:
        config = config_of("meta-llama--Llama-2-7b-hf")
        assert not plan(tmp_path, config, precision=precision, calibration=TEXTS).refused


class TestA18:
    """https://github.com/NVIDIA/TensorRT-LLM/issues/2166: reuse of the KV cache needs paged context attention, which
    can't read an INT8 cache. triton-inference-server/tensorrtllm_backend issues 271 and 323: reuse was asked for in
    Triton, the engine was built without it, and the model didn't load."""

    MODEL = "meta-llama--Llama-3.1-8B"
    REUSE = {"enable_kv_cache_reuse": True}  # noqa: RUF012

    def test_a18_reuse_of_an_int8_cache_is_refused(self, tmp_path: Path) -> None:
        planned = plan(
            tmp_path, config_of(self.MODEL), precision={"kv_cache": "int8"}, calibration=TEXTS, serving=self.REUSE
        )
        assert planned.refusing == {"KV_REUSE_INT8"}
        assert planned.refused
        finding = planned["KV_REUSE_INT8"]
        assert finding.severity == "refuse"
        assert "int8" in finding.message
        assert "paged context" in finding.message

    def test_a18_reuse_of_an_fp8_cache_needs_weights_with_fp8_attention(self, tmp_path: Path) -> None:
        for weights, refusing in (
            ("bf16", {"KV_REUSE_FP8_KV"}),
            ("int8-wo", {"KV_REUSE_FP8_KV"}),
            ("fp8", set()),
            ("w4a8-awq", set()),
        ):
            precision = {"weights": weights, "kv_cache": "fp8"}
            planned = plan(tmp_path, config_of(self.MODEL), precision=precision, calibration=TEXTS, serving=self.REUSE)
            assert planned.refusing == refusing, weights

    def test_a18_a_build_option_that_takes_it_away_is_refused(self, tmp_path: Path) -> None:
        engine = {"use_paged_context_fmha": False}
        planned = plan(tmp_path, config_of(self.MODEL), engine=engine, serving=self.REUSE)
        assert planned.refusing == {"KV_REUSE_NEEDS_PAGED_CONTEXT_FMHA"}

    def test_a18_an_int8_cache_without_reuse_and_reuse_of_a_plain_cache_are_accepted(self, tmp_path: Path) -> None:
        config = config_of(self.MODEL)
        assert not plan(tmp_path, config, precision={"kv_cache": "int8"}, calibration=TEXTS).refused
        assert not plan(tmp_path, config, serving=self.REUSE).refused


class TestA21:
    """https://github.com/NVIDIA/TensorRT-LLM/issues/988: a GPTQ checkpoint with groups of 32 failed, the kernels take
    64 and 128."""

    def test_a21_gptq_with_groups_of_32_is_refused(self, tmp_path: Path) -> None:
        config = config_of("meta-llama--Llama-2-7b-hf", quantization_config=GPTQ | {"group_size": 32})
        planned = plan(tmp_path, config, precision=AS_PUBLISHED)
        assert planned.refusing == {"GROUP_SIZE_UNSUPPORTED"}
        assert planned.refused
        finding = planned["GROUP_SIZE_UNSUPPORTED"]
        assert finding.values["supported"] == [64, 128]
        assert "32" in finding.message

    @pytest.mark.parametrize(("group", "word"), [(256, "256"), (-1, "-1")])
    def test_a21_other_sizes_and_one_scale_per_channel_are_refused(self, tmp_path: Path, group: int, word: str) -> None:
        config = config_of("Qwen--Qwen2.5-7B", quantization_config=GPTQ | {"group_size": group})
        finding = plan(tmp_path, config, precision=AS_PUBLISHED)["GROUP_SIZE_UNSUPPORTED"]
        assert finding.values["supported"] == [64, 128]
        assert word in finding.message

    def test_a21_awq_has_the_same_kernels(self, tmp_path: Path) -> None:
        config = config_of("Qwen--Qwen2.5-7B", quantization_config=AWQ | {"group_size": 32})
        assert plan(tmp_path, config, precision=AS_PUBLISHED).refusing == {"GROUP_SIZE_UNSUPPORTED"}
        config, precision = config_of("Qwen--Qwen2.5-7B"), {"weights": "int4-awq", "group_size": 32}
        assert plan(tmp_path, config, precision=precision, calibration=TEXTS).refusing == {"GROUP_SIZE_UNSUPPORTED"}

    @pytest.mark.parametrize("group", [64, 128])
    def test_a21_what_has_kernels_is_accepted(self, tmp_path: Path, group: int) -> None:
        config = config_of("meta-llama--Llama-2-7b-hf", quantization_config=GPTQ | {"group_size": group})
        assert not plan(tmp_path, config, precision=AS_PUBLISHED).refused
