"""The model: whether the toolchain knows it, with which transformers, and what becomes of its numbers."""

import pytest

from tests.unit.plan.models import LLAMA_7B, LLAMA_8B, QWEN3_0_6B
from tests.unit.plan.plans import MakeUnits, findings, recipe

CALIBRATED = "calibration: {dataset: file:chat.jsonl}"

NOT_IN_THE_ENGINE_FLOW = LLAMA_8B | {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "intermediate_size": 2880,
    "head_dim": 64,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 16,
}


def test_an_architecture_that_the_flow_does_not_know_is_refused_with_one_that_does(make_units: MakeUnits) -> None:
    finding = findings(make_units(recipe(), NOT_IN_THE_ENGINE_FLOW))["ARCHITECTURE_UNSUPPORTED"]
    assert finding.severity == "refuse"
    assert "GptOssForCausalLM" in finding.message
    assert "flow: pytorch" in finding.suggestion
    assert "ARCHITECTURE_UNSUPPORTED" not in findings(make_units(recipe(flow="pytorch"), NOT_IN_THE_ENGINE_FLOW))


def test_the_reference_model_runs_what_we_convert_ourselves(make_units: MakeUnits) -> None:
    assert findings(make_units(recipe("cpu"))) == {}
    assert "ARCHITECTURE_UNSUPPORTED" not in findings(make_units(recipe("cpu"), QWEN3_0_6B))
    scaled = {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}}
    assert "ARCHITECTURE_UNSUPPORTED" not in findings(make_units(recipe("cpu"), scaled))
    mimo = LLAMA_8B | {"architectures": ["MiMoForCausalLM"], "model_type": "mimo", "num_nextn_predict_layers": 1}
    assert "MiMoForCausalLM" in findings(make_units(recipe("cpu"), mimo))["ARCHITECTURE_UNSUPPORTED"].message
    coded = LLAMA_8B | {"auto_map": {"AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}}
    assert "auto_map" in findings(make_units(recipe("cpu"), coded))["ARCHITECTURE_UNSUPPORTED"].message


def test_of_a_multimodal_model_only_the_text_is_planned(make_units: MakeUnits) -> None:
    text_config = {key: value for key, value in QWEN3_0_6B.items() if key != "architectures"}
    config = {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "text_config": text_config
        | {
            "model_type": "qwen3_vl_text",
            "rms_norm_eps": 1e-6,
            "rope_theta": 1e6,
            "hidden_act": "silu",
            "dtype": "bfloat16",
        },
        "vision_config": {"depth": 24},
    }
    finding = findings(make_units(recipe(flow="pytorch"), config))["TEXT_TOWER_ONLY"]
    assert finding.severity == "warn"
    assert "TEXT_TOWER_ONLY" not in findings(make_units(recipe(), QWEN3_0_6B))


def test_transformers_older_than_the_model_is_refused(make_units: MakeUnits) -> None:
    layers = QWEN3_0_6B | {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "transformers_version": "4.57.0",
    }
    moe = {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    }
    linear = {
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4,
        "partial_rotary_factor": 0.25,
    }
    text = recipe(toolchain="trtllm-1.0.0", flow="pytorch")
    finding = findings(make_units(text, layers | moe | linear))["TRANSFORMERS_TOO_OLD"]
    assert finding.severity == "refuse"
    assert all(word in finding.message for word in ("qwen3_next", "4.57", "4.53.1"))
    text = recipe(toolchain="trtllm-1.2.1", flow="pytorch")
    assert "TRANSFORMERS_TOO_OLD" not in findings(make_units(text, layers | moe | linear))


def test_the_version_that_wrote_a_config_does_not_decide(make_units: MakeUnits) -> None:
    text = recipe(toolchain="trtllm-1.0.0")
    assert findings(make_units(text, LLAMA_8B | {"transformers_version": "5.9.0"})) == {}


def test_rope_parameters_that_the_image_does_not_read_are_refused(make_units: MakeUnits) -> None:
    theta = {"rope_theta": 1000000.0}
    config = QWEN3_0_6B | {"rope_parameters": theta | {"rope_type": "default"}, "rope_theta": None}
    config = {key: value for key, value in config.items() if key != "rope_theta"}
    text = recipe("h100-sxm-80gb", "fp8", extra=CALIBRATED)  # quantised by the release's own script
    found = findings(make_units(text, config, without=("rope_theta",)))
    assert found["ROPE_PARAMETERS_UNREAD"].severity == "refuse-waivable"
    assert found["ROPE_PARAMETERS_UNREAD"].values["rope_theta"] == 1000000.0
    assert "ROPE_PARAMETERS_UNREAD" not in findings(make_units(text, config | theta))
    assert "ROPE_PARAMETERS_UNREAD" not in findings(make_units(recipe(), config, without=("rope_theta",)))


def test_rope_parameters_of_what_we_convert_ourselves_are_read(make_units: MakeUnits) -> None:
    config = LLAMA_8B | {"rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}}
    assert findings(make_units(recipe(), config, without=("rope_theta",))) == {}


def test_code_of_a_repository_is_refused_unless_it_is_trusted(make_units: MakeUnits) -> None:
    config = LLAMA_8B | {
        "architectures": ["MiMoForCausalLM"],
        "model_type": "mimo",
        "auto_map": {"AutoModelForCausalLM": "modeling_mimo.MiMoForCausalLM"},
        "num_nextn_predict_layers": 1,
    }
    found = findings(make_units(recipe(flow="pytorch"), config))
    assert found["CUSTOM_CODE"].severity == "refuse"
    assert "TRUST_REMOTE_CODE" not in found
    trusting = recipe(flow="pytorch").replace("{source: ./model}", "{source: ./model, trust_remote_code: true}")
    found = findings(make_units(trusting, config))
    assert "CUSTOM_CODE" not in found
    assert found["TRUST_REMOTE_CODE"].severity == "warn"


def test_code_of_a_model_that_transformers_knows_is_simply_not_run(make_units: MakeUnits) -> None:
    config = QWEN3_0_6B | {"auto_map": {"AutoConfig": "configuration.Config"}}
    assert "CUSTOM_CODE" not in findings(make_units(recipe(), config))


def test_trust_in_a_repository_without_code_is_told(make_units: MakeUnits) -> None:
    trusting = recipe().replace("{source: ./model}", "{source: ./model, trust_remote_code: true}")
    assert "brings no code" in findings(make_units(trusting, LLAMA_8B))["TRUST_REMOTE_CODE"].message


def test_a_model_without_an_end_token_is_refused(make_units: MakeUnits) -> None:
    assert findings(make_units(recipe(), LLAMA_8B | {"eos_token_id": None}))["NO_END_TOKEN"].severity == "refuse"
    assert "NO_END_TOKEN" not in findings(make_units(recipe(), LLAMA_8B))


def test_a_float32_source_is_told_with_both_sizes(make_units: MakeUnits) -> None:
    config = LLAMA_7B | {"torch_dtype": "float32"}
    text = recipe(weights="as-published")
    finding = findings(make_units(text, config))["FP32_SOURCE"]
    assert finding.severity == "warn"
    assert finding.values["download_bytes"] == 26_953_662_464
    assert finding.values["engine_bytes_fp16"] == 13_476_831_232
    assert finding.values["dtype"] == "float16"
    assert "will be rounded to float16" in finding.message


def test_a_float32_source_that_is_kept_takes_twice_the_memory(make_units: MakeUnits) -> None:
    config = LLAMA_7B | {"torch_dtype": "float32"}
    assert "twice the memory" in findings(make_units(recipe(weights="fp32"), config))["FP32_SOURCE"].message
    assert "FP32_SOURCE" not in findings(make_units(recipe("cpu", "fp32"), {"torch_dtype": "float32"}))


@pytest.mark.parametrize(("source", "weights"), [("float16", "bf16"), ("bfloat16", "fp16"), ("bfloat16", "fp32")])
def test_another_format_than_the_source_has_is_told(make_units: MakeUnits, source: str, weights: str) -> None:
    found = findings(make_units(recipe(weights=weights), LLAMA_7B | {"torch_dtype": source}))
    assert found["DTYPE_CHANGE"].severity == "warn"


def test_the_format_of_the_source_is_accepted(make_units: MakeUnits) -> None:
    assert findings(make_units(recipe(weights="fp16"), LLAMA_7B | {"torch_dtype": "float16"})) == {}


def test_numbers_that_config_json_leaves_to_its_class_are_told(make_units: MakeUnits) -> None:
    finding = findings(make_units(recipe(), LLAMA_7B, without=("rope_theta",)))["CLASS_DEFAULT"]
    assert finding.severity == "warn"
    assert finding.values["defaults"] == {"rope_theta": 10000.0}
    assert "rope_theta 10000" in finding.message
    assert "CLASS_DEFAULT" not in findings(make_units(recipe(), LLAMA_7B))
