"""What is known of how an artifact was made and of what was found out about it, in lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def fact_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """The facts of a stage's artifact, in words."""
    if "seconds" in facts:
        yield f"made in {facts['seconds']:g} s on {facts.get('host', 'some machine')}"
    if made := facts.get("quantization"):
        yield (
            f"by ModelOpt {made['modelopt']} on {made['device']}: {made['texts']} texts, {made['seconds']:g} s, "
            f"{made['peak_memory_bytes'] / 1e9:.1f} GB of memory"
        )
    if found := facts.get("verification"):
        yield f"{len(found['faults'])} faults found" if found["faults"] else "verified against its source"
    if report := facts.get("report"):
        yield from _report(report)


def _report(report: Mapping[str, Any]) -> Iterator[str]:
    if "max_difference" in report:
        yield (
            f"logits differ from transformers' by {report['max_difference']:.2g} at most, on {report['tokens']} "
            f"tokens; the likeliest is the same at {report['top1_agreement']:.0%}"
        )
        return
    measured = report["comparison"]
    yield (
        f"perplexity {measured['candidate_perplexity']:.2f}, unquantised {measured['reference_perplexity']:.2f}, "
        f"on {measured['tokens']:,} tokens"
    )
    for gate in report["gates"]:
        interval = f"{gate['low']:.2%} to {gate['high']:.2%}"
        yield f"{gate['figure']} {gate['estimate']:.2%} ({interval}), wanted {gate['bound']} {gate['limit']:.2%}"
