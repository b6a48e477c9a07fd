"""Rules on speculative decoding: which modes a flow has, and what each mode needs beside the model.

Source: NVIDIA/TensorRT-LLM tensorrt_llm/builder.py, releases 0.20 to 1.2;
`speculative_config` of tensorrt_llm/llmapi/llm_args.py for the pytorch flow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from builder.lock import model_key
from builder.plan.findings import Problem, rule
from builder.plan.rules.alternatives import listed
from builder.plan.rules.conditions import asked, compiles, runs_tensorrt_llm, switched_on
from builder.plan.unit import Unit

_MODE = ("speculative", "mode")
_DRAFT_MODEL = ("speculative", "draft_model")

_MODES = {
    "engine": ("draft_tokens_external", "lookahead_decoding", "medusa", "explicit_draft_tokens", "eagle"),
    "pytorch": ("draft_tokens_external", "eagle", "eagle3", "mtp", "ngram"),
}
_NEEDS_DRAFT_MODEL = {
    "draft_tokens_external": "a smaller model of the same vocabulary",
    "medusa": "the Medusa heads",
    "explicit_draft_tokens": "the ReDrafter",
    "eagle": "the EAGLE head",
    "eagle3": "the EAGLE-3 head",
}
_HAS_HEADS = ("Medusa", "Eagle", "ReDrafter")
"""TensorRT-LLM's architectures of models that come with their heads begin so."""


@rule("SPECULATIVE_FLOW", "refuse")
def flow_has_the_mode(unit: Unit) -> Iterator[Problem]:
    """Each flow has its own modes: lookahead and Medusa need an engine, EAGLE-3, MTP and n-grams the pytorch flow."""
    speculative = unit.settings.speculative
    if speculative is None or not runs_tensorrt_llm(unit):
        return
    flow = unit.settings.flow
    if speculative.mode not in _MODES[flow]:
        yield Problem(
            f"the {flow} flow has no speculative decoding by {speculative.mode}",
            _MODE,
            f"use {listed(_MODES[flow])}, or the other flow",
            {"valid_modes": list(_MODES[flow])},
        )


@rule("DRAFT_MODEL_REQUIRED", "refuse")
def mode_has_its_draft_model(unit: Unit) -> Iterator[Problem]:
    """Modes in which something else guesses need to be told what does."""
    speculative = unit.settings.speculative
    if speculative is None or speculative.draft_model is not None:
        return
    what = _NEEDS_DRAFT_MODEL.get(speculative.mode)
    if what and not unit.spec.architecture.startswith(_HAS_HEADS):
        yield Problem(
            f"{speculative.mode} needs a draft_model: {what}",
            ("speculative",),
            "name it: draft_model: {source: hf://ORG/NAME}",
        )


@rule("DRAFT_MODEL_UNUSED", "warn")
def draft_model_is_used(unit: Unit) -> Iterator[Problem]:
    """Lookahead, n-grams and MTP guess with the model itself; a draft model beside them has no effect."""
    speculative = unit.settings.speculative
    if speculative and speculative.draft_model and speculative.mode not in _NEEDS_DRAFT_MODEL:
        yield Problem(
            f"draft_model has no effect: {speculative.mode} guesses without one",
            _DRAFT_MODEL,
            "remove it, or choose a mode that uses it",
        )


@rule("DRAFT_VOCABULARY", "refuse-waivable")
def draft_model_speaks_the_same_tokens(unit: Unit) -> Iterator[Problem]:
    """Guesses are token ids: draft model and model must have one vocabulary."""
    speculative = unit.settings.speculative
    if speculative is None or speculative.mode != "draft_tokens_external":
        return
    size = draft_config(unit).get("vocab_size")
    if isinstance(size, int) and size != unit.spec.vocab_size:
        yield Problem(
            f"the draft model has {size} tokens, the model {unit.spec.vocab_size}: its guesses would be other words",
            _DRAFT_MODEL,
            "use a draft model of the same family; if the sizes differ by padding only, waive DRAFT_VOCABULARY",
            {"vocab_size": unit.spec.vocab_size, "draft_vocab_size": size},
        )


