"""The rules: what is known to fail, or to be rewritten silently, decided before anything is built.

One small function each, in a module per topic; importing a module registers its rules. `check` applies all of them to a
unit. What TensorRT-LLM rewrites without a word is told as what it will become; what it refuses late is refused now.
"""

from builder.plan.findings import RULES, check
from builder.plan.rules import (
    attention,
    draft_length,
    engine,
    experts,
    fusion,
    limits,
    lora,
    memory,
    model,
    parallelism,
    precision,
    publishing,
    pytorch,
    qualify,
    quantization,
    reference,
    runner,
    serving,
    source,
    speculative,
    splitting,
    tokens,
    toolchain,
    transformers,
)

__all__ = [
    "RULES",
    "attention",
    "check",
    "draft_length",
    "engine",
    "experts",
    "fusion",
    "limits",
    "lora",
    "memory",
    "model",
    "parallelism",
    "precision",
    "publishing",
    "pytorch",
    "qualify",
    "quantization",
    "reference",
    "runner",
    "serving",
    "source",
    "speculative",
    "splitting",
    "tokens",
    "toolchain",
    "transformers",
]
