"""From pydantic's errors to one complaint for a person: what, where, why, and what to write instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from builder import catalog
from builder.errors import RecipeError
from builder.recipe.yaml_positions import Document, KeyPath

Checked = TypeVar("Checked", bound=BaseModel)


def validated(model: type[Checked], data: Mapping[str, Any], document: Document, prefix: KeyPath) -> Checked:
    """`data` as `model`. Raises RecipeError for the most telling of its errors; `prefix` is where its values may stand
    in the document instead of at the top."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = error.errors(include_url=False)
    unknown = [tuple(problem["loc"]) for problem in problems if problem["type"] == "extra_forbidden"]
    if unknown:
        # A misspelled key is unknown, and the right one missing: the unknown one tells the user more.
        raise _unknown_key(model, unknown, data, document, prefix) from None
    problem = problems[0]
    path = _without_union_tags(tuple(problem["loc"]), data)
    place = document.places.get((*prefix, *path)) or document.place(path)
    name = ".".join(str(part) for part in path)
    if problem["type"] == "missing":
        raise RecipeError(f"{name!r} is missing", where=place, hint=_description(model, path)) from None
    message = problem["msg"][0].lower() + problem["msg"][1:]
    raise RecipeError(
        f"{name}: {message}",
        where=place,
        why=f"the value is {problem['input']!r:.200}",
        hint=_description(model, path),
    ) from None


def _unknown_key(
    model: type[BaseModel],
    unknown: Sequence[KeyPath],
    data: Mapping[str, Any],
    document: Document,
    prefix: KeyPath,
) -> RecipeError:
    words = [str(path[-1]) for path in unknown]
    schemes = catalog.quantization_schemes(words)
    if weights := _weights_scheme(data):
        schemes = {**schemes, weights[0]: (*schemes.get(weights[0], ()), weights[1])}
    path = unknown[0]
    place = document.places.get((*prefix, *path)) or document.place(path)
    if len(schemes) > 1 and catalog.quantization_schemes(words):
        asked = "; ".join(f"{scheme}: {', '.join(options)}" for scheme, options in schemes.items())
        return RecipeError(
            "these options ask for several quantisation schemes at once",
            where=place,
            why=asked,
            hint="a recipe has one: precision.weights (and precision.kv_cache)",
            code="QUANT_CONFLICT",
        )
    return RecipeError(
        f"unknown key {'.'.join(str(part) for part in path)!r}",
        where=place,
        hint=catalog.migration(words[0]) or catalog.did_you_mean(words[0], _fields(model, path[:-1])),
        code="UNKNOWN_KEY",
    )


def _weights_scheme(data: Mapping[str, Any]) -> tuple[str, str] | None:
    """The scheme that `precision.weights` itself asks for."""
    precision = data.get("precision")
    word = precision.get("weights") if isinstance(precision, Mapping) else None
    known = catalog.precisions().get(word) if isinstance(word, str) else None
    if known is None or known.scheme == "float":
        return None
    return known.scheme, f"precision.weights {word}"


def _without_union_tags(path: KeyPath, data: Mapping[str, Any]) -> KeyPath:
    """Pydantic names the member of a union that failed as part of the path: only what is in the data counts."""
    value: Any = data
    kept: list[str | int] = []
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            if part != path[-1] or not isinstance(value, Mapping):
                continue
        kept.append(part)
    return tuple(kept)


def _model_at(model: type[BaseModel], path: KeyPath) -> type[BaseModel] | None:
    """The model class that describes what lies at `path`."""
    for part in path:
        field = None if isinstance(part, int) else model.model_fields.get(part)
        if field is None:
            continue
        candidates = [field.annotation, *get_args(field.annotation)]
        inner = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
        if inner is None:
            return None
        model = inner
    return model


def _fields(model: type[BaseModel], path: KeyPath) -> list[str]:
    inner = _model_at(model, path)
    return [field.alias or name for name, field in inner.model_fields.items()] if inner else []


def _description(model: type[BaseModel], path: KeyPath) -> str | None:
    inner = _model_at(model, path[:-1])
    if inner is None or not path:
        return None
    for name, field in inner.model_fields.items():
        if path[-1] in (name, field.alias) and field.description:
            return f"{path[-1]} is: {field.description}"
    return None
