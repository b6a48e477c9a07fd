"""The rules as a list: what `engine-builder catalog rules` shows."""

import re
from collections import Counter

from builder.plan import RULES


def test_every_rule_has_a_code_of_its_own() -> None:
    assert [code for code, count in Counter(rule.code for rule in RULES).items() if count > 1] == []
    assert all(re.fullmatch(r"[A-Z][A-Z0-9_]*", rule.code) for rule in RULES)


def test_every_rule_says_in_a_sentence_what_it_checks() -> None:
    assert [rule.code for rule in RULES if not re.fullmatch(r"\S.{10,118}[.:;?]", rule.summary)] == []
