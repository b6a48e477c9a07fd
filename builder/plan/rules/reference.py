"""What the reference engine of the SKU `cpu` can't do. Settings that only tune TensorRT-LLM have no effect there."""

from __future__ import annotations

from collections.abc import Iterator

from builder.plan.findings import Problem, rule
from builder.plan.unit import Unit


@rule("REFERENCE_UNSUPPORTED", "refuse")
def unsupported_by_the_reference_engine(unit: Unit) -> Iterator[Problem]:
    """On `cpu`: no guided decoding, no LoRA, no speculative decoding, one beam, and no split of the context."""
    if not unit.gpu.is_cpu:
        return
    settings = unit.settings
    if settings.serving.guided_decoding != "none":
        yield _problem(
            ("serving", "guided_decoding"),
            f"guided decoding ({settings.serving.guided_decoding})",
            settings.serving.guided_decoding,
            "serving: {guided_decoding: none}",
        )
    if settings.lora:
        yield _problem(("lora",), "LoRA adapters", len(settings.lora.adapters), "lora: null")
    if settings.speculative:
        mode = settings.speculative.mode
        yield _problem(("speculative",), f"speculative decoding ({mode})", mode, "speculative: null")
    if (beams := settings.limits.max_beam_width) > 1:
        yield _problem(
            ("limits", "max_beam_width"), f"beam search ({beams} beams)", beams, "limits: {max_beam_width: 1}"
        )
    if unit.maker == "toolchain" and unit.quantized_here:
        what = f"quantiser for {unit.precision.name} weights with a {unit.kv_precision.name} KV cache"
        yield _problem(("precision", "kv_cache"), what, unit.kv_precision.name, "precision: {kv_cache: auto}")
    if (ranks := settings.parallelism.context) > 1:
        what = f"context parallelism ({ranks} ranks)"
        yield _problem(("parallelism", "context"), what, ranks, "parallelism: {context: 1}")


def _problem(at: tuple[str, ...], what: str, value: object, override: str) -> Problem:
    return Problem(
        f"the reference engine of cpu has no {what}",
        at,
        f"write {override} in this target, or build for a GPU",
        {"setting": ".".join(at), "value": value},
    )
