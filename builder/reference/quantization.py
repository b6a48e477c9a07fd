"""The `quantization` section of config.json: which linears are stored how, and the format of the KV cache."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from builder.reference.fields import Fields

WEIGHTS = (
    "FP8",
    "FP8_PER_CHANNEL_PER_TOKEN",
    "NVFP4",
    "W4A16_AWQ",
    "W4A8_AWQ",
    "W8A8_SQ_PER_CHANNEL",
    "W8A16",
    "W4A16",
)
"""quant_algo values that are implemented; NO_QUANT and null besides."""

_KV_CACHE = ("FP8", "INT8")
_DEFAULT_GROUP = 128


@dataclass(frozen=True)
class Quantization:
    """`algo` None: nothing is quantised. `excluded` are names, or patterns of names, of linears that stay floats."""

    algo: str | None = None
    kv_algo: str | None = None
    group_size: int = _DEFAULT_GROUP
    excluded: tuple[str, ...] = ()

    @classmethod
    def from_fields(cls, fields: Fields) -> Quantization:
        """ReferenceModelError for a format that isn't implemented."""
        table = fields.table
        algo = None if table.get("quant_algo") in (None, "NO_QUANT") else fields.choice("quant_algo", WEIGHTS)
        kv_algo = None if table.get("kv_cache_quant_algo") is None else fields.choice("kv_cache_quant_algo", _KV_CACHE)
        if table.get("has_zero_point"):
            raise fields.error("has_zero_point true is not implemented")
        excluded = table.get("exclude_modules") or []
        if not isinstance(excluded, list) or not all(isinstance(name, str) for name in excluded):
            raise fields.error("exclude_modules must be a list of names")
        group_size = fields.integer("group_size", 16 if algo == "NVFP4" else _DEFAULT_GROUP)
        return cls(algo, kv_algo, group_size, tuple(excluded))

    @property
    def rounds_when_built(self) -> bool:
        """Weights are stored as floats, and rounded by whoever builds the engine."""
        return self.algo in ("W8A16", "W4A16")

    def format_of(self, linear: str) -> str | None:
        """The algorithm that the linear of this name is stored with; None: as floats. The head never is quantised
        unless its name isn't excluded, which ModelOpt always does."""
        if self.algo is None or any(_matches(linear, pattern) for pattern in self.excluded):
            return None
        return self.algo


def _matches(linear: str, pattern: str) -> bool:
    return fnmatchcase(linear, pattern) or linear.startswith(f"{pattern}.")
