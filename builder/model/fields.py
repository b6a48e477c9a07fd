"""Typed access to a config; what has the wrong type or is absent is named together with the file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from builder.errors import SourceError

MOST = 1 << 31
"""No number of a model is larger: what is, is a mistake or an attack."""


class Fields:
    """One object of a config.

    `names` says how a family calls what the others call otherwise; several names are tried in turn. `defaults` are
    the class defaults of transformers for keys that may be absent; the numbers that were taken from them are noted
    in `assumed`. A key that is there with null is not absent.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        where: str | Path,
        *,
        defaults: Mapping[str, Any] | None = None,
        names: Mapping[str, str | Sequence[str]] | None = None,
    ) -> None:
        self.config = config
        self.where = where
        self.defaults = defaults or {}
        self.names = names or {}
        self.assumed: dict[str, int | float] = {}

    def key(self, name: str) -> str:
        """What the file calls `name`: of several spellings the first that is there and not null."""
        spellings = self.names.get(name, name)
        if isinstance(spellings, str):
            return spellings
        there = [key for key in spellings if self.config.get(key) is not None]
        return there[0] if there else spellings[0]

    def given(self, name: str) -> bool:
        return self.key(name) in self.config

    def get(self, name: str) -> Any:
        """The value, the class default where the key is absent, or None."""
        key = self.key(name)
        if key in self.config:
            return self.config[key]
        default = self.defaults.get(name)
        if default is not None and not isinstance(default, bool | str):
            self.assumed[key] = default
        return default

    def wrong(self, name: str, expected: str) -> SourceError:
        key = self.key(name)
        message = f"{key} must be {expected}, not {self.get(name)!r}" if key in self.config else f"{key} is missing"
        return SourceError(message, where=self.where, why="the model can't be known without it", code="CONFIG_FIELD")

    def contradiction(self, message: str) -> SourceError:
        return SourceError(message, where=self.where, why="the config contradicts itself", code="CONFIG_CONTRADICTION")

    def require(self, names: Sequence[str]) -> None:
        """SourceError that lists every key of `names` that is absent and has no known default."""
        missing = [self.key(name) for name in names if not self.given(name) and self.defaults.get(name) is None]
        if missing:
            raise SourceError(
                f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing",
                where=self.where,
                why="the model can't be known without it" if len(missing) == 1 else "the model can't be known so",
                hint="write the values into config.json; transformers takes them from the defaults of its class",
                code="CONFIG_FIELD",
            )

    def count(self, name: str, most: int = MOST) -> int:
        value = self.get(name)
        if type(value) is not int or not 0 < value <= most:
            raise self.wrong(name, f"a whole number from 1 to {most}")
        return value

    def optional_count(self, name: str, most: int = MOST) -> int | None:
        """A number that may be absent, or null, or 0, which all mean that there is no such thing."""
        return None if self.get(name) in (None, 0) and self.get(name) is not False else self.count(name, most)

    def positive(self, name: str) -> float:
        value = self.get(name)
        if not is_positive(value):
            raise self.wrong(name, "a number above 0")
        return float(value)

    def flag(self, name: str) -> bool:
        """A switch that is off where neither the file nor the class says."""
        value = self.get(name)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def text(self, name: str) -> str:
        value = self.get(name)
        if not isinstance(value, str):
            raise self.wrong(name, "text")
        return value

    def texts(self, name: str) -> list[str]:
        value = self.get(name)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(name, "a list of names")
        return value

    def inner(self, name: str) -> Fields | None:
        """The object under `name`, or None where there is none."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.wrong(name, "an object")
        return Fields(value, f"{self.where}: {self.key(name)}")


def is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e300


def json_safe(value: Any) -> Any:
    """A copy without NaN and Infinity, which aren't JSON: they become text, "NaN", "Infinity" or "-Infinity"."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"
    if isinstance(value, Mapping):
        return {key: json_safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(item) for item in value]
    return value
