from importlib.resources import files

import pytest
import yaml

from builder import catalog
from builder.catalog import flag_state, flags, llm_args
from builder.catalog.flags import TOOLS
from builder.errors import UsageError

BUILD = """
checkpoint_dir model_config build_config model_cls_file model_cls_name output_dir max_batch_size max_input_len
max_seq_len max_beam_width max_num_tokens opt_num_tokens max_encoder_input_len max_prompt_embedding_table_size
kv_cache_type paged_kv_cache input_timing_cache output_timing_cache profiling_verbosity strip_plan
weight_sparsity weight_streaming fast_build workers log_level enable_debug_output dry_run monitor_memory
visualize_network logits_dtype gather_context_logits gather_all_token_logits gather_generation_logits lora_dir
lora_ckpt_source lora_target_modules max_lora_rank speculative_decoding_mode max_draft_len bert_attention_plugin
gpt_attention_plugin gemm_plugin gemm_swiglu_plugin fp8_rowwise_gemm_plugin lora_plugin dora_plugin moe_plugin
mamba_conv1d_plugin nccl_plugin low_latency_gemm_plugin low_latency_gemm_swiglu_plugin gemm_allreduce_plugin
context_fmha bert_context_fmha_fp32_acc remove_input_padding tokens_per_block use_paged_context_fmha
use_fp8_context_fmha fuse_fp4_quant multiple_profiles paged_state streamingllm norm_quant_fusion reduce_fusion
user_buffer use_fused_mlp pp_reduce_scatter
"""
QUANTIZE = """
model_dir nemo_ckpt_path decoder_type device device_map qformat kv_cache_dtype dtype calib_dataset calib_size
calib_max_seq_length batch_size calib_tp_size calib_pp_size awq_block_size tp_size pp_size cp_size output_dir seed
tokenizer_max_seq_length quantize_lm_head autoq_format auto_quantize_bits export_format num_medusa_heads
num_medusa_layers max_draft_len medusa_hidden_act medusa_model_dir quant_medusa_head
"""
LLAMA = """
model_dir meta_ckpt_dir output_dir dtype tp_size pp_size cp_size moe_tp_size moe_ep_size use_weight_only
weight_only_precision disable_weight_only_quant_plugin smoothquant per_channel per_token per_group int8_kv_cache
fp8_kv_cache use_fp8 use_nvfp4 use_fp8_rowwise use_meta_fp8_rowwise_recipe use_qserve quant_ckpt_path group_size
calib_dataset calib_size calib_max_seq_length use_parallel_embedding embedding_sharding_dim load_by_shard
load_model_on_cpu workers vocab_size n_positions n_layer n_head n_kv_head n_embd inter_size multiple_of
ffn_dim_multiplier rms_norm_eps rotary_base hidden_act moe_num_experts moe_top_k moe_renorm_mode save_config_only
remove_duplicated_kv_heads log_level
"""
LLM_TOP = """
model tokenizer tokenizer_mode skip_tokenizer_init trust_remote_code dtype revision tokenizer_revision
tensor_parallel_size pipeline_parallel_size context_parallel_size gpus_per_node moe_cluster_parallel_size
moe_tensor_parallel_size moe_expert_parallel_size enable_attention_dp enable_lm_head_tp_in_adp cp_config load_format
fail_fast_on_attention_window_too_large enable_lora lora_config enable_chunked_prefill guided_decoding_backend
iter_stats_max_iterations request_stats_max_iterations peft_cache_config sparse_attention_config speculative_config
max_batch_size max_input_len max_seq_len max_beam_width max_num_tokens gather_generation_logits num_postprocess_workers
postprocess_tokenizer_dir reasoning_parser return_perf_metrics orchestrator_type backend
garbage_collection_gen0_threshold disable_overlap_scheduler attn_backend sampler_type enable_iter_perf_stats
enable_iter_req_stats print_iter_log perf_metrics_max_requests batch_wait_timeout_ms batch_wait_timeout_iters
batch_wait_max_tokens_ratio enable_autotuner enable_layerwise_nvtx_marker enable_min_latency stream_interval
force_dynamic_quantization allreduce_strategy checkpoint_format kv_connector_config mm_encoder_only
ray_worker_extension_cls
"""
KV_CACHE = """
enable_block_reuse max_tokens max_attention_window sink_token_length free_gpu_memory_fraction host_cache_size
onboard_blocks cross_kv_cache_fraction secondary_offload_min_priority event_buffer_max_size enable_partial_reuse
copy_on_partial_reuse use_uvm max_gpu_total_bytes dtype mamba_ssm_cache_dtype tokens_per_block
attention_dp_events_gather_period_ms
"""


@pytest.mark.parametrize("tool", TOOLS)
def test_every_table_names_its_sources_with_their_dates(tool: str) -> None:
    sources = yaml.safe_load(files(catalog).joinpath(f"flags/{tool}.yaml").read_text())["sources"]
    assert sources
    for source in sources:
        assert source.keys() == {"fact", "source", "date"}


@pytest.mark.parametrize("version", ["1.2.0", "1.2.1"])
def test_trtllm_build_of_1_2_has_exactly_these_options(version: str) -> None:
    assert flags("trtllm-build", version).keys() == set(BUILD.split())


@pytest.mark.parametrize("version", ["0.20.0", "0.21.0"])
def test_trtllm_build_of_0_2x_has_automatic_parallelism_as_well(version: str) -> None:
    assert flags("trtllm-build", version).keys() == {*BUILD.split(), "auto_parallel", "gpus_per_node", "cluster_key"}


def test_quantize_has_exactly_these_options() -> None:
    assert flags("quantize", "1.2.1").keys() == set(QUANTIZE.split())


