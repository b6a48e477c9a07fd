"""Rules on what a recipe wants proved of a checkpoint: whether it can be proved at all."""

from __future__ import annotations

from collections.abc import Iterator

from builder.model.layout import not_covered
from builder.plan.findings import Problem, rule
from builder.plan.unit import Unit

_QUALIFY = ("qualify",)


@rule("QUALIFY_IMPOSSIBLE", "refuse")
def the_proof_can_be_made(unit: Unit) -> Iterator[Problem]:
    """What a recipe wants proved of a checkpoint can be measured.

    The reference model reads TensorRT-LLM checkpoints of the families that we convert; quantised weights are held
    against the same model unquantised, which must be the source.
    """
    gates = unit.settings.qualify
    if gates is None:
        return
    quantized = unit.quantized_here or unit.spec.quantization is not None
    if quantized and gates.perplexity is not None:
        if unit.spec.quantization is not None:
            yield _problem("the source is quantised already: there is nothing to hold its perplexity against")
        elif unit.flow == "pytorch":
            yield _problem("the reference model doesn't read the checkpoints of the pytorch flow")
        elif (reason := not_covered(unit.spec)) is not None:
            yield _problem(f"the reference model can't run it: {reason}")
    elif not quantized and gates.logits is not None and unit.flow == "engine" and unit.maker != "converter":
        yield _problem(f"the reference model can't run it: {not_covered(unit.spec)}")


def _problem(message: str) -> Problem:
    return Problem(f"what qualify asks for can't be proved: {message}", _QUALIFY, "write qualify: null in this target")
