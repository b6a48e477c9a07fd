"""Proof that a checkpoint behaves: it is measured beside a reference, and held against the gates of a recipe.

quantised      beside the same model unquantised, both in the reference model, on a text: perplexity and agreement
unquantised    beside transformers in float32, on a prompt: logits

A gate is passed where the whole 95 % confidence interval meets it, failed where none of it does. Otherwise the sample
is too small to tell, which doesn't pass either, and the error says about how many tokens would settle it.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from builder import __version__
from builder.checkpoint.behaviour import Comparison, TokenizedText, Tokens, compare, measure, measure_pair, tokenize
from builder.checkpoint.statistics import (
    CONFIDENCE,
    MIN_WINDOWS,
    least_tokens_for_share,
    mean_tokens_to_settle,
    share_tokens_to_settle,
)
from builder.errors import HostError, SourceError, VerificationError
from builder.model.config import load_config
from builder.recipe.schema import AgreementGate, LogitsGate, PerplexityGate
from builder.reference.errors import ReferenceModelError
from builder.reference.folder import ModelFolder
from builder.reference.layout import EMBEDDING, HEAD
from builder.reference.model import ReferenceModel
from builder.store.digests import Advance, hash_file, ignore_progress

Verdict = Literal["pass", "fail", "inconclusive"]
Float32 = npt.NDArray[np.float32]

WORKING_BYTES = 512 << 20
"""Logits, activations and the KV cache of one window, for any model."""

_HOPELESS = 1000
_TINY = 1e-30
_PROMPT_TOKENS = 64


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
            f"{self.figure} {_percent(self.estimate)} (95 % interval {_percent(self.low)} to {_percent(self.high)}), "
            f"wanted {self.bound} {_percent(self.limit)}: {self.verdict}"
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


def qualify(
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
    """`evaluate`, and VerificationError QUALIFY_FAILED or QUALIFY_INCONCLUSIVE unless it passes every gate."""
    report = evaluate(
        baseline,
        candidate,
        tokenizer,
        text,
        perplexity,
        agreement,
        longest=longest,
        free_bytes=free_bytes,
        advance=advance,
    )
    report.require()
    return report


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
    opened = [_open(folder) for folder in (baseline, candidate)]
    sizes = [folder.config.vocab_size for folder in opened]
    if sizes[0] != sizes[1]:
        raise _vocabulary_differs(candidate, sizes[1], f"the unquantised checkpoint {baseline}", sizes[0])
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
        _versions("numpy", "tokenizers"),
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
            f"{scored:,} tokens don't show an agreement of {_percent(agreement.min)}, even where all agree",
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
    free = _require_memory(max(needs), free_bytes)
    names = f"the unquantised checkpoint {baseline.path}", f"the checkpoint {candidate.path}"
    if free is None or sum(needs) + WORKING_BYTES <= free:
        with _load(baseline.path) as reference, _load(candidate.path) as model:
            return compare(*measure_pair(reference, model, windows, advance, names=names))
    with _load(baseline.path) as reference:
        before = measure(reference, windows, advance, name=names[0])
    del reference
    with _load(candidate.path) as model:
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


@dataclass(frozen=True)
class LogitsReport:
    """Facts of a checkpoint with unquantised weights: how far its logits are from those of transformers.

    Both in float32, after each of `tokens` tokens of a prompt. The relative difference is the largest one over the
    largest logit; `top1_agreement` is the share of the positions at which both find the same token the likeliest.
    """

    tokens: int
    max_difference: float
    max_relative_difference: float
    top1_agreement: float
    versions: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def require(self, gate: LogitsGate) -> None:
        """VerificationError QUALIFY_FAILED unless the logits are as close as `gate` wants them."""
        if self.max_difference > gate.max_difference:
            raise VerificationError(
                f"logits differ from those of transformers by {self.max_difference:.3g}, "
                f"wanted at most {gate.max_difference:g}",
                where="qualify.logits",
                why=f"on {self.tokens} tokens; at {_percent(self.top1_agreement)} the likeliest one is the same",
                hint="the conversion isn't right, or the model computes something that it leaves out: please report "
                "it with the model's config.json",
                code="QUALIFY_FAILED",
            )


def prompt(vocab_size: int) -> Tokens:
    """A prompt that needs no tokenizer: 64 token ids, spread evenly over a vocabulary."""
    return np.arange(_PROMPT_TOKENS, dtype=np.int64) * vocab_size // _PROMPT_TOKENS


def compare_with_transformers(
    source: Path, checkpoint: Path, token_ids: npt.ArrayLike, *, free_bytes: int | None = None
) -> LogitsReport:
    """Compute a prompt (tokens,) with transformers from the model in `source`, and with the reference model.

    Nothing from the model's folder is executed, only its safetensors are read, and nothing is downloaded. Attention is
    transformers' plain one, since the others leave out Gemma-2's soft cap.

    HostError TRANSFORMERS_MISSING or OUT_OF_MEMORY; SourceError if transformers doesn't load the model whole or its
    weights are quantised; VerificationError if the checkpoint can't be read, or as for `evaluate`.
    """
    opened = _open(checkpoint)
    ids = np.asarray(token_ids, np.int64)
    if ids.size and (ids.min() < 0 or ids.max() >= opened.config.vocab_size):
        raise VerificationError(
            f"the prompt has tokens from {ids.min()} to {ids.max()}, but the vocabulary has {opened.config.vocab_size}",
            where=checkpoint,
            code="TOKEN_OUTSIDE_VOCABULARY",
        )
    _require_memory(float32_bytes(opened), free_bytes)
    theirs = _transformers_logits(source, ids)
    with _load(checkpoint) as model:
        ours = model.prefill(ids, model.new_cache(ids.size), all_positions=True)
    if ours.shape != theirs.shape:
        raise _vocabulary_differs(checkpoint, ours.shape[1], f"the model in {source}", theirs.shape[1])
    for logits, where in ((theirs, source), (ours, checkpoint)):
        finite = np.isfinite(logits).all(axis=1)
        if not finite.all():
            raise VerificationError(
                "logits aren't finite",
                where=f"{where}, position {int(finite.argmin()) + 1} of {ids.size}",
                why="a weight is infinite or not a number",
                code="LOGITS_NOT_FINITE",
            )
    difference = float(np.abs(ours.astype(np.float64) - theirs).max())
    return LogitsReport(
        ids.size,
        difference,
        difference / max(float(np.abs(theirs).max()), _TINY),
        float((ours.argmax(axis=1) == theirs.argmax(axis=1)).mean()),
        _versions("numpy", "torch", "transformers"),
    )


def _transformers_logits(source: Path, ids: Tokens) -> Float32:
    try:
        torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    except ImportError as error:
        raise HostError(
            "transformers and torch aren't installed",
            why=str(error),
            hint="pip install 'engine-builder[modelopt]', or leave qualify.logits out",
            code="TRANSFORMERS_MISSING",
        ) from error
    if load_config(source).get("quantization_config"):
        raise SourceError(
            "the model's weights are quantised",
            where=source / "config.json",
            why="their logits in float32 aren't those of the model",
            hint="leave qualify.logits out: qualify.perplexity is for quantised weights",
            code="SOURCE_QUANTISED",
        )
    transformers.utils.logging.disable_progress_bar()
    try:
        model, loading = transformers.AutoModelForCausalLM.from_pretrained(
            source,
            dtype=torch.float32,
            attn_implementation="eager",
            trust_remote_code=False,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
        )
        if absent := sorted(loading["missing_keys"]):
            raise ValueError(f"{len(absent)} weights are missing, such as {absent[0]}")
        with torch.inference_mode():
            logits: Float32 = model.eval()(torch.from_numpy(ids)[None], use_cache=False).logits[0].numpy()
    except MemoryError:
        raise
    except Exception as error:  # of all kinds
        raise SourceError(
            "transformers can't run the model",
            where=source,
            why=f"{type(error).__name__}: {error}",
            hint="leave qualify.logits out, or use a release of transformers that knows the model",
            code="TRANSFORMERS_REFUSES",
        ) from error
    return logits


def float32_bytes(folder: ModelFolder) -> int:
    """Memory that the reference model takes to hold a checkpoint: every weight as float32, and a copy while it loads.

    4-bit weights are two to a byte. A tied head that isn't stored is kept apart from the embedding.
    """
    quantization = folder.pretrained_config.get("quantization")
    algorithm = quantization.get("quant_algo") if isinstance(quantization, dict) else None
    packed = ("U8", "I8") if str(algorithm).startswith(("W4A16_AWQ", "W4A16_GPTQ", "W4A8_AWQ")) else ("U8",)
    counts = {
        (file.path, name): math.prod(entry.shape) * (2 if name.endswith("weight") and entry.dtype in packed else 1)
        for file in folder.ranks
        for name, entry in file.tensors.items()
    }
    last = folder.ranks[-1]
    head = counts.get((last.path, EMBEDDING), 0) if HEAD not in last.tensors else 0
    return 4 * (sum(counts.values()) + head + 2 * max(counts.values(), default=0))


def free_memory_bytes(root: Path = Path("/")) -> int | None:
    """Memory that this process can still get: what the system has free, or its cgroups allow. None: not known.

    Files in memory count as free, since they make room. `root` is where proc and sys are.
    """
    limits = []
    if (available := _numbers(root / "proc/meminfo").get("MemAvailable")) is not None:
        limits.append(available * 1024)
    for folder in _cgroups(root):
        for limit, usage in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            try:
                most, used = int((folder / limit).read_text()), int((folder / usage).read_text())
            except (OSError, ValueError):  # the other version of cgroups, or "max"
                continue
            stat = _numbers(folder / "memory.stat")
            files = stat.get("total_inactive_file", stat.get("inactive_file", 0))
            limits.append(max(most - used + files, 0))
    return min(limits, default=None)


def _cgroups(root: Path) -> Iterator[Path]:
    """Folders of the process's memory cgroup, version 2 or 1, and of those that it is in."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, path = line.split(":", 2)
        base = root / "sys/fs/cgroup" / controllers
        if number == "0" or "memory" in controllers.split(","):
            inner = Path(path.removeprefix("/"))
            yield from (base / part for part in (inner, *inner.parents))


