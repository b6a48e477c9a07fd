"""The configurations against TensorRT-LLM's published tables (names, types, dims) and its rules for parameters."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig, ModelInstanceGroup

from builder.plan.serving import ServingSettings
from builder.triton.configs import MODELS, model_configs, to_text
from builder.triton.tensors import ensemble_steps


@pytest.fixture
def configs(settings: ServingSettings) -> dict[str, Any]:
    return model_configs(settings)


def parameters(config: Any) -> dict[str, str]:
    return {key: value.string_value for key, value in config.parameters.items()}


@pytest.mark.parametrize(
    ("model", "inputs", "required", "outputs"),
    [
        ("preprocessing", 14, {"QUERY", "REQUEST_OUTPUT_LEN"}, 20),
        ("tensorrt_llm", 62, {"input_lengths", "request_output_len"}, 21),
        ("postprocessing", 2, {"TOKENS_BATCH", "SEQUENCE_LENGTH"}, 1),
        ("ensemble", 36, {"text_input", "max_tokens"}, 19),
        ("tensorrt_llm_bls", 42, {"text_input", "max_tokens"}, 19),
    ],
)
def test_every_model_has_the_tensors_of_the_published_templates(
    model: str, inputs: int, required: set[str], outputs: int, configs: dict[str, Any]
) -> None:
    config = configs[model]
    assert (len(config.input), len(config.output)) == (inputs, outputs)
    assert {tensor.name for tensor in config.input if not tensor.optional} == required
    for tensors in (config.input, config.output):
        names = [tensor.name for tensor in tensors]
        assert len(names) == len(set(names))


def test_the_engine_s_inputs_are_those_of_the_published_file(configs: dict[str, Any]) -> None:
    """Names as recorded from triton_backend/all_models/inflight_batcher_llm/tensorrt_llm/config.pbtxt@0c8de69a."""
    recorded = """
        input_ids encoder_input_features encoder_output_lengths input_lengths request_output_len num_return_sequences
        draft_input_ids decoder_input_ids decoder_input_lengths draft_logits draft_acceptance_threshold end_id pad_id
        stop_words_list bad_words_list embedding_bias beam_width temperature runtime_top_k runtime_top_p
        runtime_top_p_min runtime_top_p_decay runtime_top_p_reset_ids len_penalty early_stopping repetition_penalty
        min_tokens beam_search_diversity_rate presence_penalty frequency_penalty seed return_log_probs
        return_context_logits return_generation_logits return_perf_metrics return_num_input_tokens
        return_num_output_tokens exclude_input_in_output stop streaming prompt_embedding_table prompt_table_extra_ids
        prompt_vocab_size cross_attention_mask mrope_rotary_cos_sin mrope_position_deltas lora_task_id lora_weights
        lora_config context_phase_params skip_cross_attn_blocks retention_token_range_starts retention_token_range_ends
        retention_token_range_priorities retention_token_range_durations_ms retention_decode_priority
        retention_decode_duration_ms guided_decoding_guide_type guided_decoding_guide lookahead_window_size
        lookahead_ngram_size lookahead_verification_set_size"""
    assert {tensor.name for tensor in configs["tensorrt_llm"].input} == set(recorded.split())


@pytest.mark.parametrize(
    ("model", "name", "data_type", "dims", "reshape", "ragged"),
    [
        ("tensorrt_llm", "input_ids", "TYPE_INT32", [-1], None, True),
        ("tensorrt_llm", "input_lengths", "TYPE_INT32", [1], [], False),
        ("tensorrt_llm", "stop_words_list", "TYPE_INT32", [2, -1], None, True),
        ("tensorrt_llm", "streaming", "TYPE_BOOL", [1], [], False),
        ("tensorrt_llm", "runtime_top_p", "TYPE_FP32", [1], [], False),
        ("tensorrt_llm", "seed", "TYPE_UINT64", [1], [], False),
        ("preprocessing", "QUERY", "TYPE_STRING", [1], None, False),
        ("ensemble", "stop_words", "TYPE_STRING", [-1], None, False),
        ("ensemble", "return_log_probs", "TYPE_BOOL", [1], None, False),
        ("tensorrt_llm_bls", "return_log_probs", "TYPE_BOOL", [1], [], False),
        ("tensorrt_llm_bls", "stream", "TYPE_BOOL", [1], None, False),
    ],
)
def test_inputs_are_declared_as_in_the_published_templates(
    model: str, name: str, data_type: str, dims: list[int], reshape: list[int] | None, ragged: bool, configs: Any
) -> None:
    tensor = next(each for each in configs[model].input if each.name == name)
    assert DataType.Name(tensor.data_type) == data_type
    assert list(tensor.dims) == dims
    assert tensor.HasField("reshape") == (reshape is not None)
    assert list(tensor.reshape.shape) == (reshape or [])
    assert tensor.allow_ragged_batch == ragged


def test_batching_and_instances_follow_the_published_repository(configs: dict[str, Any]) -> None:
    assert {config.max_batch_size for config in configs.values()} == {16}
    for name in ("preprocessing", "tensorrt_llm"):
        assert list(configs[name].dynamic_batching.preferred_batch_size) == [16]
        assert configs[name].dynamic_batching.default_queue_policy.max_queue_size == 100
    assert configs["postprocessing"].HasField("dynamic_batching")
    assert not configs["tensorrt_llm_bls"].HasField("dynamic_batching")
    for name in ("preprocessing", "tensorrt_llm", "postprocessing", "tensorrt_llm_bls"):
        [group] = configs[name].instance_group
        assert (group.count, group.kind) == (1, ModelInstanceGroup.KIND_CPU)
    assert not configs["ensemble"].instance_group


@pytest.mark.parametrize(("streaming", "expected"), [(True, {"tensorrt_llm", "tensorrt_llm_bls"}), (False, set())])
def test_streaming_makes_engine_and_bls_decoupled_alike(
    streaming: bool, expected: set[str], settings: ServingSettings
) -> None:
    configs = model_configs(dataclasses.replace(settings, streaming=streaming))
    assert {name for name, config in configs.items() if config.model_transaction_policy.decoupled} == expected


def test_a_request_may_wait_for_others_where_the_recipe_says_so(settings: ServingSettings) -> None:
    configs = model_configs(dataclasses.replace(settings, max_queue_delay_microseconds=500))
    for name in ("preprocessing", "tensorrt_llm"):
        assert configs[name].dynamic_batching.max_queue_delay_microseconds == 500


def test_bls_knows_the_beam_width_that_the_engine_demands(settings: ServingSettings) -> None:
    bls = model_configs(dataclasses.replace(settings, max_beam_width=4))["tensorrt_llm_bls"]
    assert parameters(bls)["max_beam_width"] == "4"
    assert parameters(bls)["accumulate_tokens"] == "false"


def test_the_reference_engine_has_the_same_tensors_behind_the_python_backend(settings: ServingSettings) -> None:
    ours = model_configs(dataclasses.replace(settings, backend="reference"))["tensorrt_llm"]
    theirs = model_configs(settings)["tensorrt_llm"]
    assert ours.backend == "python"
    assert list(ours.input) == list(theirs.input)
    assert list(ours.output) == list(theirs.output)
    assert parameters(ours).keys() == {"gpt_model_path", "max_beam_width", "exclude_input_in_output"}


def test_all_end_ids_reach_the_tokenizing_model(configs: dict[str, Any]) -> None:
    assert parameters(configs["preprocessing"])["eos_token_ids"] == "2,7"


def test_the_ensemble_is_wired_step_by_step(configs: dict[str, Any]) -> None:
    steps = configs["ensemble"].ensemble_scheduling.step
    assert [step.model_name for step in steps] == ["preprocessing", "tensorrt_llm", "postprocessing"]
    assert {step.model_version for step in steps} == {-1}
    assert steps[1].input_map["runtime_top_k"] == "top_k"
    assert steps[1].input_map["streaming"] == "stream"
    assert steps[1].input_map["seed"] == "seed"
    assert steps[1].output_map["output_ids"] == "_TOKENS_BATCH"
    assert "context_phase_params" not in steps[1].output_map
    assert steps[2].output_map["OUTPUT"] == "text_output"
    assert [len(step.inputs) for step in ensemble_steps()] == [10, 37, 2]


@pytest.mark.parametrize("model", MODELS)
def test_the_text_is_the_message_and_always_the_same(model: str, settings: ServingSettings) -> None:
    text = to_text(model_configs(settings)[model])
    assert text == to_text(model_configs(settings)[model])
    assert text_format.Parse(text, ModelConfig()) == model_configs(settings)[model]
    assert "${" not in text
