import pytest

from builder.catalog import flag_history, length_flags, migration, quantization_schemes
from builder.catalog.flag_history import KV_SCHEMES
from builder.errors import UsageError


@pytest.mark.parametrize(
    ("version", "rendered"),
    [
        ("0.10.0", "--max_input_len 2048 --max_output_len 2048"),
        ("0.11.0", "--max_input_len 2048 --max_seq_len 4096"),
        ("0.12.0", "--max_input_len 2048 --max_seq_len 4096"),
        ("1.2.1", "--max_input_len 2048 --max_seq_len 4096"),
    ],
)
def test_lengths_are_spelled_as_the_release_spells_them(version: str, rendered: str) -> None:
    assert " ".join(length_flags(version, 2048, 2048)) == rendered


def test_a_release_without_trtllm_build_has_no_spelling_of_lengths() -> None:
    with pytest.raises(UsageError) as error:
        length_flags("1.4.0rc1", 2048, 2048)
    assert error.value.code == "ENGINE_BACKEND_REMOVED"


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("--max_output_len", "limits.max_seq_len"),
        ("--world_size", "parallelism.tensor"),
        ("--use_custom_all_reduce", "0.12.0"),
        ("--multi_block_mode", "run time"),
        ("--context_fmha_fp32_acc", "bert_context_fmha_fp32_acc"),
        ("--enable_context_fmha", "engine.context_fmha"),
        ("--use_gpt_attention_plugin", "engine.gpt_attention_plugin"),
        ("--use_gemm_plugin", "engine.gemm_plugin"),
        ("--use_inflight_batching", "leave it out"),
        ("--paged_kv_cache", "engine.kv_cache_type"),
        ("--enable_xqa", "0.16.0"),
        ("--builder_opt", "0.14.0"),
        ("--strongly_typed", "0.11.0"),
        ("--auto_parallel", "parallelism.tensor"),
        ("--gpus_per_node", "leave it out"),
        ("--cluster_key", "leave it out"),
        ("--use_fused_mlp", "bare"),
        ("--rotary_scaling", "configuration"),
        ("--gather_generation_logits", "leave it out"),
        ("--tokens_per_block", "128"),
        ("--use_paged_context_fmha", "default"),
        ("--parallel_build", "itself"),
        ("--lookup_plugin", "leave it out"),
        ("--extra_llm_api_options", "llm_args"),
        ("use_embedding_sharing", "0.16.0"),
        ("padding_enabled", "enable_padding"),
    ],
)
def test_an_old_option_gets_a_message_that_says_what_to_do(word: str, says: str) -> None:
    message = migration(word)
    assert message is not None
    assert says in message


@pytest.mark.parametrize(
    ("word", "field"),
    [
        ("--use_weight_only", "int8-wo"),
        ("--qformat", "precision.weights: fp8"),
        ("--int8_kv_cache", "precision.kv_cache: int8"),
        ("--tp_size", "parallelism.tensor"),
        ("--kv_cache_free_gpu_memory_fraction", "serving.kv_cache_free_gpu_mem_fraction"),
        ("quantization_type", "precision.weights"),
        ("tensor_parallel_count", "parallelism.tensor"),
        ("NIM_MAX_MODEL_LEN", "limits.max_seq_len"),
        ("--max-model-len", "limits.max_seq_len"),
    ],
)
def test_words_of_other_tools_name_the_field_of_a_recipe(word: str, field: str) -> None:
    message = migration(word)
    assert message is not None
    assert field in message


def test_a_word_that_nobody_used_has_no_message() -> None:
    assert migration("frobnicate") is None
    assert migration("") is None


def test_a_change_of_which_only_the_latest_release_is_known_says_by() -> None:
    exact, unsure = migration("enable_xqa"), migration("use_gemm_plugin")
    assert exact is not None
    assert unsure is not None
    assert " in TensorRT-LLM 0.16.0" in exact
    assert " by TensorRT-LLM 0.8.0" in unsure


def test_the_history_is_in_the_order_of_releases_and_names_no_option_twice_for_one_tool() -> None:
    changes = [(change.tool, change.name) for change in flag_history()]
    assert len(changes) == len(set(changes))
    assert flag_history()[0].version == "0.8.0"


def test_one_command_line_with_four_schemes_is_told_apart() -> None:
    words = [
        "--use_weight_only",
        "--weight_only_precision int8",
        "--smoothquant 0.5",
        "--per_token",
        "--per_channel",
        "--int8_kv_cache",
        "--group_size 128",
    ]
    schemes = quantization_schemes(words)
    assert schemes == {
        "weight-only": ("use_weight_only", "weight_only_precision"),
        "smoothquant": ("smoothquant", "per_token", "per_channel"),
        "int8-kv-cache": ("int8_kv_cache",),
        "grouped": ("group_size",),
    }
    assert len(schemes.keys() - KV_SCHEMES) > 1


@pytest.mark.parametrize("value", [["--weight_only_precision int4_gptq"], ["--weight_only_precision", "int4_gptq"]])
def test_a_gptq_command_line_asks_for_one_scheme(value: list[str]) -> None:
    schemes = quantization_schemes(["--use_weight_only", *value, "--per_group", "--group_size=128"])
    assert list(schemes) == ["grouped"]


def test_the_value_of_qformat_says_the_scheme() -> None:
    assert quantization_schemes(["--qformat", "int8_sq", "--kv_cache_dtype", "fp8"]) == {
        "smoothquant": ("qformat",),
        "fp8-kv-cache": ("kv_cache_dtype",),
    }


def test_options_without_a_scheme_ask_for_none() -> None:
    assert quantization_schemes(["--tp_size", "2", "--dtype float16"]) == {}
