"""Tables of options: trtllm-build, quantize.py, convert_checkpoint.py and the LLM class, per release.

`flags` has what a release is known to take. For a release that no source tells of, `flag_state` says "unknown", and
the option isn't in the table: it is refused when a recipe sets it, and only then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from builder.catalog.loading import read_facts, record
from builder.catalog.versions import parse
from builder.errors import UsageError

LLM_ARGS = "llm_args"
TOOLS = (
    "trtllm-build",
    "quantize",
    "convert_checkpoint/gemma",
    "convert_checkpoint/gpt",
    "convert_checkpoint/llama",
    "convert_checkpoint/phi",
    "convert_checkpoint/qwen",
    LLM_ARGS,
)

_ALSO = {"convert_checkpoint": "convert_checkpoint/llama", "LLM": LLM_ARGS, "LLM arguments": LLM_ARGS}
"""Other names of a tool, as messages have them."""

State = Literal["known", "unknown", "absent"]


@dataclass(frozen=True)
class Flag:
    """One option, without its dashes. `default` None: not set, and the tool decides.

    `type` is int, float, str, strings, choice, switch (given or not), enable (the words enable and disable); for the
    LLM class also bool, ints and object. `since` is the first release of the catalog that has it, `until` the first
    without it. `reserved_by` names the field of a recipe that sets it, or says that engine-builder does.
    """

    name: str
    type: str
    group: str
    since: str
    choices: tuple[str, ...] = ()
    default: str | int | float | bool | None = None
    until: str | None = None
    aliases: tuple[str, ...] = ()
    reserved_by: str | None = None
    note: str | None = None
    unsure: tuple[str, str] | None = None
    stable: bool = False
    later: bool = False


@dataclass(frozen=True)
class _Table:
    flags: Mapping[str, Flag]
    names: Mapping[str, str]
    confirmed_since: str | None
    confirmed_until: str | None


@cache
def flags(tool: str, version: str) -> Mapping[str, Flag]:
    """The options that a release of a tool is known to take; none for a release without the tool, or before 0.20.

    Raises UsageError for a tool that has no table, or for what is no version.
    """
    table = _table(tool)
    return {name: flag for name, flag in table.flags.items() if _state(flag, table, version) == "known"}


def llm_args(version: str) -> Mapping[str, Flag]:
    """The arguments of the LLM class in the PyTorch flow of a release; nested ones with dots."""
    return flags(LLM_ARGS, version)


def flag_state(tool: str, name: str, version: str) -> State:
    """Whether a release takes an option: "unknown" where the option exists but no source tells of this release."""
    table = _table(tool)
    known = table.names.get(name)
    return "absent" if known is None else _state(table.flags[known], table, version)


def canonical(tool: str, name: str) -> str:
    """The table's spelling of an option that has several ("max_decoder_seq_len" is max_seq_len)."""
    return _table(tool).names.get(name, name)


def _state(flag: Flag, table: _Table, version: str) -> State:
    release = parse(version)
    if release < parse(flag.since) or (flag.until is not None and release >= parse(flag.until)):
        return "absent"
    if flag.unsure is not None and parse(flag.unsure[0]) <= release < parse(flag.unsure[1]):
        return "unknown"
    early = table.confirmed_since is not None and release < parse(table.confirmed_since)
    late = table.confirmed_until is not None and release >= parse(table.confirmed_until)
    if not flag.stable and (early or (late and not flag.later)):
        return "unknown"
    return "known"


@cache
def _table(tool: str) -> _Table:
    tool = _ALSO.get(tool, tool)
    if tool not in TOOLS:
        raise UsageError(f"there is no table of options for {tool!r}", hint=f"there is: {', '.join(TOOLS)}")
    sheet = read_facts(f"flags/{tool}.yaml")
    entries: dict[str, dict[str, Any]] = sheet["flags"]
    shared = {"since": sheet["since"], "until": sheet.get("until")}
    table = {name: Flag(name=name, **{**shared, **record(entry)}) for name, entry in entries.items()}
    names = {alias: name for name, flag in table.items() for alias in (name, *flag.aliases)}
    return _Table(table, names, sheet.get("confirmed_since"), sheet.get("confirmed_until"))
