"""Rules on how many tokens are guessed: what it makes of other limits, and which limits it has itself.

Source: NVIDIA/TensorRT-LLM tensorrt_llm/builder.py, releases 0.20 to 1.2; examples/lookahead/README.md@7ed07f06.
"""

from __future__ import annotations

from collections.abc import Iterator

from builder.plan.findings import Problem, rule
from builder.plan.rules.conditions import compiles
from builder.plan.rules.speculative import draft_config
from builder.plan.unit import Unit
from builder.recipe.schema import Lookahead

_MODE = ("speculative", "mode")
_MAX_DRAFT_LEN = ("speculative", "max_draft_len")

_EAGLE_MAX_BATCH = 512
_EAGLE_MAX_DRAFT = 256


@rule("LOOKAHEAD_SIZES", "refuse")
def lookahead_has_three_sizes(unit: Unit) -> Iterator[Problem]:
    """Lookahead decoding needs its three sizes, and they determine max_draft_len to the token."""
    speculative = unit.settings.speculative
    if speculative is None or speculative.mode != "lookahead_decoding":
        return
    sizes = speculative.lookahead
    if sizes is None:
        yield Problem(
            "lookahead_decoding needs window_size, ngram_size and verification_set_size",
            ("speculative",),
            "write lookahead: {window_size: 7, ngram_size: 7, verification_set_size: 7} and max_draft_len: 83, or less",
        )
    elif speculative.max_draft_len != (needed := lookahead_draft_len(sizes)):
        yield Problem(
            f"max_draft_len {speculative.max_draft_len} doesn't belong to lookahead sizes of {sizes.window_size}, "
            f"{sizes.ngram_size} and {sizes.verification_set_size}, which guess {needed} tokens",
            _MAX_DRAFT_LEN,
            f"write max_draft_len: {needed}" if needed else "use an ngram_size of at least 2",
            {"max_draft_len": needed},
        )


def lookahead_draft_len(sizes: Lookahead) -> int:
    """The tokens that lookahead decoding guesses per step, as an engine must be built for.

    With window W, n-gram N and verification set G: (0 if N = 1, else N - 2) + (W - 1 + G) · (N - 1).
    Source: NVIDIA/TensorRT-LLM examples/lookahead/README.md@7ed07f06.
    """
    window, ngram, verified = sizes.window_size, sizes.ngram_size, sizes.verification_set_size
    return max(0, ngram - 2) + (window - 1 + verified) * (ngram - 1)


@rule("SPECULATIVE_SEQ_LEN", "warn")
def sequences_have_room_for_guesses(unit: Unit) -> Iterator[Problem]:
    """TensorRT-LLM adds the guessed tokens to max_seq_len, and so to the KV cache of each sequence."""
    speculative = unit.settings.speculative
    if speculative is None or unit.settings.limits.max_seq_len is None or not compiles(unit):
        return
    guessed = speculative.max_draft_len
    parts = f"max_draft_len {guessed}"
    if speculative.mode == "eagle" and speculative.num_eagle_layers:
        guessed += speculative.num_eagle_layers
        parts += f" + num_eagle_layers {speculative.num_eagle_layers}"
    becomes = unit.max_seq_len + guessed
    yield Problem(
        f"max_seq_len {unit.max_seq_len} will become {becomes} (+ {parts})",
        _MAX_DRAFT_LEN,
        "nothing is to be done; memory is needed for the longer sequence",
        {"becomes": becomes},
    )


@rule("SPECULATIVE_NUM_TOKENS", "warn")
def one_pass_holds_all_guesses(unit: Unit) -> Iterator[Problem]:
    """A step checks the guesses of the whole batch: max_num_tokens is raised to hold them."""
    speculative = unit.settings.speculative
    if speculative is None or not compiles(unit):
        return
    limits = unit.settings.limits
    needed = limits.max_batch_size * (speculative.max_draft_len + 1)
    if limits.max_num_tokens < needed:
        yield Problem(
            f"max_num_tokens {limits.max_num_tokens} will become {needed} (max_batch_size {limits.max_batch_size} * "
            f"(max_draft_len {speculative.max_draft_len} + 1))",
            ("limits", "max_num_tokens"),
            f"write {needed}, or a max_batch_size of at most "
            f"{max(1, limits.max_num_tokens // (speculative.max_draft_len + 1))}",
            {"becomes": needed},
        )


@rule("EAGLE_LIMITS", "refuse")
def eagle_is_within_its_limits(unit: Unit) -> Iterator[Problem]:
    """EAGLE in engines takes batches of up to 512 and guesses of up to 256 tokens."""
    speculative = unit.settings.speculative
    if speculative is None or speculative.mode != "eagle" or not compiles(unit):
        return
    batch, guessed = unit.limits.max_batch_size, speculative.max_draft_len
    for name, value, most, path in (
        ("max_batch_size", batch, _EAGLE_MAX_BATCH, ("limits", "max_batch_size")),
        ("max_draft_len", guessed, _EAGLE_MAX_DRAFT, _MAX_DRAFT_LEN),
    ):
        if value > most:
            yield Problem(
                f"EAGLE takes a {name} of up to {most}, not {value}", path, f"use {most}", {"max_legal": most}
            )


@rule("REDRAFTER_DRAFT_LEN", "warn")
def redrafter_sets_the_draft_length(unit: Unit) -> Iterator[Problem]:
    """For ReDrafter max_draft_len becomes the drafter's beams x tokens per beam, and the mode explicit_draft_tokens."""
    speculative = unit.settings.speculative
    if speculative is None or not compiles(unit):
        return
    drafter = unit.spec.architecture.startswith("ReDrafter")
    if drafter and speculative.mode != "explicit_draft_tokens":
        yield Problem(
            f"mode {speculative.mode} will become explicit_draft_tokens: the model is a ReDrafter",
            _MODE,
            "write mode: explicit_draft_tokens",
            {"becomes": "explicit_draft_tokens"},
        )
    if not drafter and speculative.mode != "explicit_draft_tokens":
        return
    config = draft_config(unit)
    beams, length = config.get("redrafter_num_beams"), config.get("redrafter_draft_len_per_beam")
    if not isinstance(beams, int) or not isinstance(length, int):
        yield Problem(
            f"max_draft_len {speculative.max_draft_len} will become the drafter's beams times its tokens per beam",
            _MAX_DRAFT_LEN,
            "write this product, so that memory is planned for it",
        )
    elif speculative.max_draft_len != beams * length:
        yield Problem(
            f"max_draft_len {speculative.max_draft_len} will become {beams * length} ({beams} beams * {length} tokens)",
            _MAX_DRAFT_LEN,
            f"write {beams * length}",
            {"becomes": beams * length},
        )
