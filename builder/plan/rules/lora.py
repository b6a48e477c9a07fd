"""Rules on LoRA adapters: an engine is built for ranks, modules and a dtype, and adapters must fit it.

Module names: LoraManager.LORA_MODULE_IDS in NVIDIA/TensorRT-LLM tensorrt_llm/lora_manager.py, releases 0.20 to 1.2; how
Hugging Face's names map to them: examples/hf_lora_convert.py. Of adapters the plan knows what the lock has copied:
adapter_config.json, and the dtypes of the tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from builder import catalog
from builder.lock import PinnedModel, model_key
from builder.plan.findings import Problem, rule
from builder.plan.rules.alternatives import listed
from builder.plan.rules.conditions import asked, compiles, runs_tensorrt_llm, switched_on
from builder.plan.unit import Unit

_TARGETS = ("lora", "target_modules")
_LORA_PLUGIN = ("engine", "lora_plugin")

MODULES = (
    *("attn_qkv", "attn_q", "attn_k", "attn_v", "attn_dense", "mlp_h_to_4h", "mlp_4h_to_h", "mlp_gate"),
    *("cross_attn_qkv", "cross_attn_q", "cross_attn_k", "cross_attn_v", "cross_attn_dense"),
    *("moe_h_to_4h", "moe_4h_to_h", "moe_gate", "moe_router", "mlp_router", "mlp_gate_up"),
)
"""What an engine can adapt, in the order of TensorRT-LLM's module ids."""

_OF_HUGGING_FACE = {
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "qkv_proj": "attn_qkv",
    "query_key_value": "attn_qkv",
    "o_proj": "attn_dense",
    "dense": "attn_dense",
    "gate_proj": "mlp_h_to_4h",
    "up_proj": "mlp_gate",
    "gate_up_proj": "mlp_h_to_4h",
    "down_proj": "mlp_4h_to_h",
    "c_fc": "mlp_h_to_4h",
    "c_proj": "mlp_4h_to_h",
    "w1": "moe_h_to_4h",
    "w2": "moe_4h_to_h",
    "w3": "moe_gate",
    "gate": "moe_router",
}


def _adapters(unit: Unit) -> Iterator[tuple[int, str, PinnedModel]]:
    """The adapters of a unit that the lock has: index and name in the recipe, and what is known of them."""
    for index, adapter in enumerate(unit.settings.lora.adapters if unit.settings.lora else ()):
        pinned = unit.lock.models.get(model_key(adapter.source, adapter.revision))
        if pinned is not None and runs_tensorrt_llm(unit):
            yield index, adapter.name, pinned


def _at(index: int) -> tuple[str | int, ...]:
    return ("lora", "adapters", index)


@rule("LORA_PLUGIN", "refuse")
def adapters_have_the_plugin(unit: Unit) -> Iterator[Problem]:
    """Adapters need lora_plugin in the engine, and lora_plugin needs to be told of adapters."""
    plugin, lora = asked(unit, "lora_plugin"), unit.settings.lora
    if plugin is None:
        return
    if lora is not None and plugin == "disable":
        yield Problem(
            "lora_plugin: disable builds an engine that takes no adapters, and the recipe has a section lora",
            _LORA_PLUGIN,
            "remove lora_plugin: it is switched on by lora",
        )
    elif lora is None and plugin != "disable":
        yield Problem(
            f"lora_plugin {plugin} needs a section lora: without target modules the engine adapts nothing",
            _LORA_PLUGIN,
            "write lora: {max_rank: …, target_modules: [attn_q, attn_v]}, or remove lora_plugin",
        )
    elif plugin not in ("auto", "disable", unit.dtype):
        yield Problem(
            f"lora_plugin {plugin} differs from the model's {unit.dtype}: adapters are computed in another format",
            _LORA_PLUGIN,
            "write lora_plugin: auto, or leave it out",
        )


@rule("LORA_TARGET_MODULES", "refuse")
def target_modules_are_known(unit: Unit) -> Iterator[Problem]:
    """Target modules have TensorRT-LLM's names, and an engine needs some."""
    lora = unit.settings.lora
    if lora is None or not runs_tensorrt_llm(unit):
        return
    for index, name in enumerate(lora.target_modules):
        if name not in MODULES:
            other = _OF_HUGGING_FACE.get(name)
            yield Problem(
                f"{name} isn't a module that TensorRT-LLM can adapt",
                (*_TARGETS, index),
                f"write {other}, TensorRT-LLM's name of it" if other else catalog.did_you_mean(name, MODULES),
                {"valid_modules": list(MODULES)} | ({"becomes": other} if other else {}),
            )
    if not lora.target_modules and compiles(unit):
        used = sorted({one for _, _, pinned in _adapters(unit) for one in _modules(pinned.config)})
        yield Problem(
            "lora.target_modules is empty: the engine would adapt nothing",
            ("lora",),
            f"write target_modules: [{', '.join(used or ('attn_q', 'attn_k', 'attn_v'))}]",
            {"adapter_modules": used},
        )


