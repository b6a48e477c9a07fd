"""How the weights of a source are quantised: `quantization_config` of config.json, and ModelOpt's hf_quant_config.json.

A method that no toolchain reads is described, not refused: what to do about it is for the plan to say. Files that
disagree are refused (QUANT_CONTRADICTION), and so is a description that can't be understood (CONFIG_FIELD).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from builder.errors import SourceError
from builder.model.fields import Fields
from builder.model.quantized_modules import MOST_PATTERNS, bad_pattern
from builder.model.spec import SourceQuantization


def read_quantization(config: Fields | None, hf_quant_config: Fields | None) -> SourceQuantization | None:
    """What the two files say together; None if both say nothing. `config` is the quantization_config."""
    first = None if config is None else _from_config(config)
    second = None if hf_quant_config is None else _from_modelopt(hf_quant_config)
    if config is None or first is None:
        return second
    if second is None:
        return first
    says_group = _group_size(config) is not None  # else what we have is what the format implies
    for name, known in (("precision", True), ("kv_cache", _says_kv(config)), ("group_size", says_group)):
        ours, theirs = getattr(first, name), getattr(second, name)
        if known and ours != theirs and not (name == "group_size" and theirs is None):
            raise SourceError(
                f"quantization_config and hf_quant_config.json disagree about {name}: {ours} and {theirs}",
                where=config.where,
                why="there are two descriptions of the same weights",
                hint="publish the checkpoint again with one of them, or remove the wrong one",
                code="QUANT_CONTRADICTION",
            )
    excluded = tuple(dict.fromkeys(first.excluded + second.excluded))
    group_size = first.group_size if says_group else second.group_size
    return replace(first, kv_cache=first.kv_cache or second.kv_cache, group_size=group_size, excluded=excluded)


@cache
def _tables() -> Mapping[str, Any]:
    text = files(__package__).joinpath("quantization.yaml").read_text(encoding="utf-8")
    tables: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - safe
    return tables


def _from_config(fields: Fields) -> SourceQuantization:
    if fields.get("quant_method") is None and fields.get("quant_algo") is None:
        raise fields.wrong("quant_method", "the name of a method")
    if fields.get("quant_algo") is not None:
        return _by_algorithm(fields, _excluded(fields))
    method = _word(fields, "quant_method")
    precision, block = _precision_of_method(method, fields)
    return _with_format(
        SourceQuantization(
            method=method,
            precision=precision,
            kv_cache=_kv_cache(fields),
            bits=fields.optional_count("bits", most=64),
            group_size=_group_size(fields),
            block=block,
            excluded=_excluded(fields),
            desc_act=fields.flag("desc_act"),
            has_zero_point=fields.flag("zero_point") if method == "awq" else fields.get("sym") is False,
            activations=_activations(fields),
        )
    )


def _from_modelopt(fields: Fields) -> SourceQuantization | None:
    inner = fields.inner("quantization")
    if inner is None:
        raise fields.wrong("quantization", "an object")
    if inner.get("quant_algo") in (None, "NO_QUANT"):
        if _kv_cache(inner) is not None:
            raise SourceError(
                "hf_quant_config.json quantises the KV cache and no weights",
                where=fields.where,
                why="scales of a cache alone are not used",
                hint="name the unquantised model as the source, and ask for this KV cache in the recipe",
                code="UNSUPPORTED_QUANTIZATION",
            )
        return None
    return _by_algorithm(inner, _excluded(inner))


def _by_algorithm(fields: Fields, excluded: tuple[str, ...]) -> SourceQuantization:
    algorithm = _word(fields, "quant_algo").upper()
    method = None if fields.get("quant_method") is None else _word(fields, "quant_method")
    precision = _tables()["algorithms"].get(algorithm)
    return _with_format(
        SourceQuantization(
            method=method or ("modelopt" if precision else f"modelopt {algorithm}"),
            precision=precision,
            kv_cache=_kv_cache(fields),
            group_size=_group_size(fields),
            excluded=excluded,
            has_zero_point=fields.flag("has_zero_point"),
            activations="static" if precision in ("fp8", "nvfp4", "w4a8-awq") else None,
        )
    )


def _word(fields: Fields, name: str) -> str:
    word = fields.text(name)
    if not 0 < len(word) < 100 or not word.isprintable():
        raise fields.wrong(name, "the name of a method")
    return word


def _with_format(quantization: SourceQuantization) -> SourceQuantization:
    """What the precision implies and the file needn't repeat."""
    implied = dict(_tables()["formats"].get(quantization.precision, {}))
    if "block" in implied:
        implied["block"] = tuple(implied["block"])
    missing = {name: value for name, value in implied.items() if getattr(quantization, name) is None}
    return replace(quantization, **missing)


