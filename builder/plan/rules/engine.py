"""Rules on plugins and modes of trtllm-build: what it switches off or on by itself, and what fails hours later.

Source: NVIDIA/TensorRT-LLM tensorrt_llm/builder.py and tensorrt_llm/plugin/plugin.py, releases 0.20 to 1.2; advice from
its docs/source/performance/performance-tuning-guide/useful-build-time-flags.md.
"""

from __future__ import annotations

from collections.abc import Iterator

from builder.catalog.versions import parse
from builder.plan.findings import Problem, rule
from builder.plan.rules.alternatives import described
from builder.plan.rules.conditions import asked, compiles, switched_on
from builder.plan.unit import Unit

_NOT_ON_SM_100 = (
    "gemm_swiglu_plugin",
    "fp8_rowwise_gemm_plugin",
    "low_latency_gemm_plugin",
    "low_latency_gemm_swiglu_plugin",
    "bert_context_fmha_fp32_acc",
)
_NOT_HOPPER = ("8.9", "12.0", "12.1")
_SWIGLU = ("gemm_swiglu_plugin", "low_latency_gemm_swiglu_plugin")
_DEPRECATED = {
    "paged_kv_cache": "kv_cache_type: paged is the default",
    "gather_generation_logits": "requests ask for logits, no build option is needed",
}


@rule("PLUGIN_NOT_ON_BLACKWELL", "refuse")
def plugins_exist_on_the_gpu(unit: Unit) -> Iterator[Problem]:
    """Plugins written for Hopper raise NotImplementedError when an engine is built for SM 10.0."""
    if not unit.settings.engine or unit.gpu.compute_capability not in ("10.0", "10.3"):
        return
    checked = unit.gpu.compute_capability == "10.0"
    for option in _NOT_ON_SM_100:
        if switched_on(unit, option):
            yield Problem(
                f"trtllm-build has no {option} for {described(unit.gpu)}"
                + ("" if checked else ": it refuses it for SM 10.0, and no source says that SM 10.3 differs"),
                ("engine", option),
                f"remove {option}",
                {"becomes": "disable", "sku_sm": unit.gpu.compute_capability},
                None if checked else "refuse-waivable",
            )


@rule("SWIGLU_PLUGIN", "refuse")
def swiglu_plugins_have_what_they_fuse(unit: Unit) -> Iterator[Problem]:
    """The fused SwiGLU plugins need use_fused_mlp and FP8 weights; gemm_swiglu is written for Hopper."""
    for option in _SWIGLU if unit.settings.engine else ():
        if not switched_on(unit, option):
            continue
        if unit.precision.quant_algo != "FP8":
            needs = f"fp8 weights, not {unit.precision.name}"
        elif asked(unit, "use_fused_mlp") == "disable":
            needs = "use_fused_mlp: enable"
        elif option == "gemm_swiglu_plugin" and unit.gpu.compute_capability in _NOT_HOPPER:
            needs = f"SM 9.0 (Hopper), not {described(unit.gpu)}"
        else:
            continue
        yield Problem(f"{option} needs {needs}", ("engine", option), f"remove {option}", {"becomes": "disable"})


@rule("LOW_LATENCY_GEMM_UNUSED", "warn")
def low_latency_gemm_has_fp8(unit: Unit) -> Iterator[Problem]:
    """low_latency_gemm_plugin multiplies FP8 matrices; other weights never come to it."""
    if switched_on(unit, "low_latency_gemm_plugin") and unit.precision.quant_algo != "FP8":
        yield Problem(
            f"low_latency_gemm_plugin has no effect: it multiplies fp8 matrices, the weights are {unit.precision.name}",
            ("engine", "low_latency_gemm_plugin"),
            "remove it, or use fp8 weights",
        )


@rule("PP_REDUCE_SCATTER", "refuse")
def reduce_scatter_is_for_mixtral(unit: Unit) -> Iterator[Problem]:
    """pp_reduce_scatter is an assertion error for any model but Mixtral."""
    if switched_on(unit, "pp_reduce_scatter") and unit.spec.architecture != "MixtralForCausalLM":
        yield Problem(
            f"pp_reduce_scatter works for MixtralForCausalLM only, not for {unit.spec.architecture}",
            ("engine", "pp_reduce_scatter"),
            "remove it",
            {"becomes": "disable"},
        )


@rule("STREAMINGLLM", "refuse")
def streamingllm_exists(unit: Unit) -> Iterator[Problem]:
    """TensorRT-LLM 1.x raises an assertion error for streamingllm."""
    if switched_on(unit, "streamingllm") and unit.toolchain.version and parse(unit.toolchain.version).major >= 1:
        yield Problem(
            f"{unit.toolchain.name} builds nothing with streamingllm: its builder stops at it",
            ("engine", "streamingllm"),
            "remove it; for long conversations use serving.enable_kv_cache_reuse",
            {"becomes": "disable"},
        )


@rule("WEIGHT_STREAMING", "refuse")
def streamed_weights_are_outside_plugins(unit: Unit) -> Iterator[Problem]:
    """weight_streaming needs gemm_plugin: disable, since weights of plugins can't be streamed."""
    if not switched_on(unit, "weight_streaming"):
        return
    plugin = asked(unit, "gemm_plugin")
    if plugin == "disable" or (plugin is None and unit.precision.quant_algo != "NVFP4"):
        return
    found = f"it is {plugin}" if plugin else "it becomes nvfp4 for these weights unless the recipe says otherwise"
    yield Problem(
        f"weight_streaming needs gemm_plugin: disable, and {found}; weights of plugins can't be streamed",
        ("engine", "weight_streaming"),
        "write gemm_plugin: disable",
        {"becomes": "disable"},
    )