@rule("LORA_RANK", "refuse")
def ranks_fit_the_engine(unit: Unit) -> Iterator[Problem]:
    """The rank of every adapter is at most lora.max_rank, for which the engine reserves memory."""
    lora = unit.settings.lora
    if lora is None:
        return
    for index, name, pinned in _adapters(unit):
        rank = _rank(pinned.config)
        if rank > lora.max_rank:
            yield Problem(
                f"the adapter {name} has rank {rank}, and the engine takes up to lora.max_rank {lora.max_rank}",
                ("lora", "max_rank"),
                f"write max_rank: {rank}",
                {"rank": rank, "max_rank": lora.max_rank, "adapter": index},
            )


def _rank(config: Mapping[str, Any]) -> int:
    """The largest rank that an adapter_config.json names; 0 where it names none."""
    pattern = config.get("rank_pattern")
    ranks = [config.get("r"), *(pattern.values() if isinstance(pattern, Mapping) else ())]
    return max((rank for rank in ranks if type(rank) is int), default=0)


@rule("LORA_ADAPTER_MODULES", "refuse")
def adapters_change_built_modules(unit: Unit) -> Iterator[Problem]:
    """Modules that an adapter changes are among the engine's target modules, or its changes there are lost."""
    lora = unit.settings.lora
    if lora is None or not lora.target_modules:
        return
    for index, name, pinned in _adapters(unit):
        missing = [module for module in _modules(pinned.config) if module not in lora.target_modules]
        if missing:
            yield Problem(
                f"the adapter {name} changes {listed(missing, 'and')}, which lora.target_modules doesn't have",
                _at(index),
                f"add {listed(missing, 'and')} to lora.target_modules",
                {"missing_modules": missing},
            )
        unknown = [module for module in _named(pinned.config) if module not in _OF_HUGGING_FACE]
        if unknown:
            yield Problem(
                f"the adapter {name} changes {listed(unknown, 'and')}, which TensorRT-LLM can't adapt",
                _at(index),
                "train the adapter without these modules, or merge it into the weights",
                {"unknown_modules": unknown},
            )


def _named(config: Mapping[str, Any]) -> list[str]:
    """The modules that an adapter_config.json lists, as Hugging Face names them; a pattern can't be looked up."""
    targets = config.get("target_modules")
    return sorted({str(target).rpartition(".")[2] for target in targets}) if isinstance(targets, list) else []


def _modules(config: Mapping[str, Any]) -> list[str]:
    """The same in TensorRT-LLM's names, those that have one, each once."""
    return list(dict.fromkeys(_OF_HUGGING_FACE[name] for name in _named(config) if name in _OF_HUGGING_FACE))


@rule("LORA_ADAPTER_KIND", "refuse")
def adapters_are_lora(unit: Unit) -> Iterator[Problem]:
    """Of PEFT's adapters only LoRA is served, and DoRA where dora_plugin is on."""
    for index, name, pinned in _adapters(unit):
        kind = pinned.config.get("peft_type")
        if isinstance(kind, str) and kind.upper() != "LORA":
            yield Problem(f"the adapter {name} is {kind}, not LORA", _at(index), "merge it into the weights")
        elif pinned.config.get("use_dora") is True and compiles(unit) and not switched_on(unit, "dora_plugin"):
            yield Problem(
                f"the adapter {name} is a DoRA adapter, and the engine is built without dora_plugin",
                _at(index),
                "write engine: {dora_plugin: true}",
            )


@rule("DORA_PLUGIN_UNUSED", "warn")
def dora_has_adapters(unit: Unit) -> Iterator[Problem]:
    """dora_plugin works on adapters; without a section lora it has no effect."""
    if switched_on(unit, "dora_plugin") and unit.settings.lora is None:
        yield Problem("dora_plugin has no effect without a section lora", ("engine", "dora_plugin"), "remove it")


@rule("LORA_DTYPE", "warn")
def adapters_have_the_dtype_of_the_model(unit: Unit) -> Iterator[Problem]:
    """An adapter in another dtype than the model is rounded when it is converted; unconverted it may be ignored."""
    stored = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}[unit.dtype]
    for index, name, pinned in _adapters(unit):
        dtypes = sorted(pinned.tensors.dtypes) if pinned.tensors else []
        if dtypes and dtypes != [stored]:
            yield Problem(
                f"the adapter {name} is stored as {listed(dtypes, 'and')}, and the model computes in {unit.dtype}: it "
                "will be rounded",
                _at(index),
                f"measure its quality, or train it in {unit.dtype}",
                {"becomes": unit.dtype},
            )


@rule("LORA_NAME", "refuse")
def adapter_names_are_free(unit: Unit) -> Iterator[Problem]:
    """Requests choose an adapter by its name, which is neither another adapter's nor the model's."""
    lora = unit.settings.lora
    if lora is None or not lora.adapters:
        return
    taken = {unit.served_model_name}
    for index, adapter in enumerate(lora.adapters):
        if adapter.name in taken:
            yield Problem(
                f"the adapter name {adapter.name} is taken: it is that of "
                + ("the model itself" if adapter.name == unit.served_model_name else "another adapter"),
                (*_at(index), "name"),
                "give it another name",
            )
        taken.add(adapter.name)