def _precision_of_method(method: str, fields: Fields) -> tuple[str | None, tuple[int, int] | None]:
    """The precision of one of transformers' methods, and the size of the blocks that share a scale."""
    bits = fields.get("bits")
    if method == "fp8":
        block = _block(fields)
        return ("fp8" if block is None else "fp8-block" if block == (128, 128) else None), block
    if method == "compressed-tensors":
        return _compressed_tensors(fields)
    by_method = {
        "fbgemm_fp8": "fp8-rowwise",
        "mxfp4": "mxfp4",
        "awq": "int4-awq" if bits == 4 else None,
        "gptq": {4: "int4-gptq", 8: "int8-gptq"}.get(bits) if isinstance(bits, int) else None,
    }
    return by_method.get(method), None


def _block(fields: Fields) -> tuple[int, int] | None:
    block = fields.get("weight_block_size")
    if block is None:
        return None
    if not isinstance(block, list) or len(block) != 2 or not all(type(size) is int and size > 0 for size in block):
        raise fields.wrong("weight_block_size", "two whole numbers")
    return block[0], block[1]


def _compressed_tensors(fields: Fields) -> tuple[str | None, tuple[int, int] | None]:
    groups = fields.inner("config_groups")
    schemes = [group for name in groups.config if (group := groups.inner(name)) is not None] if groups else []
    if len(schemes) != 1 or (weights := schemes[0].inner("weights")) is None:
        return None, None
    key = f"{weights.get('type')}-{weights.get('num_bits')}-{weights.get('strategy')}"
    block = weights.get("block_structure")
    precision = _tables()["compressed_tensors"].get(key)
    if precision == "fp8-block" and block not in ([128, 128], "128x128"):
        return None, None
    return precision, (128, 128) if precision == "fp8-block" else None


def _group_size(fields: Fields) -> int | None:
    """None for one scale per channel, which GPTQ writes as -1; compressed-tensors and ModelOpt say it in a group."""
    value = fields.get("group_size")
    if value is not None:
        return None if value == -1 else fields.count("group_size", most=1 << 20)
    groups = fields.get("config_groups")
    sizes = {
        size if type(size := scheme["weights"].get("group_size")) is int and size > 0 else None
        for scheme in (groups.values() if isinstance(groups, Mapping) else ())
        if isinstance(scheme, Mapping) and isinstance(scheme.get("weights"), Mapping)
    }
    return sizes.pop() if len(sizes) == 1 else None


def _excluded(fields: Fields) -> tuple[str, ...]:
    names = ("modules_to_not_convert", "exclude_modules", "ignore")
    found = [module for name in names if fields.get(name) is not None for module in fields.texts(name)]
    excluded = tuple(dict.fromkeys(found))
    if (bad := bad_pattern(excluded)) is not None:
        raise SourceError(
            f"the pattern {bad!r} of modules that aren't quantised can't be used",
            where=fields.where,
            why=f"it isn't a simple regular expression, or one of more than {MOST_PATTERNS}",
            code="CONFIG_FIELD",
        )
    return excluded


def _says_kv(fields: Fields) -> bool:
    return any(name in fields.config for name in ("kv_cache_scheme", "kv_cache_quant_algo"))


def _kv_cache(fields: Fields) -> str | None:
    """`kv_cache_quant_algo`, or `kv_cache_scheme`, which is a name or describes numbers by type and bits."""
    name = "kv_cache_quant_algo" if fields.get("kv_cache_quant_algo") is not None else "kv_cache_scheme"
    scheme = fields.get(name)
    if scheme is None:
        return None
    if isinstance(scheme, Mapping):
        numbers = {("float", 8): "FP8", ("int", 8): "INT8", ("float", 4): "NVFP4"}
        kind, bits = scheme.get("type"), scheme.get("num_bits")
        scheme = numbers.get((kind, bits)) if isinstance(kind, str) and type(bits) is int else None
    if not isinstance(scheme, str) or scheme.upper() not in (known := _tables()["kv_algorithms"]):
        raise SourceError(
            f"the KV cache's quantisation {name} {fields.get(name)!r} is not known",
            where=fields.where,
            why=f"known: {', '.join(_tables()['kv_algorithms'])}",
            code="UNSUPPORTED_QUANTIZATION",
        )
    return str(known[scheme.upper()])


def _activations(fields: Fields) -> str | None:
    """`activation_scheme`, or what compressed-tensors says of the activations of its one group."""
    scheme = fields.get("activation_scheme")
    if scheme in ("static", "dynamic"):
        return str(scheme)
    groups = fields.get("config_groups")
    found = [
        group["input_activations"]
        for group in (groups.values() if isinstance(groups, Mapping) else ())
        if isinstance(group, Mapping) and isinstance(group.get("input_activations"), Mapping)
    ]
    if len(found) != 1:
        return None
    return "static" if found[0].get("dynamic") is False else "dynamic"
