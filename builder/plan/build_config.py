"""What an engine is compiled with, as TensorRT-LLM's BuildConfig has it."""

from __future__ import annotations

from typing import Any

from builder import catalog
from builder.plan.unit import Unit

TOOL = "trtllm-build"
_PLUGIN_CONFIG = ("plugin", "feature")
"""Groups of the flag table whose options are fields of PluginConfig."""


def build_config(unit: Unit) -> dict[str, Any]:
    """The values of BuildConfig that a unit sets: limits, options, LoRA and speculative decoding. All are JSON.

    Options that the recipe takes from trtllm-build have its words for them, those of plugins lie in `plugin_config`.
    Lengths are as the recipe has them: TensorRT-LLM itself adds room for guessed tokens. `use_paged_context_fmha` is
    what it becomes under this precision, so that engine and model repository can't disagree about KV reuse.
    The engine of `cpu` takes the limits alone.
    """
    limits = unit.limits
    config: dict[str, Any] = {
        "max_batch_size": limits.max_batch_size,
        "max_input_len": unit.max_input_len,
        "max_seq_len": unit.max_seq_len,
        "max_num_tokens": limits.max_num_tokens,
        "opt_num_tokens": limits.opt_num_tokens,
        "max_beam_width": limits.max_beam_width,
        "plugin_config": {},
    }
    if unit.gpu.is_cpu:
        return config
    options, plugins = _options(unit)
    plugins["use_paged_context_fmha"] = unit.paged_context_fmha
    if speculative := unit.settings.speculative:
        config |= {"speculative_decoding_mode": speculative.mode, "max_draft_len": speculative.max_draft_len}
    if lora := unit.settings.lora:
        plugins.setdefault("lora_plugin", "auto")
        config["lora_config"] = {
            "lora_ckpt_source": "hf",
            "max_lora_rank": lora.max_rank,
            "lora_target_modules": list(lora.target_modules),
        }
    return config | options | {"plugin_config": plugins}


def _options(unit: Unit) -> tuple[dict[str, Any], dict[str, Any]]:
    """The recipe's options of trtllm-build: those of BuildConfig itself, and those of its plugin_config."""
    options: dict[str, Any] = {}
    plugins: dict[str, Any] = {}
    if not unit.settings.engine or not unit.toolchain.version:
        return options, plugins  # the reference toolchain has none; a cpu target may share its recipe's
    table = catalog.flags(TOOL, unit.toolchain.version)
    for name, value in unit.settings.engine.items():
        flag = table[name]
        if flag.type in ("enable", "switch"):
            value = value in (True, "enable")
        elif flag.group == "plugin" and value in (False, "disable"):
            value = None  # so in PluginConfig
        (plugins if flag.group in _PLUGIN_CONFIG else options)[name] = value
    return options, plugins