def draft_config(unit: Unit) -> Mapping[str, Any]:
    """config.json of the draft model as the lock has it; empty where it has none."""
    speculative = unit.settings.speculative
    if speculative is None or speculative.draft_model is None:
        return {}
    draft = unit.lock.models.get(model_key(speculative.draft_model.source, speculative.draft_model.revision))
    return draft.config if draft else {}


@rule("MTP_LAYERS", "refuse")
def model_predicts_further_tokens(unit: Unit) -> Iterator[Problem]:
    """mtp uses layers of the model that predict further tokens; most models have none."""
    speculative = unit.settings.speculative
    if speculative and speculative.mode == "mtp" and not unit.spec.next_token_layers:
        yield Problem(
            f"mtp needs a model with layers for multi-token prediction, and {unit.spec.architecture} has none here",
            _MODE,
            "use ngram, or eagle3 with a draft_model",
            {"valid_modes": ["eagle", "eagle3", "ngram"]},
        )


@rule("SPECULATIVE_OPTION_UNUSED", "warn")
def options_belong_to_the_mode(unit: Unit) -> Iterator[Problem]:
    """`lookahead` and `num_eagle_layers` belong to one mode each."""
    speculative = unit.settings.speculative
    if speculative is None:
        return
    given = (
        ("lookahead", speculative.lookahead, ("lookahead_decoding",)),
        ("num_eagle_layers", speculative.num_eagle_layers, ("eagle", "eagle3")),
    )
    for field, value, modes in given:
        if value is not None and speculative.mode not in modes:
            yield Problem(
                f"{field} has no effect with {speculative.mode}: it is for {listed(modes, 'and')}",
                ("speculative", field),
                "remove it",
            )


@rule("EAGLE_PAGED_CONTEXT_FMHA", "warn")
def eagle_has_paged_attention(unit: Unit) -> Iterator[Problem]:
    """EAGLE forces paged context FMHA on, which some KV caches don't have."""
    speculative = unit.settings.speculative
    if speculative is None or speculative.mode != "eagle" or not compiles(unit) or unit.paged_context_fmha:
        return
    if asked(unit, "use_paged_context_fmha") == "disable" and asked(unit, "context_fmha") != "disable":
        yield Problem(
            "use_paged_context_fmha: disable will become enable, since EAGLE needs it",
            ("engine", "use_paged_context_fmha"),
            "remove it",
            {"becomes": "enable"},
        )
    else:
        off = "context_fmha: disable" if asked(unit, "context_fmha") else f"the {unit.kv_precision.name} KV cache"
        yield Problem(
            f"EAGLE needs paged context attention (use_paged_context_fmha), which {off} rules out",
            _MODE,
            "precision.kv_cache: auto, and context_fmha left out",
            severity="refuse",
        )


@rule("GATHER_CONTEXT_LOGITS", "refuse")
def context_logits_exclude_guesses(unit: Unit) -> Iterator[Problem]:
    """trtllm-build refuses gather_context_logits together with speculative decoding."""
    if unit.settings.speculative is None or not unit.settings.engine:
        return
    for option in ("gather_context_logits", "gather_all_token_logits"):
        if switched_on(unit, option):
            yield Problem(
                f"{option} can't be combined with speculative decoding (max_draft_len "
                f"{unit.settings.speculative.max_draft_len})",
                ("engine", option),
                f"remove {option}, or speculative",
            )


@rule("DRAFT_TARGET_SERVING", "refuse")
def two_models_are_served_together(unit: Unit) -> Iterator[Problem]:
    """With a draft model in an engine of its own only the bls family can serve, and it doesn't stream.

    Source: triton-inference-server/tensorrtllm_backend all_models/inflight_batcher_llm/tensorrt_llm_bls (0.19).
    """
    speculative, serving = unit.settings.speculative, unit.settings.serving
    if speculative is None or speculative.mode != "draft_tokens_external" or not compiles(unit):
        return
    if serving.family != "bls":
        yield Problem(
            f"draft_tokens_external needs serving.family: bls, which calls draft model and model in turn; "
            f"{serving.family} can't",
            ("serving", "family"),
            "write family: bls",
            {"valid_families": ["bls"]},
        )
    if serving.streaming:
        yield Problem(
            "Triton's bls model doesn't stream with draft_tokens_external",
            ("serving", "streaming"),
            "write streaming: false, or use eagle or lookahead_decoding",
        )
