"""Which modules a quantised checkpoint leaves as they were: the patterns of its exclusion list, applied to tensors.

The tools write them differently, and all of their forms are understood:

    lm_head, gate                   a name, or a part of it, and what is inside it     transformers
    model.layers.*.self_attn        * for anything, and what is inside it              transformers, ModelOpt
    re:.*self_attn.*                a regular expression                               compressed-tensors
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from fnmatch import translate
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from builder.model.layer_weights import Weight

MOST_PATTERNS = 2000
"""With a wildcard. The longest published lists have some hundreds."""

MOST_STEPS = 2_000_000
"""Steps of matching per module, times layers. A layer has some ten modules, and a step takes some nanoseconds."""

_REPEATED_GROUP = re.compile(r"\)[*+{]")
_DIGITS = re.compile(r"(\\d|\[0-9\])[*+]")
_GLOB_STEPS, _NAME_LENGTH = 15, 30
_MOST_REPEATS = 4


class Exclusions:
    """The modules that are named by patterns, each in any of the forms above."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self._plain = frozenset(pattern for pattern in patterns if not _is_wild(pattern))
        self._wild = _combined(tuple(pattern for pattern in patterns if _is_wild(pattern)))

    def __contains__(self, module: str) -> bool:
        """Whether the module of this full name, or one that it is in, is excluded."""
        parts = module.split(".")
        ends = range(1, len(parts) + 1)
        named = {".".join(parts[start:end]) for end in ends for start in range(end)}
        if not self._plain.isdisjoint(named):
            return True
        wild = self._wild
        return wild is not None and any(wild.match(".".join(parts[:end])) for end in ends)

    def applied(self, weight: Weight, layers: tuple[int, ...]) -> list[Weight]:
        """`weight` as those `layers` have it: once, or twice where some of them are excluded and some aren't."""
        if not weight.quantized or (not self._plain and self._wild is None):
            return [replace(weight, layers=layers)]
        kept: list[int] = []
        quantized: list[int] = []
        for layer in layers:
            (kept if self._leaves(weight.name, layer) else quantized).append(layer)
        parts = ((tuple(quantized), True), (tuple(kept), False))
        return [replace(weight, layers=numbers, quantized=flag) for numbers, flag in parts if numbers]

    def _leaves(self, name: str, layer: int) -> bool:
        """All experts of a layer are alike, so that the first of them stands for all."""
        return name.removesuffix(".weight").replace("*", str(layer), 1).replace("*", "0") in self


def bad_pattern(patterns: tuple[str, ...]) -> str | None:
    """The first pattern that can't be matched in reasonable time, or isn't a regular expression at all."""
    wild = [pattern for pattern in patterns if _is_wild(pattern)]
    if len(wild) > MOST_PATTERNS:
        return wild[MOST_PATTERNS]
    for pattern in wild:
        if not pattern.startswith("re:"):
            continue
        expression = pattern[3:]
        repeats = sum(expression.count(sign) for sign in "*+{")
        if len(expression) > 500 or repeats > _MOST_REPEATS or _REPEATED_GROUP.search(expression):
            return pattern
        try:
            re.compile(expression)
        except re.error:
            return pattern
    return None


def steps(patterns: tuple[str, ...]) -> int:
    """About how many steps it takes to compare a module with all patterns.

    An expression is tried anew for every length of what it repeats, and for every alternative: they multiply.
    """
    total = 0
    for pattern in patterns:
        if pattern.startswith("re:"):
            expression, digits = _DIGITS.subn("", pattern[3:].removesuffix("$").removesuffix(".*"))
            repeats = sum(expression.count(sign) for sign in "*+{")
            optional = expression.count("?") - expression.count("(?")
            total += _GLOB_STEPS + _alternatives(expression) * 2**optional * 4**digits * _NAME_LENGTH**repeats
        elif _is_wild(pattern):
            total += _GLOB_STEPS
    return total


def _alternatives(expression: str) -> int:
    """In how many ways the alternatives of all groups can be combined."""
    ways, groups = 1, [1]
    for sign in expression:
        if sign == "(":
            groups.append(1)
        elif sign == "|":
            groups[-1] += 1
        elif sign == ")" and len(groups) > 1:
            ways *= groups.pop()
    return ways * math.prod(groups)


def _is_wild(pattern: str) -> bool:
    return "*" in pattern or pattern.startswith("re:")


@lru_cache(maxsize=256)
def _combined(patterns: tuple[str, ...]) -> re.Pattern[str] | None:
    """One expression for all patterns; None if there are none. Its globs are matched in linear time."""
    expressions = [pattern[3:] if pattern.startswith("re:") else translate(pattern) for pattern in patterns]
    return re.compile("|".join(f"(?:{expression})" for expression in expressions)) if expressions else None
