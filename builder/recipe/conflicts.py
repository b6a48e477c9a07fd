"""Options of several quantisation schemes at once: one complaint that names them all, wherever they stand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from builder import catalog
from builder.errors import RecipeError


def quantization_conflict(unknown: Mapping[str, Any], weights: object, where: object) -> RecipeError | None:
    """The error `QUANT_CONFLICT` for words that aren't a recipe's, with their values; None where they don't contradict.

    Two schemes of weights contradict each other, and so do two of the KV cache; one of each goes together. `weights` is
    what `precision.weights` asks for. Words that are switched off ask for nothing.
    """
    words = [_word(name, value) for name, value in unknown.items() if value not in (None, False, "disable")]
    schemes = dict(catalog.quantization_schemes(words))
    if not schemes:
        return None
    known = catalog.precisions().get(weights) if isinstance(weights, str) else None
    if known is not None and known.scheme != "float":
        schemes[known.scheme] = (*schemes.get(known.scheme, ()), f"precision.weights {weights}")
    caches = catalog.KV_SCHEMES & schemes.keys()
    if len(caches) < 2 and len(schemes) - len(caches) < 2:
        return None
    return RecipeError(
        "these options ask for several quantisation schemes at once",
        where=where,
        why="; ".join(f"{scheme}: {', '.join(options)}" for scheme, options in schemes.items()),
        hint="a recipe has one: precision.weights (and precision.kv_cache)",
        code="QUANT_CONFLICT",
    )


def _word(name: str, value: Any) -> str:
    """With its value where that is a word: some options ask for a scheme by it."""
    return f"{name}={value}" if isinstance(value, str) else name
