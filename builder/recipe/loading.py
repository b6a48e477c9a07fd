"""From a file to a checked `Recipe`; every complaint has its file:line:column."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from builder import catalog
from builder.errors import RecipeError
from builder.recipe.complaints import validated
from builder.recipe.composition import compose, merge
from builder.recipe.conflicts import quantization_conflict
from builder.recipe.options import check_engine_options, check_precision
from builder.recipe.schema import RecipeDocument, Settings
from builder.recipe.yaml_positions import Document, Place

OVERRIDABLE = frozenset(Settings.model_fields)
AS_PUBLISHED = "as-published"


@dataclass(frozen=True)
class Recipe:
    """A recipe file: its checked content, where each value stands, and every file that it is made of."""

    file: Path
    content: RecipeDocument
    document: Document
    files: tuple[Path, ...] = ()
    _settings: dict[int, Settings] = field(default_factory=dict, repr=False, compare=False)

    @property
    def folder(self) -> Path:
        return self.file.parent

    @property
    def lock_file(self) -> Path:
        return self.file.with_name(f"{self.file.stem}.lock.json")

    def settings(self, target: int) -> Settings:
        """The settings of one target: the recipe's, with the target's merged over them."""
        if target not in self._settings:
            data = self.document.data
            base = {key: value for key, value in data.items() if key in OVERRIDABLE}
            overrides = {key: value for key, value in data["targets"][target].items() if key in OVERRIDABLE}
            merged = merge(base, overrides)
            self._settings[target] = validated(Settings, merged, self.document, ("targets", target))
        return self._settings[target]

    def place(self, *path: str | int, target: int | None = None) -> Place:
        """Where a value comes from: the target's override, or the recipe itself, or what it extends."""
        if target is not None and ("targets", target, *path) in self.document.places:
            return self.document.places["targets", target, *path]
        return self.document.place(path)

    def place_of(self, text: str) -> Place:
        """Where a text stands in the recipe, for an error about what it names."""
        found = (place for path, place in self.document.places.items() if self.document.value(path) == text)
        return next(found, self.document.place(()))


def load_recipe(file: Path) -> Recipe:
    """Read and check one recipe with what it extends. Raises RecipeError."""
    composed = compose(file)
    document = composed.document
    content = validated(RecipeDocument, document.data, document, ())
    recipe = Recipe(file, content, document, composed.files)
    for index, target in enumerate(content.targets):
        unknown = {key: value for key, value in (target.model_extra or {}).items() if key not in OVERRIDABLE}
        for key in sorted(unknown):
            place = document.place(("targets", index, key))
            if conflict := quantization_conflict(unknown, content.precision.weights, place):
                raise conflict
            raise RecipeError(
                f"unknown key {key!r} in a target",
                where=place,
                hint=catalog.migration(key) or catalog.did_you_mean(key, OVERRIDABLE | {"sku", "name", "gpus"}),
                code="UNKNOWN_KEY",
            )
        settings = recipe.settings(index)
        if target.sku not in catalog.gpus():
            raise RecipeError(
                f"unknown SKU {target.sku!r}",
                where=recipe.place("sku", target=index),
                hint=catalog.gpu_hint(target.sku),
                code="UNKNOWN_SKU",
            )
        _known_toolchain(recipe, index, settings.toolchain)
        weights, kv_cache = settings.precision.weights, settings.precision.kv_cache
        place = recipe.place("precision", "weights", target=index)
        _known("precision", weights, (*catalog.precisions(), AS_PUBLISHED), place)
        place = recipe.place("precision", "kv_cache", target=index)
        _known("precision", kv_cache, (*catalog.kv_precisions(), "auto"), place)
        check_precision(recipe, index, settings)
        check_engine_options(recipe, index, settings)
    return recipe


def _known_toolchain(recipe: Recipe, index: int, name: str) -> None:
    if name not in catalog.toolchains():
        known = catalog.unlisted(name)
        raise RecipeError(
            f"unknown toolchain {name!r}",
            where=recipe.place("toolchain", target=index),
            why=known.message,
            hint=f"nearest are: {', '.join(known.nearest)}" if known.nearest else None,
            code="UNKNOWN_TOOLCHAIN",
        )


def _known(what: str, word: str, known: Iterable[str], place: Place) -> None:
    if word not in known:
        hint = catalog.migration(word) or catalog.did_you_mean(word, known)
        raise RecipeError(f"unknown {what} {word!r}", where=place, hint=hint, code=f"UNKNOWN_{what.upper()}")
