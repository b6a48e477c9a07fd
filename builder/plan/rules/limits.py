"""Rules on lengths: how long a sequence and a prompt may be, and what beams ask of both.

What trtllm-build makes of limits: `check_max_num_tokens` and `BuildConfig` in NVIDIA/TensorRT-LLM
tensorrt_llm/builder.py, releases 0.20 to 1.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from builder.plan.findings import Problem, rule
from builder.plan.rules.conditions import asked, compiles, gib, runs_tensorrt_llm
from builder.plan.unit import Unit

_MAX_SEQ_LEN = ("limits", "max_seq_len")
_MAX_INPUT_LEN = ("limits", "max_input_len")
_MAX_BEAM_WIDTH = ("limits", "max_beam_width")

_STRETCHING = ("linear", "dynamic", "yarn")
"""Rope types whose factor isn't in max_position_embeddings yet; those of llama3 and longrope are."""

_ENCODERS = ("EncoderModel", "WhisperEncoder")
"""TensorRT-LLM's names of the encoder half of encoder-decoder models."""


@rule("MAX_SEQ_LEN_REQUIRED", "refuse")
def sequence_length_is_given(unit: Unit) -> Iterator[Problem]:
    """Without max_seq_len TensorRT-LLM would take the longest sequence that the model claims, whatever it costs."""
    if unit.settings.limits.max_seq_len is not None:
        return
    spec, split, longest = unit.spec, unit.settings.parallelism, unit.spec.max_position_embeddings
    whole = spec.kv_bytes(longest, unit.kv_precision.bytes, 1)
    on_rank = spec.kv_bytes(longest, unit.kv_precision.bytes, split.tensor, split.pipeline)
    yield Problem(
        f"limits.max_seq_len isn't given: TensorRT-LLM would take the model's {longest} positions, and the KV cache of "
        f"one such sequence takes {gib(whole)} ({gib(on_rank)} per rank)",
        ("limits",),
        f"write max_seq_len, {longest} at most: the longest prompt and answer together that you will serve",
        {"max_legal": longest, "kv_per_seq_bytes": whole, "kv_per_seq_rank_bytes": on_rank},
    )


@rule("SEQ_LEN_GT_MODEL", "refuse-waivable")
def sequence_fits_the_model(unit: Unit) -> Iterator[Problem]:
    """Beyond the positions that the model was made for TensorRT-LLM only warns, and answers get worse."""
    longest = unit.settings.limits.max_seq_len
    if longest is None or longest <= unit.spec.max_position_embeddings:
        return
    legal = longest_sequence(unit)
    if longest > legal:
        yield Problem(
            f"max_seq_len {longest} is more than the {legal} positions that the model was made for: TensorRT-LLM would "
            "only warn, and answers get worse beyond them",
            _MAX_SEQ_LEN,
            f"use at most {legal}; if the model was trained for more, waive SEQ_LEN_GT_MODEL with the reason",
            {"max_legal": legal},
        )


def longest_sequence(unit: Unit) -> int:
    """Positions that the model was made for: max_position_embeddings, stretched by its rope's factor.

    The factor stretches `original_max_position_embeddings` where the rope names it, as configs do whose
    max_position_embeddings is the stretched length already (transformers, modeling_rope_utils.py), and
    max_position_embeddings itself where it doesn't, as TensorRT-LLM's builder does. In the pytorch flow the recipe may
    state another rope for the model, in `llm_args.model_kwargs`.
    """
    longest = unit.spec.max_position_embeddings
    scaling: Mapping[str, Any] | None = unit.spec.rope_scaling
    stated = unit.settings.llm_args.get("model_kwargs") if unit.settings.llm_args else None
    if isinstance(stated, Mapping):
        positions = stated.get("max_position_embeddings")
        longest = positions if type(positions) is int and positions > 0 else longest
        rope = stated.get("rope_scaling") or stated.get("rope_parameters")
        scaling = rope if isinstance(rope, Mapping) else scaling
    if scaling is None or scaling.get("rope_type", scaling.get("type")) not in _STRETCHING:
        return longest
    factor, original = scaling.get("factor", 1), scaling.get("original_max_position_embeddings") or longest
    if not isinstance(factor, int | float) or not isinstance(original, int | float):
        return longest
    return max(longest, int(original * factor))