def test_the_converter_of_llama_has_exactly_these_options() -> None:
    assert flags("convert_checkpoint/llama", "1.2.1").keys() == set(LLAMA.split())


def test_the_converter_of_qwen_has_the_core_of_llamas() -> None:
    missing = set(LLAMA.split()) - flags("convert_checkpoint/qwen", "1.2.1").keys()
    assert {"meta_ckpt_dir", "use_fp8", "use_nvfp4", "use_qserve", "fp8_kv_cache", "vocab_size"} <= missing
    assert flags("convert_checkpoint/qwen", "1.2.1").keys() <= set(LLAMA.split())


def test_the_converter_of_gemma_splits_tensors_only() -> None:
    table = flags("convert_checkpoint/gemma", "1.2.1")
    assert "world-size" in table
    assert "pp_size" not in table
    assert table["weight_only_precision"].choices == ("int8", "int4", "w4a8_awq", "w4a16_awq")


def test_the_llm_class_of_1_2_has_these_arguments() -> None:
    table = llm_args("1.2.1")
    top = {name for name in table if "." not in name} - {"batched_logits_processor"}
    assert top == set(LLM_TOP.split())
    nested = {name.removeprefix("kv_cache_config.") for name in table if name.startswith("kv_cache_config.")}
    assert nested == set(KV_CACHE.split())


@pytest.mark.parametrize(
    ("name", "type_", "default"),
    [
        ("max_batch_size", "int", 2048),
        ("max_num_tokens", "int", 8192),
        ("max_seq_len", "int", None),
        ("max_beam_width", "int", 1),
        ("multiple_profiles", "enable", "disable"),
        ("use_paged_context_fmha", "enable", "enable"),
        ("tokens_per_block", "int", 32),
        ("gpt_attention_plugin", "choice", "auto"),
        ("strip_plan", "switch", None),
        ("lora_target_modules", "strings", None),
    ],
)
def test_options_have_a_type_and_a_default(name: str, type_: str, default: object) -> None:
    flag = flags("trtllm-build", "1.2.1")[name]
    assert (flag.type, flag.default) == (type_, default)


def test_plugins_take_dtypes_and_the_gemm_plugin_fp8_and_nvfp4_too() -> None:
    table = flags("trtllm-build", "1.2.1")
    dtypes = {"auto", "float16", "float32", "bfloat16", "int32", "disable"}
    assert set(table["moe_plugin"].choices) == dtypes
    assert set(table["gemm_plugin"].choices) == dtypes | {"fp8", "nvfp4"}


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("max_batch_size", "limits.max_batch_size"),
        ("max_seq_len", "limits.max_seq_len"),
        ("opt_num_tokens", "limits.opt_num_tokens"),
        ("max_lora_rank", "lora.max_rank"),
        ("speculative_decoding_mode", "speculative.mode"),
        ("checkpoint_dir", "engine-builder sets it itself"),
        ("input_timing_cache", "engine-builder sets it itself"),
        ("kv_cache_type", None),
        ("multiple_profiles", None),
    ],
)
def test_options_that_a_recipe_sets_elsewhere_are_reserved(name: str, field: str | None) -> None:
    assert flags("trtllm-build", "1.2.1")[name].reserved_by == field


def test_a_choice_names_its_choices_and_its_default_is_one_of_them() -> None:
    for tool in TOOLS:
        table = yaml.safe_load(files(catalog).joinpath(f"flags/{tool}.yaml").read_text())["flags"]
        for name, entry in table.items():
            assert ("choices" in entry) == (entry["type"] == "choice"), (tool, name)
            assert "choices" not in entry or entry.get("default", entry["choices"][0]) in entry["choices"], (tool, name)


def test_what_no_source_tells_of_a_release_is_unknown_and_not_in_its_table() -> None:
    assert flag_state("trtllm-build", "auto_parallel", "1.0.0") == "unknown"
    assert "auto_parallel" not in flags("trtllm-build", "1.0.0")
    assert flag_state("convert_checkpoint/phi", "tp_size", "1.2.1") == "unknown"
    assert flag_state("llm_args", "moe_config.backend", "1.0.0") == "unknown"
    assert flag_state("llm_args", "moe_config.backend", "1.4.0rc4") == "unknown"


def test_stable_arguments_are_known_from_1_0_on_and_others_where_confirmed() -> None:
    assert flag_state("llm_args", "max_batch_size", "1.4.0rc4") == "known"
    assert flag_state("llm_args", "tensor_parallel_size", "1.0.0") == "known"
    assert flag_state("llm_args", "tensor_parallel_size", "1.4.0rc4") == "known"
    assert flag_state("llm_args", "pp_partition", "1.2.1") == "absent"
    assert flag_state("llm_args", "pp_partition", "1.4.0rc4") == "known"


def test_an_option_that_is_gone_or_never_was_is_absent() -> None:
    assert flag_state("trtllm-build", "cluster_key", "1.2.1") == "absent"
    assert flag_state("trtllm-build", "max_output_len", "1.2.1") == "absent"


def test_the_tools_of_the_engine_flow_have_no_options_after_its_removal() -> None:
    assert flags("trtllm-build", "1.3.0rc20")
    assert not flags("trtllm-build", "1.3.0rc21")
    assert flag_state("quantize", "qformat", "1.4.0rc1") == "absent"


def test_other_spellings_are_known_and_mean_the_same() -> None:
    assert flag_state("trtllm-build", "max_decoder_seq_len", "1.2.1") == "known"
    assert catalog.canonical_flag("trtllm-build", "max_decoder_seq_len") == "max_seq_len"


def test_a_tool_without_a_table_is_an_error_that_lists_those_with_one() -> None:
    with pytest.raises(UsageError) as error:
        flags("trtllm-bench", "1.2.1")
    assert "trtllm-build" in str(error.value.hint)
