"""A JSON object whose fields are taken out with their types checked."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from builder.reference.errors import ReferenceModelError


class Fields:
    """`where` begins every error. A key with null counts as absent."""

    def __init__(self, table: object, where: str) -> None:
        if not isinstance(table, Mapping):
            raise ReferenceModelError(f"{where}: a JSON object is expected, not {table!r:.80}")
        self.table: Mapping[str, Any] = table
        self.where = where

    def error(self, message: str) -> ReferenceModelError:
        return ReferenceModelError(f"{self.where}: {message}")

    def inner(self, key: str) -> Fields:
        """The object under `key`; empty where there is none."""
        return Fields(self.table.get(key) or {}, f"{self.where}: {key}")

    def refuse_unknown(self, known: Collection[str]) -> None:
        """Of keys that aren't `known`, only those that are switched off (null or false) are accepted."""
        for key, value in self.table.items():
            if key not in known and value is not None and value is not False:
                raise self.error(f"the key {key!r} is not known, it may change the result")

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._value(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.error(f"{key} must be a positive integer, not {value!r}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._value(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise self.error(f"{key} must be a positive number, not {value!r}")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        return None if self.table.get(key) is None else self.number(key)

    def optional_integer(self, key: str) -> int | None:
        return None if self.table.get(key) is None else self.integer(key)

    def boolean(self, key: str, default: bool = False) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.error(f"{key} must be true or false, not {value!r}")
        return value

    def choice(self, key: str, values: tuple[str, ...], default: str | None = None) -> str:
        value = self._value(key, default)
        if not isinstance(value, str) or value not in values:
            raise self.error(f"{key} {value!r} is not implemented; implemented: {', '.join(values)}")
        return value

    def numbers(self, key: str) -> tuple[float, ...]:
        value = self._value(key, None)
        if not isinstance(value, list) or not all(
            isinstance(item, int | float) and not isinstance(item, bool) and 0 < item < math.inf for item in value
        ):
            raise self.error(f"{key} must be a list of positive numbers")
        return tuple(map(float, value))

    def _value(self, key: str, default: object) -> object:
        value = self.table.get(key)
        value = default if value is None else value
        if value is None:
            raise self.error(f"{key} is missing")
        return value
