"""Public reports on weights that are published quantised: what is read, adopted and refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from builder.model.spec import ModelSpec
from tests.cases.support import CONFIGS, config_of, failed, plan, run_plan, unit_of, write_case

LLAMA_7B = "meta-llama--Llama-2-7b-hf"
LLAMA_8B = "meta-llama--Llama-3.1-8B"
QWEN3_FP8 = "Qwen--Qwen3-32B-FP8-Static-PerTensor"
PYTORCH: dict[str, Any] = {"flow": "pytorch", "serving": {"family": "llmapi"}}


class TestC18:
    """An AutoAWQ repository was converted as if it held plain weights: KeyError, or the wrong layout.

    https://github.com/NVIDIA/TensorRT-LLM/issues/1528, https://github.com/NVIDIA/TensorRT-LLM/issues/10735
    """

    AWQ = '{"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": true}'

    @pytest.mark.parametrize(
        ("quantization", "weights", "scales"),
        [
            ({}, "fp16", [32, 4096]),
            ({}, "int4-awq", [32, 4096]),
            ({"quant_method": "gptq", "desc_act": False}, "bf16", [32, 4096]),
            ({"group_size": 64}, "fp16", [64, 4096]),  # 4096 / 64
        ],
    )
    def test_c18_another_format_than_the_published_one_is_refused(
        self, tmp_path: Path, quantization: dict[str, Any], weights: str, scales: list[int]
    ) -> None:
        """K = N = 4096: eight numbers of 4 bits in an int32, 4096 / 8 = 512; 4096 / 128 = 32 groups."""
        found = json.loads(self.AWQ) | quantization
        planned = plan(tmp_path, config_of(LLAMA_7B, quantization_config=found), precision={"weights": weights})
        assert planned.refused
        refused = planned["CHECKPOINT_ALREADY_QUANTIZED"]
        assert refused.values["awq_qweight"] == [4096, 512]
        assert refused.values["gptq_qweight"] == [512, 4096]
        assert refused.values["scales"] == scales
        assert found["quant_method"] in refused.message
        assert "as-published" in refused.suggestion

    @pytest.mark.parametrize(
        ("name", "published"),
        [
            ("Qwen--Qwen3-30B-A3B-FP8", "fp8-block"),
            ("nvidia--Llama-3.1-70B-Instruct-FP8", "fp8"),
            ("nvidia--Qwen3-235B-A22B-NVFP4", "nvfp4"),
            ("openai--gpt-oss-20b", "mxfp4"),
        ],
    )
    def test_c18_other_published_formats_are_refused_as_well(self, tmp_path: Path, name: str, published: str) -> None:
        """Some say it in config.json, ModelOpt's in hf_quant_config.json alone."""
        file = write_case(tmp_path, config_of(name), **PYTORCH)
        beside = CONFIGS / f"{name}.hf_quant_config.json"
        if beside.exists():
            (tmp_path / "model" / "hf_quant_config.json").write_bytes(beside.read_bytes())
        planned = run_plan(file)
        assert planned.refused
        assert planned["CHECKPOINT_ALREADY_QUANTIZED"].values["published"] == published

    def test_c18_as_published_is_adopted(self, tmp_path: Path) -> None:
        config = config_of(LLAMA_7B, quantization_config=json.loads(self.AWQ))
        assert not plan(tmp_path, config, precision={"weights": "as-published"}).refused

    def test_c18_plain_weights_are_converted(self, tmp_path: Path) -> None:
        assert not plan(tmp_path, config_of(LLAMA_7B), precision={"weights": "fp16"}).refused


