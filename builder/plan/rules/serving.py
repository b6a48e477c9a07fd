"""Rules on serving: what Triton's models and TensorRT-LLM's runtime take, and what they would ignore.

Sources: triton-inference-server/tensorrtllm_backend all_models/inflight_batcher_llm (0.19 to 1.2) and
docs/llmapi.md; NVIDIA/TensorRT-LLM docs/source/advanced/kv-cache-reuse.md.
"""

from __future__ import annotations

from collections.abc import Iterator

from builder.plan.findings import Problem, rule
from builder.plan.rules.alternatives import listed
from builder.plan.rules.conditions import gib, runs_tensorrt_llm
from builder.plan.unit import Unit

_FAMILY = ("serving", "family")
_GUIDED = ("serving", "guided_decoding")

_FAMILIES = {"engine": ("bls", "ensemble"), "pytorch": ("llmapi",)}
_GUIDED_BACKENDS = {"engine": ("none", "xgrammar"), "pytorch": ("none", "xgrammar", "llguidance")}

TRITON_MODELS = ("preprocessing", "tensorrt_llm", "postprocessing", "tensorrt_llm_bls", "ensemble")
"""Names of the models in the repository that is generated."""


@rule("FAMILY_FLOW", "refuse")
def family_serves_the_flow(unit: Unit) -> Iterator[Problem]:
    """bls and ensemble load an engine, llmapi a checkpoint: each flow has its own family."""
    serving, flow = unit.settings.serving, unit.settings.flow
    families = _FAMILIES[flow]
    if serving.family not in families:
        what = "an engine, and the pytorch flow makes none" if flow == "pytorch" else "a checkpoint, not an engine"
        yield Problem(
            f"serving.family {serving.family} doesn't serve the {flow} flow: it loads {what}",
            _FAMILY,
            f"write family: {listed(families)}",
            {"valid_families": list(families)},
        )


@rule("GUIDED_DECODING", "refuse")
def flow_has_the_grammar_backend(unit: Unit) -> Iterator[Problem]:
    """Engines take grammars through xgrammar only; llguidance belongs to the pytorch flow."""
    backend = unit.settings.serving.guided_decoding
    if backend == "none" or not runs_tensorrt_llm(unit):
        return
    backends = _GUIDED_BACKENDS[unit.settings.flow]
    if backend not in backends:
        yield Problem(
            f"the {unit.settings.flow} flow has no guided decoding by {backend}",
            _GUIDED,
            f"use {listed(backends[1:])}",
            {"valid_backends": list(backends)},
        )


@rule("HOST_CACHE_UNUSED", "warn")
def host_cache_keeps_something(unit: Unit) -> Iterator[Problem]:
    """Host memory keeps KV blocks for reuse; without reuse nothing is kept."""
    size = unit.settings.serving.kv_cache_host_memory_bytes
    if size and not unit.kv_cache_reuse and runs_tensorrt_llm(unit):
        yield Problem(
            f"{gib(size)} of host memory for the KV cache have no effect: blocks are kept for reuse, which is off",
            ("serving", "kv_cache_host_memory_bytes"),
            "write 0, or serving.enable_kv_cache_reuse: true",
        )


@rule("QUEUE_SETTINGS_UNUSED", "warn")
def triton_has_a_queue(unit: Unit) -> Iterator[Problem]:
    """Triton doesn't batch in front of llmapi: its queue settings have no effect there."""
    serving = unit.settings.serving
    if unit.settings.flow != "pytorch":
        return
    for field, value in (
        ("max_queue_size", serving.max_queue_size),
        ("max_queue_delay_microseconds", serving.max_queue_delay_microseconds),
    ):
        if value:
            yield Problem(
                f"serving.{field} {value} has no effect on llmapi, in front of which Triton has no batcher",
                ("serving", field),
                "remove it",
            )


@rule("SERVED_NAME_RESERVED", "refuse-waivable")
def served_name_is_free(unit: Unit) -> Iterator[Problem]:
    """The name that clients ask for isn't that of a model inside the repository, which takes other inputs."""
    name = unit.settings.serving.served_model_name or unit.recipe.content.name
    if name in TRITON_MODELS:
        yield Problem(
            f"served_model_name {name} is the name of a model inside Triton's repository, which isn't the one that "
            "clients of /v1 reach by it",
            ("serving", "served_model_name"),
            "name it after the model that it serves",
            {"reserved": list(TRITON_MODELS)},
        )


@rule("CHAT_TEMPLATE_FORM", "refuse")
def chat_template_is_a_file(unit: Unit) -> Iterator[Problem]:
    """serving.chat_template is file:PATH of a Jinja template; templates are never fetched or written inline."""
    template = unit.settings.serving.chat_template
    if template is None:
        return
    path = template.removeprefix("file:")
    if path == template or not path.strip() or "{" in path:
        yield Problem(
            f"serving.chat_template {template[:60]!r} isn't file:PATH",
            ("serving", "chat_template"),
            "write the template to a file beside the recipe, and file:chat_template.jinja here",
        )
