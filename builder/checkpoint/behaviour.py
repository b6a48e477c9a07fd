"""How a checkpoint behaves: how well it predicts a text, and how far its predictions are from another one's.

A text is tokenised with the model's own tokenizer and cut into windows of equal length, each of which begins with the
tokens that the tokenizer puts in front of a text (BOS). The reference model computes the logits of a window in slices,
and only a negative log likelihood and the likeliest token are kept of each position:

    nll(position) = -log softmax(logits after the tokens before it)[token at it], natural logarithm, in float64
    perplexity    = exp(mean nll)

The first token of a window has nothing before it and isn't scored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from builder.checkpoint.statistics import Float64, Interval, Proportion, mean_interval, proportion_interval
from builder.errors import SourceError, VerificationError
from builder.reference.model import ReferenceModel
from builder.store.digests import Advance, ignore_progress

Tokens = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]

MAX_TEXT_BYTES = 16 << 20
"""Millions of tokens, far more than a claim needs; the tokenizer takes a hundred times as much memory."""

_SLICE_BYTES = 64 << 20
_SOFTMAX_ROWS = 16
_MAX_EXPONENT = 700.0
_MAX_FLOAT32 = np.finfo(np.float32).max


@dataclass(frozen=True)
class TokenizedText:
    """`prefix` is what the tokenizer puts in front of any text, often BOS or nothing; `tokens` (n,) are the text's."""

    prefix: Tokens
    tokens: Tokens

    def windows(self, length: int, most: int) -> tuple[Tokens, ...]:
        """All whole windows of `length` tokens, or `most` of them, spread evenly over the text."""
        fresh = length - self.prefix.size
        if fresh < 1 or length < 2:
            raise ValueError(f"a window of {length} tokens scores none behind {self.prefix.size} in front of the text")
        whole = self.tokens.size // fresh
        count = min(whole, most)
        starts = [(2 * index + 1) * whole // (2 * count) * fresh for index in range(count)]
        return tuple(np.concatenate([self.prefix, self.tokens[start : start + fresh]]) for start in starts)


def tokenize(tokenizer: Path, text: Path) -> TokenizedText:
    """The tokens of a UTF-8 text. `tokenizer` is a tokenizer.json; what it says of truncation and padding is left out.

    SourceError where one of them is absent, too large or malformed.
    """
    content = _read(text)
    try:
        library = Tokenizer.from_file(str(tokenizer))
    except Exception as error:  # the library raises nothing more special
        raise SourceError(
            "the tokenizer can't be read", where=tokenizer, why=str(error), code="TOKENIZER_JSON"
        ) from error
    library.no_truncation()
    library.no_padding()
    probe = library.encode("a")
    added = takewhile(lambda pair: pair[1], zip(probe.ids, probe.special_tokens_mask, strict=True))
    tokens = library.encode(content, add_special_tokens=False).ids
    return TokenizedText(np.array([token for token, _ in added], np.int64), np.array(tokens, np.int64))


@dataclass(frozen=True, eq=False)
class Measurement:
    """What is kept of a model's run: `nll` and `top1`, the likeliest token, both (windows, scored tokens)."""

    nll: Float64
    top1: npt.NDArray[np.int32]

    @property
    def perplexity(self) -> float:
        return _exp(float(self.nll.mean()))


@dataclass(frozen=True)
class Divergence:
    """Of the logits of two models. `mean_kl` is KL(reference ‖ candidate) per token, in nats."""

    mean_kl: float
    max_logit_difference: float


@dataclass(frozen=True)
class Comparison:
    """A candidate beside its reference, on `windows` windows with `window_tokens` scored tokens each.

    `nll_difference` is candidate less reference, in nats per token, and `increase` = exp(it) - 1 that of the
    perplexity, as a share of the reference's. `agreement` is the share of positions at which both find the same token
    the likeliest. `divergence` is None where only one model at a time fits into memory.
    """

    windows: int
    window_tokens: int
    reference_perplexity: float
    candidate_perplexity: float
    nll_difference: Interval
    increase: Interval
    agreement: Proportion
    divergence: Divergence | None = None

    @property
    def tokens(self) -> int:
        return self.windows * self.window_tokens


def measure(
    model: ReferenceModel,
    windows: Sequence[Tokens],
    advance: Advance = ignore_progress,
    *,
    name: str = "the model",
) -> Measurement:
    """Run one model over windows of equal length; `advance` is told tokens. Errors call it by `name`.

    VerificationError LOGITS_NOT_FINITE, and TOKEN_OUTSIDE_VOCABULARY where the text has tokens that the model hasn't.
    """
    kept = _Kept(windows)
    for number, window in enumerate(windows):
        for part, logits in _logits(model, name, number, window):
            for rows, scores in _softmax(logits, part.start):
                kept.add(number, window, rows, scores)
        advance(window.size)
    return kept.measurement()


def measure_pair(
    reference: ReferenceModel,
    candidate: ReferenceModel,
    windows: Sequence[Tokens],
    advance: Advance = ignore_progress,
    *,
    names: tuple[str, str] = ("the reference", "the candidate"),
) -> tuple[Measurement, Measurement, Divergence]:
    """Run two models side by side, which compares all of their logits as well; errors and `advance` as for each."""
    kept = _Kept(windows), _Kept(windows)
    divergence, furthest, count = 0.0, 0.0, 0
    for number, window in enumerate(windows):
        pairs = zip(
            _logits(reference, names[0], number, window), _logits(candidate, names[1], number, window), strict=True
        )
        for (part, ours), (_, theirs) in pairs:
            with np.errstate(over="ignore"):
                furthest = max(furthest, float(np.abs(ours - theirs).max().clip(max=_MAX_FLOAT32)))
            scored = zip(_softmax(ours, part.start), _softmax(theirs, part.start), strict=True)
            for (rows, our_scores), (_, their_scores) in scored:
                kept[0].add(number, window, rows, our_scores)
                kept[1].add(number, window, rows, their_scores)
                divergence += float((np.exp(our_scores) * (our_scores - their_scores)).sum())
                count += len(our_scores)
        advance(2 * window.size)
    return kept[0].measurement(), kept[1].measurement(), Divergence(max(divergence, 0.0) / count, furthest)


def compare(reference: Measurement, candidate: Measurement, divergence: Divergence | None = None) -> Comparison:
    """What two measurements on the same windows, two at least, say; `divergence` is passed on.

    The same tokens are scored twice, so the intervals are of the differences, which vary far less than either nll.
    """
    windows, window_tokens = reference.nll.shape
    difference = mean_interval((candidate.nll - reference.nll).mean(axis=1))
    return Comparison(
        windows,
        window_tokens,
        reference.perplexity,
        candidate.perplexity,
        difference,
        Interval(*(_exp(value) - 1 for value in (difference.estimate, difference.low, difference.high))),
        proportion_interval((candidate.top1 == reference.top1).mean(axis=1), window_tokens),
        divergence,
    )


class _Kept:
    """Collects what is kept of each position."""

    def __init__(self, windows: Sequence[Tokens]) -> None:
        shape = (len(windows), windows[0].size - 1)
        self._nll = np.empty(shape, np.float64)
        self._top1 = np.empty(shape, np.int32)

    def add(self, number: int, window: Tokens, rows: slice, scores: Float64) -> None:
        targets = window[rows.start + 1 : rows.stop + 1]
        self._nll[number, rows] = -scores[np.arange(len(targets)), targets]
        self._top1[number, rows] = scores.argmax(axis=1)

    def measurement(self) -> Measurement:
        return Measurement(self._nll, self._top1)


def _logits(model: ReferenceModel, name: str, number: int, window: Tokens) -> Iterator[tuple[slice, Float32]]:
    """The logits after each token of a window but the last, some tokens at a time: few enough for any vocabulary."""
    inputs = window[:-1]
    if window.max() >= model.vocab_size:
        raise VerificationError(
            f"the text has the token {window.max()}, but the vocabulary of {name} has {model.vocab_size}",
            where=f"window {number + 1}",
            why="the tokenizer isn't this model's",
            hint="take tokenizer.json from the folder that the model came from",
            code="TOKEN_OUTSIDE_VOCABULARY",
        )
    step = max(_SLICE_BYTES // (4 * model.vocab_size), _SOFTMAX_ROWS)
    cache = model.new_cache(inputs.size)
    for start in range(0, inputs.size, step):
        logits = model.prefill(inputs[start : start + step], cache, all_positions=True)
        finite = np.isfinite(logits).all(axis=1)
        if not finite.all():
            raise VerificationError(
                f"logits of {name} aren't finite",
                where=f"window {number + 1}, position {start + int(finite.argmin()) + 1} of {window.size}",
                why="a weight or a scale is infinite or not a number, or too large for float32",
                hint="convert or quantise again; if the source itself has such weights, it is damaged",
                code="LOGITS_NOT_FINITE",
            )
        yield slice(start, start + len(logits)), logits


def _softmax(logits: Float32, first: int) -> Iterator[tuple[slice, Float64]]:
    """Logarithms of the softmax, some rows at a time, so that they stay in the processor's cache."""
    for start in range(0, len(logits), _SOFTMAX_ROWS):
        scores = logits[start : start + _SOFTMAX_ROWS].astype(np.float64)
        scores -= scores.max(axis=1, keepdims=True)
        scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
        yield slice(first + start, first + start + len(scores)), scores


def _exp(value: float) -> float:
    """A number that JSON can hold, however broken the model is."""
    return math.exp(min(value, _MAX_EXPONENT))


def _read(text: Path) -> str:
    try:
        with open(text, "rb") as file:
            content = file.read(MAX_TEXT_BYTES + 1)
    except OSError as error:
        raise SourceError("the text can't be read", where=text, why=error.strerror, code="TEXT_UNREADABLE") from error
    if len(content) > MAX_TEXT_BYTES:
        raise SourceError(
            f"the text has more than {MAX_TEXT_BYTES >> 20} MiB",
            where=text,
            hint="take a part of it: a few hundred thousand tokens carry any claim",
            code="TEXT_TOO_LARGE",
        )
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise SourceError("the text isn't UTF-8", where=text, why=str(error), code="TEXT_NOT_UTF8") from error