class TestC19:
    """No converter reads bitsandbytes' 4-bit repositories, and users found out after the download.

    https://github.com/NVIDIA/TensorRT-LLM/issues/2472
    """

    @pytest.mark.parametrize("recipe", [{}, {"precision": {"weights": "as-published"}}, PYTORCH], ids=str)
    @pytest.mark.parametrize(
        "quantization",
        [
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
            {"quant_method": "bitsandbytes", "load_in_8bit": True},
            {"quant_method": "hqq", "nbits": 4},
            {"quant_method": "eetq", "weights": "int8"},
        ],
        ids=lambda quantization: "-".join(map(str, quantization.values())),
    )
    def test_c19_a_method_that_nothing_reads_is_refused_before_there_are_weights(
        self, tmp_path: Path, quantization: dict[str, Any], recipe: dict[str, Any]
    ) -> None:
        planned = plan(tmp_path, config_of(LLAMA_8B, quantization_config=quantization), **recipe)
        assert planned.refused
        found = planned["QUANT_METHOD_UNSUPPORTED"]
        assert quantization["quant_method"] in found.message
        assert "unquantised model" in found.suggestion

    def test_c19_a_method_that_the_flow_reads_is_not(self, tmp_path: Path) -> None:
        config = config_of(LLAMA_8B, quantization_config=json.loads(TestC18.AWQ))
        planned = plan(tmp_path, config, precision={"weights": "as-published"})
        assert "QUANT_METHOD_UNSUPPORTED" not in planned.codes


class TestC21:
    """ModelOpt's export of Qwen3-32B has a quantization_config without quant_method, in which the KV cache is a word;
    hf_quant_config.json says the same once more.

    https://github.com/ai-dynamo/aiconfigurator (Qwen--Qwen3-32B-FP8-Static-PerTensor_config.json)
    """

    IN_CONFIG = (
        '{"quant_algo": "FP8", "kv_cache_scheme": "FP8", "ignore": ["lm_head"], "producer": {"name": "modelopt"}}'
    )

    @staticmethod
    def case(folder: Path, other: dict[str, Any] | None, **in_config: Any) -> Path:
        quantization = json.loads(TestC21.IN_CONFIG) | in_config
        file = write_case(
            folder,
            config_of(QWEN3_FP8, quantization_config=quantization),
            **PYTORCH,
            precision={"weights": "as-published"},
        )
        if other is not None:
            (folder / "model" / "hf_quant_config.json").write_text(json.dumps({"quantization": other}))
        return file

    @pytest.mark.parametrize("name", ["both files", "config.json alone"])
    def test_c21_weights_and_cache_are_fp8(self, tmp_path: Path, name: str) -> None:
        """2 · 64 layers · 8 heads · 128 · 1 byte = 131,072."""
        other = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
        file = self.case(tmp_path, other if name == "both files" else None)
        assert not run_plan(file).refused
        config = json.loads((tmp_path / "model" / "config.json").read_text())
        unit = unit_of(tmp_path, config, **PYTORCH, precision={"weights": "as-published"})
        assert (unit.precision.name, unit.kv_precision.name) == ("fp8", "fp8")
        found = unit.spec.quantization
        assert found is not None
        assert (found.activations, found.excluded) == ("static", ("lm_head",))
        assert unit.spec.kv_bytes_per_token(unit.kv_precision.bytes, tp=1) == 131072

    def test_c21_other_algorithms_are_read_in_the_same_way(self, tmp_path: Path) -> None:
        config = config_of(QWEN3_FP8, quantization_config={"quant_algo": "NVFP4", "kv_cache_scheme": None})
        spec = ModelSpec.from_config(config, "config.json")
        assert spec.quantization is not None
        assert (spec.quantization.precision, spec.quantization.kv_cache) == ("nvfp4", None)

    @pytest.mark.parametrize(
        ("other", "word"),
        [
            ({"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16}, "precision"),
            ({"quant_algo": "FP8", "kv_cache_quant_algo": None}, "kv_cache"),
        ],
    )
    def test_c21_files_that_disagree_are_refused(self, tmp_path: Path, other: dict[str, Any], word: str) -> None:
        error = failed(self.case(tmp_path, other))
        assert (error.exit_code, error.code) == (4, "QUANT_CONTRADICTION")
        assert word in error.words

    def test_c21_neither_a_method_nor_an_algorithm_is_refused(self, tmp_path: Path) -> None:
        error = failed(self.case(tmp_path, None, quant_algo=None))
        assert (error.exit_code, error.code) == (4, "CONFIG_FIELD")
        assert "quant_method" in error.words
