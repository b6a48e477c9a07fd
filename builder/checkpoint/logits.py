"""Proof that an unquantised checkpoint computes what transformers computes: its logits beside theirs, in float32."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from builder.checkpoint.behaviour import Float32, Tokens
from builder.checkpoint.in_memory import (
    computed_with,
    float32_bytes,
    load_checkpoint,
    open_checkpoint,
    require_memory,
    vocabulary_differs,
)
from builder.checkpoint.statistics import percent
from builder.errors import HostError, SourceError, VerificationError
from builder.model.config import load_config
from builder.recipe.schema import LogitsGate

_TINY = 1e-30
_PROMPT_TOKENS = 64


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
                why=f"on {self.tokens} tokens; at {percent(self.top1_agreement)} the likeliest one is the same",
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
    opened = open_checkpoint(checkpoint)
    ids = np.asarray(token_ids, np.int64)
    if ids.size and (ids.min() < 0 or ids.max() >= opened.config.vocab_size):
        raise VerificationError(
            f"the prompt has tokens from {ids.min()} to {ids.max()}, but the vocabulary has {opened.config.vocab_size}",
            where=checkpoint,
            code="TOKEN_OUTSIDE_VOCABULARY",
        )
    require_memory(float32_bytes(opened), free_bytes)
    theirs = _transformers_logits(source, ids)
    with load_checkpoint(checkpoint) as model:
        ours = model.prefill(ids, model.new_cache(ids.size), all_positions=True)
    if ours.shape != theirs.shape:
        raise vocabulary_differs(checkpoint, ours.shape[1], f"the model in {source}", theirs.shape[1])
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
        computed_with("numpy", "torch", "transformers"),
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
