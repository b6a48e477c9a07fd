"""Findings, and the frame of the rules that make them.

A rule is one small function: it looks at a unit and yields a `Problem` for each thing that is known to fail, or to be
rewritten silently. Its decorator gives it a code and a severity:

    refuse            it can't work: the unit isn't built
    refuse-waivable   it may work, and hardly anybody wants it: a waiver in the recipe, with a reason, lets it pass
    warn              it works, but not as one may think
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from builder.plan.unit import Unit

Severity = Literal["refuse", "refuse-waivable", "warn"]


@dataclass(frozen=True)
class Finding:
    """What a rule says of one unit. `waived` is the reason that the recipe gives for letting it pass."""

    code: str
    severity: Severity
    unit: str
    message: str
    where: str
    suggestion: str
    values: Mapping[str, Any] = field(default_factory=dict)
    waived: str | None = None

    @property
    def refuses(self) -> bool:
        return self.severity != "warn" and self.waived is None


@dataclass(frozen=True)
class Problem:
    """What a rule yields. `at` is the path of the value in the recipe; `severity` replaces the rule's own."""

    message: str
    at: tuple[str | int, ...]
    suggestion: str
    values: Mapping[str, Any] = field(default_factory=dict)
    severity: Severity | None = None


Check = Callable[["Unit"], Iterator[Problem]]


@dataclass(frozen=True)
class Rule:
    """A rule of the catalogue: the code of its findings, its severity, and what it checks, in a sentence."""

    code: str
    severity: Severity
    summary: str
    check: Check


RULES: list[Rule] = []


def rule(code: str, severity: Severity) -> Callable[[Check], Check]:
    """Register a rule. The first line of its docstring says what it checks."""

    def register(function: Check) -> Check:
        summary = (function.__doc__ or "").strip().partition("\n")[0]
        RULES.append(Rule(code, severity, summary, function))
        return function

    return register


def check(unit: Unit) -> tuple[Finding, ...]:
    """Every finding of every rule for one unit, with the recipe's waivers applied."""
    findings = [_finding(unit, rule, problem) for rule in RULES for problem in rule.check(unit)]
    return tuple(_waive(unit, findings)) if unit.settings.waivers else tuple(findings)


def _finding(unit: Unit, rule: Rule, problem: Problem) -> Finding:
    return Finding(
        code=rule.code,
        severity=problem.severity or rule.severity,
        unit=unit.id,
        message=problem.message,
        where=str(unit.recipe.place(*problem.at, target=unit.target)),
        suggestion=problem.suggestion,
        values=problem.values,
    )


def _waive(unit: Unit, findings: list[Finding]) -> Iterator[Finding]:
    """A waiver is recorded in the finding; what can't be waived stays as it is, and the waiver is reported."""
    reasons = {waiver.code: waiver.reason for waiver in unit.settings.waivers}
    used = set()
    for finding in findings:
        if finding.severity == "refuse-waivable" and finding.code in reasons:
            used.add(finding.code)
            finding = replace(finding, waived=reasons[finding.code])
        yield finding
    for index, waiver in enumerate(unit.settings.waivers):
        if waiver.code in used:
            continue
        found = any(finding.code == waiver.code for finding in findings)
        yield Finding(
            code="WAIVER_WITHOUT_EFFECT",
            severity="warn",
            unit=unit.id,
            message=f"the waiver of {waiver.code} has no effect: "
            + ("this finding can't be waived" if found else "there is no such finding"),
            where=str(unit.recipe.place("waivers", index, target=unit.target)),
            suggestion="remove the waiver",
        )
