"""Rules on the tokens of one forward pass: what trtllm-build makes of max_num_tokens and opt_num_tokens.

Source: `check_max_num_tokens` in NVIDIA/TensorRT-LLM tensorrt_llm/builder.py, releases 0.20 to 1.2.
"""

from __future__ import annotations

from collections.abc import Iterator

from builder.plan.findings import Problem, rule
from builder.plan.rules.conditions import TOKENS_PER_BLOCK, asked, compiles, context_fmha
from builder.plan.unit import Unit

_MAX_NUM_TOKENS = ("limits", "max_num_tokens")
_OPT_NUM_TOKENS = ("limits", "opt_num_tokens")

_MANY_TOKENS = 16384
"""Above this trtllm-build warns."""


@rule("NUM_TOKENS_LT_BATCH", "refuse")
def one_pass_holds_a_token_of_each_request(unit: Unit) -> Iterator[Problem]:
    """A step of generation computes a token per request, or one per beam: all of a batch fit into max_num_tokens."""
    limits = unit.settings.limits
    needed = limits.max_batch_size * limits.max_beam_width
    if limits.max_num_tokens >= needed:
        return
    product = f" x max_beam_width {limits.max_beam_width}" if limits.max_beam_width > 1 else ""
    yield Problem(
        f"max_num_tokens {limits.max_num_tokens} is less than max_batch_size {limits.max_batch_size}{product}: "
        "the batch can never be full",
        _MAX_NUM_TOKENS,
        f"use a max_num_tokens of at least {needed}, "
        f"or a max_batch_size of {max(1, limits.max_num_tokens // limits.max_beam_width)}",
        {"min_legal": needed},
    )


@rule("PADDED_INPUT", "warn")
def inputs_are_packed(unit: Unit) -> Iterator[Problem]:
    """Without removal of padding max_num_tokens isn't used: a pass is max_batch_size x max_seq_len tokens."""
    if asked(unit, "remove_input_padding") != "disable":
        return
    product = unit.limits.max_batch_size * unit.max_seq_len
    yield Problem(
        f"with remove_input_padding: disable max_num_tokens {unit.limits.max_num_tokens} will become {product} "
        "(max_batch_size * max_seq_len)",
        ("engine", "remove_input_padding"),
        "remove the option: prompts are packed by default",
        {"becomes": product},
    )


@rule("NUM_TOKENS_CLIPPED", "warn")
def num_tokens_are_used(unit: Unit) -> Iterator[Problem]:
    """TensorRT-LLM clips max_num_tokens to max_seq_len * max_batch_size without a word."""
    limits = unit.settings.limits
    product = (limits.max_seq_len or unit.spec.max_position_embeddings) * limits.max_batch_size
    if limits.max_num_tokens > product and compiles(unit) and not _padded(unit):
        yield Problem(
            f"max_num_tokens {limits.max_num_tokens} will become {product} (max_seq_len * max_batch_size)",
            _MAX_NUM_TOKENS,
            f"write {product}",
            {"becomes": product},
        )


@rule("NUM_TOKENS_RAISED", "warn")
def num_tokens_are_enough(unit: Unit) -> Iterator[Problem]:
    """TensorRT-LLM raises max_num_tokens to a block of the KV cache, and without fused attention to a whole prompt."""
    tokens = unit.settings.limits.max_num_tokens
    if tokens >= TOKENS_PER_BLOCK and not unit.settings.engine:
        return
    if not compiles(unit) or _padded(unit):
        return
    block = unit.engine_options.get("tokens_per_block", TOKENS_PER_BLOCK)
    if not context_fmha(unit):
        least, reason = unit.max_input_len, "max_input_len, since context_fmha is off"
    else:
        least, reason = block if isinstance(block, int) else TOKENS_PER_BLOCK, "tokens_per_block"
    if tokens < least:
        chunks = "; longer prompts then need chunked context" if context_fmha(unit) else ""
        yield Problem(
            f"max_num_tokens {tokens} will become {least} ({reason}){chunks}",
            _MAX_NUM_TOKENS,
            f"write {least}",
            {"becomes": least},
        )


@rule("NUM_TOKENS_MANY", "warn")
def num_tokens_are_not_many(unit: Unit) -> Iterator[Problem]:
    """Above 16384 tokens per pass TensorRT-LLM warns: activations grow with them, speed hardly does."""
    limits = unit.settings.limits
    tokens = limits.max_num_tokens
    if tokens > _MANY_TOKENS and compiles(unit) and unit.max_seq_len * limits.max_batch_size > _MANY_TOKENS:
        yield Problem(
            f"max_num_tokens {tokens} is more than {_MANY_TOKENS}: TensorRT-LLM warns, since memory for activations "
            "grows with it and speed hardly does",
            _MAX_NUM_TOKENS,
            f"use at most {_MANY_TOKENS}, and chunked context for longer prompts",
            {"max_advised": _MANY_TOKENS},
        )


@rule("OPT_NUM_TOKENS_CLIPPED", "warn")
def tuned_size_is_possible(unit: Unit) -> Iterator[Problem]:
    """opt_num_tokens above max_num_tokens is clipped to it."""
    limits = unit.settings.limits
    if limits.opt_num_tokens is not None and limits.opt_num_tokens > limits.max_num_tokens and compiles(unit):
        yield Problem(
            f"opt_num_tokens {limits.opt_num_tokens} will become {limits.max_num_tokens} (max_num_tokens)",
            _OPT_NUM_TOKENS,
            f"write {limits.max_num_tokens} or less",
            {"becomes": limits.max_num_tokens},
        )


@rule("OPT_NUM_TOKENS_PROFILES", "refuse")
def tuned_size_or_profiles(unit: Unit) -> Iterator[Problem]:
    """trtllm-build refuses opt_num_tokens together with multiple_profiles, which chooses sizes itself."""
    if unit.settings.limits.opt_num_tokens is not None and asked(unit, "multiple_profiles") == "enable":
        yield Problem(
            f"opt_num_tokens {unit.limits.opt_num_tokens} can't be given together with multiple_profiles: enable, "
            "which tunes kernels for several sizes",
            _OPT_NUM_TOKENS,
            "remove one of them",
        )


def _padded(unit: Unit) -> bool:
    return asked(unit, "remove_input_padding") == "disable"