@rule("FAST_BUILD", "refuse")
def fast_build_keeps_weights_of_plugins(unit: Unit) -> Iterator[Problem]:
    """fast_build manages weights outside the engine, which fails for INT8 layers that are no plugins."""
    if switched_on(unit, "fast_build") and unit.precision.quant_algo == "W8A8_SQ_PER_CHANNEL":
        yield Problem(
            f"fast_build can't keep {unit.precision.name} weights outside the engine: they are int8 without a plugin",
            ("engine", "fast_build"),
            "remove fast_build",
            {"becomes": "disable"},
        )


@rule("STRIPPED_PLAN", "refuse-waivable")
def engine_holds_its_weights(unit: Unit) -> Iterator[Problem]:
    """strip_plan makes an engine without weights, which can't be served before trtllm-refit puts them back."""
    if not switched_on(unit, "strip_plan"):
        return
    also = ", and refitting INT8 layers isn't possible at all" if unit.precision.scheme == "smoothquant" else ""
    yield Problem(
        f"strip_plan leaves the weights out of the engine: it serves nothing before trtllm-refit has run{also}",
        ("engine", "strip_plan"),
        "remove strip_plan; if something refits the engine where it is served, waive STRIPPED_PLAN and say what",
    )


@rule("NCCL_PLUGIN_OFF", "warn")
def nccl_has_several_gpus(unit: Unit) -> Iterator[Problem]:
    """nccl_plugin is switched off where there is one rank only."""
    if unit.settings.engine and unit.ranks == 1 and switched_on(unit, "nccl_plugin"):
        yield Problem(
            f"nccl_plugin {asked(unit, 'nccl_plugin')} will be switched off: there is one rank, and nobody to talk to",
            ("engine", "nccl_plugin"),
            "remove it: it is on by default where there are several ranks",
            {"becomes": "disable"},
        )


@rule("DEPRECATED_OPTION", "warn")
def options_are_still_wanted(unit: Unit) -> Iterator[Problem]:
    """Options that trtllm-build still takes, warns about and doesn't need."""
    for option, instead in _DEPRECATED.items() if unit.settings.engine else ():
        if asked(unit, option) is not None:
            yield Problem(f"{option} is deprecated: {instead}", ("engine", option), f"remove {option}")


@rule("GEMM_PLUGIN_FP8", "warn")
def gemm_plugin_suits_fp8(unit: Unit) -> Iterator[Problem]:
    """With FP8 weights TensorRT's own matrix products are faster: the advice is gemm_plugin: disable."""
    plugin = asked(unit, "gemm_plugin")
    if plugin not in (None, "disable", "fp8") and unit.precision.quant_algo == "FP8":
        yield Problem(
            f"gemm_plugin {plugin} makes an engine of fp8 weights slower: NVIDIA advises against it for FP8",
            ("engine", "gemm_plugin"),
            "write gemm_plugin: disable, or leave it out",
        )


@rule("GEMM_PLUGIN_NVFP4", "warn")
def gemm_plugin_suits_nvfp4(unit: Unit) -> Iterator[Problem]:
    """For NVFP4 weights gemm_plugin becomes nvfp4 unless it is disabled."""
    plugin = asked(unit, "gemm_plugin")
    if plugin not in (None, "disable", "nvfp4") and unit.precision.quant_algo == "NVFP4":
        yield Problem(
            f"gemm_plugin {plugin} will become nvfp4, as the weights are",
            ("engine", "gemm_plugin"),
            "write gemm_plugin: nvfp4, or leave it out",
            {"becomes": "nvfp4"},
        )


@rule("INFLIGHT_BATCHING", "refuse")
def engine_can_batch_in_flight(unit: Unit) -> Iterator[Problem]:
    """Triton serves with in-flight batching: that needs the attention plugin, packed prompts and a paged KV cache.

    Source: NVIDIA/TensorRT-LLM docs/source/advanced/gpt-attention.md (in-flight batching).
    """
    if not unit.settings.engine or not compiles(unit):
        return
    options = unit.engine_options
    needed = {"gpt_attention_plugin": "disable", "remove_input_padding": "disable", "paged_kv_cache": "disable"}
    wrong = [option for option, off in needed.items() if options.get(option) == off]
    wrong += ["kv_cache_type"] if options.get("kv_cache_type", "paged") != "paged" else []
    for option in wrong:
        yield Problem(
            f"{option}: {options[option]} makes an engine that can't batch requests in flight, as Triton serves it",
            ("engine", option),
            f"remove {option}",
        )


@rule("MODEL_CLASS", "refuse")
def model_class_has_file_and_name(unit: Unit) -> Iterator[Problem]:
    """A model class of one's own is named by file and name together."""
    pair = ("model_cls_file", "model_cls_name")
    given = [option for option in pair if asked(unit, option) is not None]
    if len(given) == 1:
        missing = next(option for option in pair if option not in given)
        yield Problem(f"{given[0]} has no effect without {missing}", ("engine", given[0]), f"write {missing} too")
