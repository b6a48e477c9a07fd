"""Options that the catalog types, not the schema: trtllm-build's flags, LLM arguments, and what a precision allows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from builder import catalog
from builder.catalog import Flag
from builder.errors import RecipeError
from builder.recipe.conflicts import quantization_conflict
from builder.recipe.schema import Settings

if TYPE_CHECKING:
    from builder.recipe.loading import Recipe

TOOL = "trtllm-build"
_SWITCH = {True: "enable", False: "disable"}


def check_precision(recipe: Recipe, index: int, settings: Settings) -> None:
    """One quantisation scheme, and only options that belong to it. Raises RecipeError `QUANT_CONFLICT`."""
    precision = settings.precision
    known = catalog.precisions().get(precision.weights)
    if known is None:  # as published: the source decides
        return
    misplaced = {
        "group_size": precision.group_size is not None and known.group_size is None,
        "smoothquant_alpha": precision.smoothquant_alpha is not None and known.scheme != "smoothquant",
        "quantize_lm_head": precision.quantize_lm_head and known.scheme == "float",
    }
    fields = [field for field, wrong in misplaced.items() if wrong]
    if fields:
        several = len(fields) > 1
        raise RecipeError(
            f"{' and '.join(f'precision.{field}' for field in fields)} {'do' if several else 'does'}n't belong to "
            f"precision.weights {precision.weights}",
            where=recipe.place("precision", fields[0], target=index),
            why=f"{precision.weights} is {known.scheme}",
            hint=f"remove {' and '.join(fields)}, or choose a precision that takes {'them' if several else 'it'}",
            code="QUANT_CONFLICT",
        )
    if known.scheme == "float" and precision.activations not in ("auto", precision.weights):
        raise RecipeError(
            f"precision.activations {precision.activations} contradicts precision.weights {precision.weights}",
            where=recipe.place("precision", "activations", target=index),
            hint="unquantised weights and activations have one format",
            code="QUANT_CONFLICT",
        )


def check_engine_options(recipe: Recipe, index: int, settings: Settings) -> None:
    """`engine` against the flag table of trtllm-build in the toolchain, `llm_args` against that of its LLM class."""
    if not settings.engine and not settings.llm_args:
        return
    toolchain = catalog.toolchains()[settings.toolchain]
    for section, options, flow in (("engine", settings.engine, "engine"), ("llm_args", settings.llm_args, "pytorch")):
        if options and settings.flow != flow:
            raise RecipeError(
                f"{section} belongs to flow: {flow}",
                where=recipe.place(section, target=index),
                why=f"the flow is {settings.flow}",
                code="OPTION_OF_OTHER_FLOW",
            )
    if not toolchain.version:
        return  # the reference toolchain has no flags; a cpu target may share its recipe's options
    version = str(toolchain.version)
    if settings.engine:
        table = catalog.flags(TOOL, version)
        unknown = {word: value for word, value in settings.engine.items() if word not in table}
        place = recipe.place("engine", *list(unknown)[:1], target=index)
        if conflict := quantization_conflict(unknown, settings.precision.weights, place):
            raise conflict
        for word, value in settings.engine.items():
            _check(recipe, index, ("engine",), word, value, table, version, TOOL)
    if settings.llm_args:
        _check_nested(recipe, index, ("llm_args",), settings.llm_args, catalog.llm_args(version), version)


def _check_nested(
    recipe: Recipe,
    index: int,
    path: tuple[str, ...],
    options: Mapping[str, Any],
    table: Mapping[str, Flag],
    version: str,
) -> None:
    """LLM arguments nest: `kv_cache_config: {dtype: fp8}` is `kv_cache_config.dtype` in the table."""
    prefix = path[1:]
    for word, value in options.items():
        dotted = ".".join((*prefix, word))
        if isinstance(value, Mapping) and any(name.startswith(f"{dotted}.") for name in table):
            _check_nested(recipe, index, (*path, word), value, table, version)
        else:
            _check(recipe, index, path, dotted, value, table, version, "LLM arguments", key=word)


def _check(
    recipe: Recipe,
    index: int,
    path: tuple[str, ...],
    word: str,
    value: Any,
    table: Mapping[str, Flag],
    version: str,
    tool: str,
    key: str | None = None,
) -> None:
    place = recipe.place(*path, key or word, target=index)
    flag = table.get(word)
    if flag is None:
        message = catalog.migration(word)
        unknown = catalog.flag_state(tool, word, version) == "unknown"
        raise RecipeError(
            f"{path[0]}.{word} isn't an option of {tool} in TensorRT-LLM {version}"
            + (", as far as any source says" if unknown else ""),
            where=place,
            hint=message or catalog.did_you_mean(word, table),
            code="OPTION_MOVED" if message else "UNKNOWN_OPTION",
        )
    if flag.reserved_by:
        raise RecipeError(
            f"{path[0]}.{word} is set elsewhere: {flag.reserved_by}",
            where=place,
            why="one value has one place in a recipe",
            hint=f"remove it here; {flag.reserved_by}",
            code="OPTION_RESERVED",
        )
    if (expected := _mistake(flag, value)) is not None:
        raise RecipeError(
            f"{path[0]}.{word} is {expected}, not {value!r:.100}",
            where=place,
            why=flag.note or f"the flag table of {tool} in TensorRT-LLM {version}",
            code="OPTION_VALUE",
        )


def _mistake(flag: Flag, value: Any) -> str | None:
    """What the value should have been; None if it is right."""
    if flag.type in ("enable", "switch"):
        return None if isinstance(value, bool) or value in _SWITCH.values() else "true or false"
    if flag.choices:
        given = value if not isinstance(value, bool) else _SWITCH[value]
        return None if str(given) in flag.choices else f"one of {', '.join(flag.choices)}"
    right = {
        "int": lambda: type(value) is int and abs(value) < 1 << 40,
        "float": lambda: isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15,
        "str": lambda: isinstance(value, str),
        "strings": lambda: isinstance(value, list) and all(isinstance(item, str) for item in value),
    }.get(flag.type)
    names = {"int": "a whole number", "float": "a number", "str": "text", "strings": "a list of texts"}
    return None if right is None or right() else names[flag.type]
