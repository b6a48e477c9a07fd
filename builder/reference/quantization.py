"""The `quantization` section of config.json: which linears are stored how, and the format of the KV cache."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from builder.reference.fields import Fields

_WEIGHTS = (
    "FP8",
    "FP8_PER_CHANNEL_PER_TOKEN",
    "NVFP4",
    "W4A16_AWQ",
    "W4A8_AWQ",
    "W8A8_SQ_PER_CHANNEL",
    "W8A16",
    "W4A16",
)
_KV_CACHE = ("FP8", "INT8")
_AWQ = ("W4A16_AWQ", "W4A8_AWQ")

_DEFAULT_GROUP = 128
_EXCLUDED_BY_DEFAULT = ("*lm_head", "*router", "*vocab_embedding")
"""What TensorRT-LLM excludes where `exclude_modules` is absent (quantize_layers in quantization/quantize.py)."""

_HEAD_IS_FLOAT = ("FP8_PER_CHANNEL_PER_TOKEN", "W8A16", "W4A16")
"""The formats that TensorRT-LLM has no head in, excluded or not."""

_READ = {"quant_algo", "kv_cache_quant_algo", "group_size", "has_zero_point", "pre_quant_scale", "exclude_modules"}
_ABOUT_ACTIVATIONS = {"smoothquant_val", "clamp_val"}


@dataclass(frozen=True)
class Quantization:
    """`algo` None: nothing is quantised. `excluded` are patterns of the names of modules that stay floats."""

    algo: str | None = None
    kv_algo: str | None = None
    group_size: int = _DEFAULT_GROUP
    excluded: tuple[str, ...] = _EXCLUDED_BY_DEFAULT

    @classmethod
    def from_fields(cls, fields: Fields) -> Quantization:
        """ReferenceModelError for a format that isn't implemented."""
        table = fields.table
        algo = None if table.get("quant_algo") in (None, "NO_QUANT") else fields.choice("quant_algo", _WEIGHTS)
        kv_algo = None if table.get("kv_cache_quant_algo") is None else fields.choice("kv_cache_quant_algo", _KV_CACHE)
        if fields.boolean("has_zero_point"):
            raise fields.error("has_zero_point true is not implemented")
        if fields.boolean("pre_quant_scale", algo in _AWQ) is not (algo in _AWQ):
            raise fields.error(f"pre_quant_scale {table['pre_quant_scale']} is not implemented for quant_algo {algo}")
        excluded = table.get("exclude_modules")
        excluded = _EXCLUDED_BY_DEFAULT if excluded is None else excluded
        if not isinstance(excluded, list | tuple) or not all(isinstance(name, str) for name in excluded):
            raise fields.error("exclude_modules must be a list of names")
        fields.refuse_unknown(_READ | _ABOUT_ACTIVATIONS)
        return cls(algo, kv_algo, fields.integer("group_size", _DEFAULT_GROUP), tuple(excluded))

    @property
    def rounds_when_built(self) -> bool:
        """Weights are stored as floats, and rounded by whoever builds the engine."""
        return self.algo in ("W8A16", "W4A16")

    def format_of(self, linear: str, *, experts: bool = False) -> str | None:
        """The algorithm that the linear of this name is stored with; None: as floats.

        A linear is excluded where its name matches a pattern; FP8_PER_CHANNEL_PER_TOKEN and experts go by the module
        that it belongs to ("transformer.layers.0.mlp"), since there TensorRT-LLM exchanges the whole of it
        (fp8_rowwise_quantize and quantize_layers in quantization/quantize.py).
        """
        if self.algo is None or (linear == "lm_head" and self.algo in _HEAD_IS_FLOAT):
            return None
        as_a_whole = experts or self.algo == "FP8_PER_CHANNEL_PER_TOKEN"
        module = linear.rpartition(".")[0] if as_a_whole else linear
        return None if any(fnmatchcase(module, pattern) for pattern in self.excluded) else self.algo
