"""From a file to a checked `Recipe`; every complaint has its file:line:column."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from builder import catalog
from builder.errors import RecipeError
from builder.recipe.schema import RecipeDocument, Settings
from builder.recipe.yaml_positions import Document, KeyPath, Place, read_yaml

Checked = TypeVar("Checked", bound=BaseModel)

OVERRIDABLE = frozenset(Settings.model_fields)


@dataclass(frozen=True)
class Recipe:
    """A recipe file: its checked content, and where each value stands."""

    file: Path
    content: RecipeDocument
    document: Document

    @property
    def folder(self) -> Path:
        return self.file.parent

    @property
    def lock_file(self) -> Path:
        return self.file.with_name(f"{self.file.stem}.lock.json")

    def settings(self, target: int) -> Settings:
        """The settings of one target: the recipe's, with the target's merged over them."""
        data = self.document.data
        base = {key: value for key, value in data.items() if key in OVERRIDABLE}
        overrides = {key: value for key, value in data["targets"][target].items() if key in OVERRIDABLE}
        return _validated(Settings, _merge(base, overrides), self.document, ("targets", target))

    def place(self, *path: str | int, target: int | None = None) -> Place:
        """Where a value comes from: the target's override, or the recipe itself."""
        if target is not None and ("targets", target, *path) in self.document.places:
            return self.document.places["targets", target, *path]
        return self.document.place(path)


def load_recipe(file: Path) -> Recipe:
    """Read and check one recipe. Raises RecipeError."""
    document = read_yaml(file)
    content = _validated(RecipeDocument, document.data, document, ())
    recipe = Recipe(file, content, document)
    for index, target in enumerate(content.targets):
        unknown = set(target.model_extra or ()) - OVERRIDABLE
        for key in sorted(unknown):
            raise RecipeError(
                f"unknown key {key!r} in a target",
                where=document.place(("targets", index, key)),
                hint=catalog.did_you_mean(key, OVERRIDABLE | {"sku", "name"}),
                code="UNKNOWN_KEY",
            )
        settings = recipe.settings(index)
        _known("SKU", target.sku, catalog.gpus(), recipe.place("sku", target=index))
        _known("toolchain", settings.toolchain, catalog.toolchains(), recipe.place("toolchain", target=index))
        _known(
            "precision",
            settings.precision.weights,
            catalog.precisions(),
            recipe.place("precision", "weights", target=index),
        )
    return recipe


def find_recipes(path: Path) -> list[Path]:
    """The recipe files that a path names: itself, or every *.yaml in a folder, sorted by name."""
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in (".yaml", ".yml"))
        if not files:
            raise RecipeError("there is no recipe in this folder", where=path, code="RECIPE_MISSING")
        for one, two in pairwise(files):
            if one.stem == two.stem:
                raise RecipeError(f"{one.name} and {two.name} would share one lock file", where=path, hint="rename one")
        return files
    return [path]


def _known(what: str, word: str, known: Iterable[str], place: Place) -> None:
    if word not in known:
        code = f"UNKNOWN_{what.upper()}"
        raise RecipeError(f"unknown {what} {word!r}", where=place, hint=catalog.did_you_mean(word, known), code=code)


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings are merged deeply; anything else is replaced."""
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        result[key] = _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


def _validated(model: type[Checked], data: Mapping[str, Any], document: Document, prefix: KeyPath) -> Checked:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        # A misspelled key is unknown, and the right one missing: the unknown one tells the user more.
        problem = min(error.errors(include_url=False), key=lambda item: item["type"] != "extra_forbidden")
        path = tuple(problem["loc"])
        place = document.places.get((*prefix, *path)) or document.place(path)
        name = ".".join(str(part) for part in path)
        if problem["type"] == "extra_forbidden":
            raise RecipeError(
                f"unknown key {name!r}",
                where=place,
                hint=catalog.did_you_mean(str(path[-1]), _fields(model, path[:-1])),
                code="UNKNOWN_KEY",
            ) from None
        if problem["type"] == "missing":
            raise RecipeError(f"{name!r} is missing", where=place, hint=_description(model, path)) from None
        message = problem["msg"][0].lower() + problem["msg"][1:]
        raise RecipeError(
            f"{name}: {message}",
            where=place,
            why=f"the value is {problem['input']!r:.200}",
            hint=_description(model, path),
        ) from None


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