def _numbers(file: Path) -> dict[str, int]:
    """Of lines like `MemAvailable:  123 kB`."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return {}
    words = [line.replace(":", " ").split() for line in lines]
    return {line[0]: int(line[1]) for line in words if len(line) > 1 and line[1].isdecimal()}


def _require_memory(model_bytes: int, free_bytes: int | None) -> int | None:
    """The free bytes, where they are known. HostError OUT_OF_MEMORY if one model doesn't fit."""
    free = free_memory_bytes() if free_bytes is None else free_bytes
    if free is not None and model_bytes + WORKING_BYTES > free:
        raise HostError(
            f"the model takes {(model_bytes + WORKING_BYTES) / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free",
            why="the reference model computes in float32, with all weights in memory",
            hint="use a machine with more memory, or stop what uses it here",
            code="OUT_OF_MEMORY",
        )
    return free


def _open(folder: Path) -> ModelFolder:
    with _readable(folder):
        return ModelFolder.open(folder)


@contextmanager
def _load(folder: Path) -> Iterator[ReferenceModel]:
    with _readable(folder):
        yield ReferenceModel.load(folder)


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    try:
        yield
    except ReferenceModelError as error:
        raise VerificationError(
            "the reference model doesn't take the checkpoint",
            where=folder,
            why=str(error),
            code="CHECKPOINT_UNREADABLE",
        ) from error
    except MemoryError as error:
        raise HostError(
            "there isn't memory enough for the model",
            where=folder,
            why=str(error),
            hint="use a machine with more memory, or stop what uses it here",
            code="OUT_OF_MEMORY",
        ) from error


def _vocabulary_differs(checkpoint: Path, size: int, other: str, other_size: int) -> VerificationError:
    return VerificationError(
        f"the checkpoint's vocabulary has {size} tokens, that of {other} {other_size}",
        where=checkpoint,
        why="they aren't the same model, or the vocabulary was padded",
        code="VOCABULARY_DIFFERS",
    )


def _versions(*packages: str) -> dict[str, str]:
    return {"engine-builder": __version__, **{name: version(name) for name in packages}}


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"