@rule("INPUT_GT_SEQ_LEN", "refuse")
def prompt_leaves_room_for_an_answer(unit: Unit) -> Iterator[Problem]:
    """TensorRT-LLM clips max_input_len to max_seq_len; then a prompt may fill the sequence, and nothing is answered."""
    longest = unit.settings.limits.max_seq_len
    if longest is None or unit.max_input_len < longest:
        return
    clipped = f", and TensorRT-LLM would clip it to {longest}" if unit.max_input_len > longest else ""
    yield Problem(
        f"max_input_len {unit.max_input_len} leaves no token of max_seq_len {longest} for an answer{clipped}",
        _MAX_INPUT_LEN if unit.limits.max_input_len else _MAX_SEQ_LEN,
        f"use a max_input_len of at most {longest - 1}" if longest > 1 else "use a max_seq_len of at least 2",
        {"max_legal": longest - 1, "becomes": longest},
    )


@rule("PROMPT_GT_NUM_TOKENS", "warn")
def prompt_fits_one_pass(unit: Unit) -> Iterator[Problem]:
    """Without chunked context a prompt is one forward pass: the runtime refuses one longer than max_num_tokens."""
    limits = unit.settings.limits
    if unit.settings.serving.enable_chunked_context or unit.max_input_len <= limits.max_num_tokens:
        return
    if limits.max_seq_len is None or not runs_tensorrt_llm(unit):
        return
    given = limits.max_input_len is not None
    yield Problem(
        f"prompts may have {limits.max_num_tokens} tokens (max_num_tokens), not {unit.max_input_len}: without chunked "
        "context a prompt has to go through the model in one pass",
        _MAX_INPUT_LEN if given else ("limits", "max_num_tokens"),
        f"serving.enable_chunked_context: true, or a max_num_tokens of {unit.max_input_len}, "
        f"or a max_input_len of {limits.max_num_tokens}",
        {"becomes": limits.max_num_tokens},
        "refuse-waivable" if given else None,
    )


@rule("ENCODER_INPUT_LEN", "refuse")
def encoder_reads_whole_sequences(unit: Unit) -> Iterator[Problem]:
    """An encoder has no answer to make room for: its max_input_len must be max_seq_len."""
    if unit.spec.architecture in _ENCODERS and unit.max_input_len != unit.max_seq_len:
        yield Problem(
            f"the max_input_len of an encoder is its max_seq_len, not {unit.max_input_len} of {unit.max_seq_len}",
            _MAX_INPUT_LEN,
            f"write max_input_len: {unit.max_seq_len}",
            {"becomes": unit.max_seq_len},
        )


@rule("ENCODER_OPTION_UNUSED", "warn")
def encoder_options_have_an_encoder(unit: Unit) -> Iterator[Problem]:
    """max_encoder_input_len is for encoder-decoder models; a decoder ignores it."""
    length = asked(unit, "max_encoder_input_len")
    if length is not None and unit.spec.architecture not in _ENCODERS:
        yield Problem(
            f"max_encoder_input_len {length} has no effect: {unit.spec.architecture} is a decoder without an encoder",
            ("engine", "max_encoder_input_len"),
            "remove it",
        )


@rule("BEAM_WIDTH_FIXED", "warn")
def requests_use_the_beam_width(unit: Unit) -> Iterator[Problem]:
    """An engine with beams serves requests of exactly its width, and each beam has a KV cache of its own."""
    beams = unit.settings.limits.max_beam_width
    if beams > 1 and compiles(unit):
        yield Problem(
            f"max_beam_width is {beams}: every request has to ask for exactly {beams} beams, and takes the KV cache "
            f"of {beams} sequences",
            _MAX_BEAM_WIDTH,
            "use max_beam_width: 1 unless every client searches with beams",
            {"beam_width": beams},
        )


@rule("BEAM_STREAMING", "refuse-waivable")
def beams_are_not_streamed(unit: Unit) -> Iterator[Problem]:
    """Streamed text is put together token by token, which beams that overtake one another make wrong."""
    beams = unit.settings.limits.max_beam_width
    if beams > 1 and unit.settings.serving.streaming and compiles(unit):
        yield Problem(
            f"streaming with max_beam_width {beams}: text that was sent already may turn out to be of a beam that lost",
            _MAX_BEAM_WIDTH,
            "serving.streaming: false, or max_beam_width: 1",
            {"max_legal": 1},
        )
