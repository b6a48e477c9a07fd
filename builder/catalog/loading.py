"""Reading the fact sheets: YAML files of this package, parsed in C where the library has it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import yaml

_Loader: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

SOURCES = "sources"


def read_facts(name: str) -> dict[str, Any]:
    """The content of one YAML file, by its path inside `builder/catalog`."""
    text = files("builder.catalog").joinpath(name).read_text(encoding="utf-8")
    data: dict[str, Any] = yaml.load(text, Loader=_Loader)  # noqa: S506 - a safe loader, of our own files
    return data


def _tuples(value: Any) -> Any:
    """The value with its lists as tuples, all the way down."""
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    return value


def record(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of a fact sheet as keyword arguments of its record: lists as tuples, without its sources."""
    return {key: _tuples(value) for key, value in entry.items() if key != SOURCES}
