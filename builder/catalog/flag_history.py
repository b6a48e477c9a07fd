"""Old option words: what became of them, what a recipe says instead, and which quantisation scheme they ask for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from builder.catalog.loading import read_facts, record
from builder.catalog.releases import engine_removal, has_engines
from builder.catalog.versions import parse
from builder.errors import UsageError

KV_SCHEMES = frozenset({"int8-kv-cache", "fp8-kv-cache"})
"""Schemes of the KV cache, which go with any scheme of the weights."""

_DONE = {
    "renamed": "was renamed",
    "moved": "was moved",
    "removed": "was removed",
    "default": "has had another default since",
    "form": "has another form since",
}


@dataclass(frozen=True)
class FlagChange:
    """An option that changed: `version` is the first release with the change, `removed` that without the old word.

    `unsure`: that release is the first known to have the change; it may be older.
    """

    tool: str
    name: str
    kind: str
    version: str
    message: str
    replaced_by: str | None = None
    removed: str | None = None
    unsure: bool = False

    def describe(self) -> str:
        """The change in one sentence, with what to do."""
        new = f" to {self.replaced_by}" if self.replaced_by and self.kind in ("renamed", "moved") else ""
        if self.kind in ("default", "form"):
            return f"{self.name} of {self.tool} {_DONE[self.kind]} TensorRT-LLM {self.version}: {self.message}"
        release = f"by TensorRT-LLM {self.version}" if self.unsure else f"in TensorRT-LLM {self.version}"
        return f"{self.name} of {self.tool} {_DONE[self.kind]}{new} {release}: {self.message}"


@cache
def flag_history() -> tuple[FlagChange, ...]:
    """Every change, oldest first."""
    changes = [FlagChange(**record(entry)) for entry in read_facts("flags/history.yaml")["changes"]]
    return tuple(sorted(changes, key=lambda change: parse(change.version)))


def migration(word: str) -> str | None:
    """What to do instead of an old or foreign option word, with or without its dashes; None: nothing is known of it."""
    name = normal(word)
    changed = [change.describe() for change in flag_history() if change.name == name]
    field = _words()["fields"].get(name)
    if changed:
        return "; ".join(changed)
    return f"{name} isn't a word of recipes: {field}" if field else None


def quantization_schemes(words: Iterable[str]) -> Mapping[str, tuple[str, ...]]:
    """The quantisation schemes that options ask for, each with the options that ask for it, in their order.

    A word may bring its value ("--weight_only_precision int8", "qformat=fp8"), which then decides; weight-only options
    with a grouped value (int4_gptq) belong to the grouped scheme. Options without any scheme are left out.
    """
    sheet = _words()
    by_word = {word: scheme for scheme, names in sheet["schemes"].items() for word in names}
    asked: dict[str, list[str]] = {}
    for name, value in _pairs(words, sheet["values"]):
        scheme = sheet["values"].get(name, {}).get(value) or by_word.get(name)
        if scheme is not None and name not in asked.setdefault(scheme, []):
            asked[scheme].append(name)
    if "weight_only_precision" in asked.get("grouped", ()):
        asked["grouped"] = [*asked.pop("weight-only", ()), *asked["grouped"]]
    return {scheme: tuple(names) for scheme, names in asked.items()}


def _pairs(words: Iterable[str], values: Mapping[str, Mapping[str, str]]) -> list[tuple[str, str]]:
    """Options with their values: from "--name value", "name=value", or a value that follows as a word of its own."""
    pairs: list[tuple[str, str]] = []
    for word in words:
        if pairs and word in values.get(pairs[-1][0], {}):
            pairs[-1] = (pairs[-1][0], word)
            continue
        name, _, value = word.strip().replace("=", " ", 1).partition(" ")
        pairs.append((normal(name), value.strip()))
    return pairs


def length_flags(version: str, max_input_len: int, max_output_len: int) -> list[str]:
    """The options of trtllm-build that say how long a prompt and an answer may be, as a release spells them.

    Since max_output_len was renamed, the option is max_seq_len: prompt and answer together. Raises UsageError for a
    release without trtllm-build.
    """
    if not has_engines(version):
        raise UsageError(
            f"TensorRT-LLM {version} has no trtllm-build",
            why=f"the engine flow was removed in {engine_removal().since}",
            hint=f"see {engine_removal().guide}",
            code="ENGINE_BACKEND_REMOVED",
        )
    renamed = next(change for change in flag_history() if change.name == "max_output_len")
    lengths = ["--max_input_len", str(max_input_len)]
    if parse(version) < parse(renamed.version):
        return [*lengths, "--max_output_len", str(max_output_len)]
    return [*lengths, f"--{renamed.replaced_by}", str(max_input_len + max_output_len)]


def normal(word: str) -> str:
    """An option word as the tables have it: no leading dashes, underscores inside, lower case."""
    return word.strip().lstrip("-").replace("-", "_").lower()


@cache
def _words() -> Mapping[str, Any]:
    sheet: Mapping[str, Any] = record(read_facts("flags/words.yaml"))
    return sheet
