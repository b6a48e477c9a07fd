"""Proof that a quantised checkpoint behaves: it is measured beside the same model unquantised, both in the reference
model, on a text, and held against the gates of a recipe.

A gate is passed where the whole 95 % confidence interval meets it, failed where none of it does. Otherwise the sample
is too small to tell, which doesn't pass either, and the error says about how many tokens would settle it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from builder.checkpoint.behaviour import Comparison, TokenizedText, Tokens, compare, measure, measure_pair, tokenize
from builder.checkpoint.in_memory import (
    WORKING_BYTES,
    computed_with,
    float32_bytes,
    load_checkpoint,
    open_checkpoint,
    require_memory,
    vocabulary_differs,
)
from builder.checkpoint.statistics import (
    CONFIDENCE,
    MIN_WINDOWS,
    least_tokens_for_share,
    mean_tokens_to_settle,
    percent,
    share_tokens_to_settle,
)
from builder.errors import SourceError, VerificationError
from builder.recipe.schema import AgreementGate, PerplexityGate
from builder.reference.folder import ModelFolder
from builder.store.digests import Advance, hash_file, ignore_progress

Verdict = Literal["pass", "fail", "inconclusive"]

_HOPELESS = 1000


@dataclass(frozen=True)
class Gate:
    """One gate of a recipe and what was measured. `figure` is "perplexity increase" or "next-token agreement".

    `tokens_needed` is about how many scored tokens would settle an inconclusive one if its estimate stayed; None where
    the estimate is so close to the gate that no text would.
    """

    figure: str
    bound: Literal["at most", "at least"]
    limit: float
    estimate: float
    low: float
    high: float
    verdict: Verdict
    tokens_needed: int | None = None

    def __str__(self) -> str:
        return (
            f"{self.figure} {percent(self.estimate)} (95 % interval {percent(self.low)} to {percent(self.high)}), "
            f"wanted {self.bound} {percent(self.limit)}: {self.verdict}"
        )


@dataclass(frozen=True)
class Report:
    """Facts of a checkpoint with quantised weights: what was measured, on what, with what, and the verdict."""

    verdict: Verdict
    gates: tuple[Gate, ...]
    comparison: Comparison
    text_tokens: int
    text_sha256: str
    tokenizer_sha256: str
    versions: Mapping[str, str]
    confidence: float = CONFIDENCE

    def to_json(self) -> dict[str, Any]:
        facts = asdict(self)
        facts["comparison"]["tokens"] = self.comparison.tokens
        return facts

    def require(self) -> None:
        """VerificationError QUALIFY_FAILED or QUALIFY_INCONCLUSIVE unless every gate is passed."""
        if self.verdict == "pass":
            return
        measured = (
            f"perplexity {self.comparison.candidate_perplexity:.3f}, unquantised "
            f"{self.comparison.reference_perplexity:.3f}, on {self.comparison.tokens:,} tokens in "
            f"{self.comparison.windows} windows"
        )
        if self.verdict == "fail":
            raise VerificationError(
                "; ".join(str(gate) for gate in self.gates if gate.verdict == "fail"),
                where="qualify",
                why=f"quantisation took too much of the model: {measured}",
                hint="choose another precision.weights, calibrate with more samples or with texts like those of your "
                "users, or accept less by changing the gate",
                code="QUALIFY_FAILED",
            )
        raise VerificationError(
            "; ".join(str(gate) for gate in self.gates if gate.verdict == "inconclusive"),
            where="qualify",
            why=f"the gate lies inside the confidence interval, so this sample can't tell: {measured}",
            hint=self._more_text(),
            code="QUALIFY_INCONCLUSIVE",
        )

    def _more_text(self) -> str:
        needed = [gate.tokens_needed for gate in self.gates if gate.verdict == "inconclusive"]
        known = [count for count in needed if count is not None]
        if len(known) < len(needed):
            return "the figure is so close to the gate that no text settles it: move the gate"
        windows = math.ceil(max(known) / self.comparison.window_tokens)
        most = self.text_tokens // self.comparison.window_tokens
        return (
            f"about {max(known) - self.comparison.tokens:,} more tokens would settle it if the figures stay: set "
            f"qualify.perplexity.windows to {windows:,}"
            + ("" if windows <= most else f", with a longer text: this one has {self.text_tokens:,} tokens")
        )


def evaluate(
    baseline: Path,
    candidate: Path,
    tokenizer: Path,
    text: Path,
    perplexity: PerplexityGate,
    agreement: AgreementGate | None = None,
    *,
    longest: int | None = None,
    free_bytes: int | None = None,
    advance: Advance = ignore_progress,
) -> Report:
    """Measure the checkpoint in `candidate` beside the unquantised one in `baseline`, and judge it.

    `tokenizer` is the model's tokenizer.json, `text` the file that the gate names. A window has `longest` tokens at
    most. `free_bytes` of memory may be used, by default what is free: with less than both models need, they run one
    after the other, without the divergence of their logits. `advance` is told tokens: windows · window · 2 in all.

    SourceError as for `sample`; VerificationError if a checkpoint can't be read, their vocabularies differ, the text
    has tokens outside of it, or logits aren't finite; HostError OUT_OF_MEMORY before a model is loaded.
    """
    tokens, windows = _sample(tokenizer, text, perplexity, agreement, longest)
    opened = [open_checkpoint(folder) for folder in (baseline, candidate)]
    sizes = [folder.config.vocab_size for folder in opened]
    if sizes[0] != sizes[1]:
        raise vocabulary_differs(candidate, sizes[1], f"the unquantised checkpoint {baseline}", sizes[0])
    comparison = _compare(opened[0], opened[1], windows, free_bytes, advance)
    gates = _judge(comparison, perplexity, agreement)
    verdicts = {gate.verdict for gate in gates}
    return Report(
        "fail" if "fail" in verdicts else "inconclusive" if "inconclusive" in verdicts else "pass",
        gates,
        comparison,
        tokens.tokens.size,
        hash_file(text).sha256,
        hash_file(tokenizer).sha256,
        computed_with("numpy", "tokenizers"),
    )


def check_sample(
    tokenizer: Path,
    text: Path,
    perplexity: PerplexityGate,
    agreement: AgreementGate | None = None,
    *,
    longest: int | None = None,
) -> int:
    """The number of windows that the gates will be measured on; for the time before anything is converted.

    SourceError where the text or the tokenizer can't be read, and TEXT_EMPTY, TEXT_TOO_SHORT or SAMPLE_TOO_SMALL where
    no figures could meet the gates, however good the checkpoint.
    """
    return len(_sample(tokenizer, text, perplexity, agreement, longest)[1])


def _sample(
    tokenizer: Path, text: Path, perplexity: PerplexityGate, agreement: AgreementGate | None, longest: int | None
) -> tuple[TokenizedText, tuple[Tokens, ...]]:
    tokens = tokenize(tokenizer, text)
    length = perplexity.window if longest is None else min(perplexity.window, longest)
    size, fresh = tokens.tokens.size, length - tokens.prefix.size
    if not size:
        raise SourceError("the text is empty", where=text, why="qualify.perplexity.text names it", code="TEXT_EMPTY")
    if fresh < 2:
        raise SourceError(
            f"a window of {length} tokens has no room for the text",
            where=text,
            why=f"the tokenizer puts {tokens.prefix.size} tokens in front of it",
            hint="raise qualify.perplexity.window and limits.max_seq_len",
            code="WINDOW_TOO_SMALL",
        )
    windows = tokens.windows(length, perplexity.windows)
    if len(windows) < MIN_WINDOWS:
        raise SourceError(
            f"the text has {size:,} tokens, and {MIN_WINDOWS} windows of {length} need {MIN_WINDOWS * fresh:,}",
            where=text,
            why="fewer windows can't show how much the figures vary over the text",
            hint="take a longer text, or set qualify.perplexity.window to less",
            code="TEXT_TOO_SHORT",
        )
    scored = len(windows) * (length - 1)
    if agreement is not None and scored < (least := least_tokens_for_share(agreement.min)):
        raise SourceError(
            f"{scored:,} tokens don't show an agreement of {percent(agreement.min)}, even where all agree",
            where=text,
            why=f"a 95 % confidence interval reaches it from {math.ceil(least):,} tokens on",
            hint="take a longer text and more qualify.perplexity.windows",
            code="SAMPLE_TOO_SMALL",
        )
    return tokens, windows


def _compare(
    baseline: ModelFolder,
    candidate: ModelFolder,
    windows: Sequence[Tokens],
    free_bytes: int | None,
    advance: Advance,
) -> Comparison:
    needs = [float32_bytes(baseline), float32_bytes(candidate)]
    free = require_memory(max(needs), free_bytes)
    names = f"the unquantised checkpoint {baseline.path}", f"the checkpoint {candidate.path}"
    if free is None or sum(needs) + WORKING_BYTES <= free:
        with load_checkpoint(baseline.path) as reference, load_checkpoint(candidate.path) as model:
            return compare(*measure_pair(reference, model, windows, advance, names=names))
    with load_checkpoint(baseline.path) as reference:
        before = measure(reference, windows, advance, name=names[0])
    del reference
    with load_checkpoint(candidate.path) as model:
        return compare(before, measure(model, windows, advance, name=names[1]))


def _judge(comparison: Comparison, perplexity: PerplexityGate, agreement: AgreementGate | None) -> tuple[Gate, ...]:
    """What is needed to settle the perplexity is computed from the mean nll, whose interval is symmetric."""
    tokens = comparison.tokens
    increase, share = comparison.increase, comparison.agreement
    gates = [
        Gate(
            "perplexity increase",
            "at most",
            perplexity.max_increase,
            increase.estimate,
            increase.low,
            increase.high,
            *_verdict(
                increase.high <= perplexity.max_increase,
                increase.low > perplexity.max_increase,
                mean_tokens_to_settle(comparison.nll_difference, math.log1p(perplexity.max_increase), tokens),
                tokens,
            ),
        )
    ]
    if agreement is not None:
        gates.append(
            Gate(
                "next-token agreement",
                "at least",
                agreement.min,
                share.estimate,
                share.low,
                share.high,
                *_verdict(
                    share.low >= agreement.min,
                    share.high < agreement.min,
                    share_tokens_to_settle(share, agreement.min, tokens),
                    tokens,
                ),
            )
        )
    return tuple(gates)


def _verdict(meets: bool, misses: bool, needed: float, tokens: int) -> tuple[Verdict, int | None]:
    if meets or misses:
        return ("pass" if meets else "fail"), None
    return "inconclusive", math.ceil(needed) if needed < _HOPELESS * tokens else None
