"""From pydantic's errors to one complaint for a person: what, where, why, and what to write instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from builder import catalog
from builder.errors import RecipeError
from builder.recipe.conflicts import quantization_conflict
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
    path = unknown[0]
    place = document.places.get((*prefix, *path)) or document.place(path)
    precision = data.get("precision")
    weights = precision.get("weights") if isinstance(precision, Mapping) else None
    options = {str(one[-1]): _value(data, one) for one in unknown}
    if conflict := quantization_conflict(options, weights, place):
        return conflict
    word = str(path[-1])
    return RecipeError(
        f"unknown key {'.'.join(str(part) for part in path)!r}",
        where=place,
        hint=catalog.migration(word) or catalog.did_you_mean(word, _fields(model, path[:-1])),
        code="UNKNOWN_KEY",
    )


def _value(data: Mapping[str, Any], path: KeyPath) -> Any:
    """What lies at a path; the names of a union's members, which pydantic puts among the keys, lead to nothing."""
    value: Any = data
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            continue
    return value


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
