"""The stage `qualify`: proof that a checkpoint behaves, on a CPU, before anything is built from it."""

from __future__ import annotations

import json
import shutil
from typing import Any

from builder.build.context import Context, check_lock
from builder.checkpoint.convert import convert
from builder.checkpoint.logits import compare_with_transformers, prompt
from builder.checkpoint.qualification import check_sample, evaluate
from builder.errors import PlanRefused
from builder.lock.texts import pinned_texts
from builder.model.layout import Split
from builder.plan import Unit
from builder.store import Workspace


def qualify_checkpoint(unit: Unit, context: Context) -> None:
    """Writes report.json. VerificationError QUALIFY_FAILED or QUALIFY_INCONCLUSIVE where a gate isn't passed."""
    report = _logits(unit, context) if unit.proof == "logits" else _perplexity(unit, context)
    context.facts["report"] = report
    (context.workspace.path / "report.json").write_text(json.dumps(report, indent=1, sort_keys=True) + "\n")


def _logits(unit: Unit, context: Context) -> dict[str, Any]:
    gates = unit.settings.qualify
    if gates is None or gates.logits is None:
        raise PlanRefused(f"{unit.id} has no gate for its logits")
    source = context.fetch(("weights", "config"))
    check_lock(unit, source)
    found = compare_with_transformers(source, context.inputs["checkpoint"].files, prompt(unit.spec.vocab_size))
    found.require(gates.logits)
    return found.to_json()


def _perplexity(unit: Unit, context: Context) -> dict[str, Any]:
    """Beside the same model unquantised, which is converted for this and removed again."""
    gates = unit.settings.qualify
    if gates is None or gates.perplexity is None:
        raise PlanRefused(f"{unit.id} has no gate for its perplexity")
    source = context.fetch(("weights", "config", "tokenizer"))
    check_lock(unit, source)
    text = pinned_texts(gates.perplexity.text, unit.recipe, unit.lock, context.store)
    check_sample(
        source / "tokenizer.json", text, gates.perplexity, gates.agreement, longest=unit.max_seq_len
    )  # before gigabytes are converted for it
    baseline = context.workspace.path / "baseline"
    baseline.mkdir()
    convert(source, unit.spec, Workspace(baseline), Split(), dtype=unit.dtype)
    report = evaluate(
        baseline,
        context.inputs["checkpoint"].files,
        source / "tokenizer.json",
        text,
        gates.perplexity,
        gates.agreement,
        longest=unit.max_seq_len,
    )
    shutil.rmtree(baseline)
    report.require()
    return report.to_json()
