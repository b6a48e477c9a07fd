"""What a recipe asks of the outside: the names under which a lock pins facts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from builder import catalog
from builder.recipe import Recipe, Settings

WEIGHTS = "weights"
"""The name under which a lock says why the weights of the model aren't pinned."""

TENSORS = "tensor headers"
"""The name under which a lock says why the headers of the weights couldn't be read."""


@dataclass(frozen=True)
class SideModel:
    """A further model of a recipe: a LoRA adapter or a draft model."""

    source: str
    revision: str | None
    adapter: bool


@dataclass(frozen=True)
class ImageUse:
    """`base`: something is put on top of it, so that its Python must be known; `platforms` are those of the targets."""

    base: bool
    platforms: frozenset[str]


@dataclass(frozen=True)
class Wanted:
    """Everything that a recipe names outside, each by the name that its lock uses."""

    model: Mapping[str, Any]
    models: Mapping[str, SideModel]
    images: Mapping[str, ImageUse]
    calibration: frozenset[str]
    """Also the texts of `qualify` and recipes of ModelOpt."""
    plain_files: frozenset[str]
    """These alone: one file of the recipe's own each."""
    chat_templates: frozenset[str]

    @property
    def names(self) -> frozenset[str]:
        """The names of all but the model itself."""
        return frozenset((*self.models, *self.images, *self.calibration, *self.chat_templates))


def wanted(recipe: Recipe) -> Wanted:
    """What the targets of a recipe ask for together."""
    models: dict[str, SideModel] = {}
    images: dict[str, ImageUse] = {}
    calibration, plain_files, templates = set(), set(), set()
    for index, target in enumerate(recipe.content.targets):
        settings, gpu = recipe.settings(index), catalog.gpus()[target.sku]
        models |= dict(_side_models(settings))
        for name, is_base in _images(settings, gpu.is_cpu):
            known = images.get(name, ImageUse(False, frozenset()))
            images[name] = ImageUse(known.base or is_base, known.platforms | {gpu.platform})
        if settings.calibration:
            calibration.add(settings.calibration.dataset)
        plain_files |= _plain_files(settings)
        if settings.serving.chat_template:
            templates.add(settings.serving.chat_template)
    return Wanted(
        requested_model(recipe),
        models,
        images,
        calibration=frozenset(calibration | plain_files),
        plain_files=frozenset(plain_files),
        chat_templates=frozenset(templates),
    )


def requested_model(recipe: Recipe) -> dict[str, Any]:
    """The model as the recipe writes it; a lock keeps it to see when the recipe asks for another one."""
    model = recipe.content.model
    return {"source": model.source, "revision": model.revision}


def model_key(source: str, revision: str | None) -> str:
    """The name under which a lock pins an adapter or a draft model."""
    return f"{source}@{revision}" if revision else source


def names_needed(recipe: Recipe, target: int) -> frozenset[str]:
    """The names of facts without which a target can't be built."""
    settings, gpu = recipe.settings(target), catalog.gpus()[recipe.content.targets[target].sku]
    names = {WEIGHTS, TENSORS, *dict(_side_models(settings)), *dict(_images(settings, gpu.is_cpu))}
    if dataset := _dataset(settings):
        names.add(dataset)
    names |= _plain_files(settings)
    if settings.serving.chat_template:
        names.add(settings.serving.chat_template)
    return frozenset(names)


def _dataset(settings: Settings) -> str | None:
    """The calibration data of a target that measures something with it."""
    weights = catalog.precisions().get(settings.precision.weights)
    kv_cache = catalog.kv_precisions().get(settings.precision.kv_cache)
    measures = (weights and weights.calibrated) or (kv_cache and kv_cache.quant_algo)
    return settings.calibration.dataset if settings.calibration and measures else None


def _plain_files(settings: Settings) -> set[str]:
    """What a quantised checkpoint's perplexity is measured on, and the recipe of ModelOpt."""
    gates = settings.qualify
    text = gates.perplexity.text if gates and gates.perplexity else None
    return {name for name in (text, settings.precision.modelopt_recipe) if name}


def _side_models(settings: Settings) -> Iterator[tuple[str, SideModel]]:
    for adapter in settings.lora.adapters if settings.lora else ():
        yield model_key(adapter.source, adapter.revision), SideModel(adapter.source, adapter.revision, True)
    if settings.speculative and (draft := settings.speculative.draft_model):
        yield model_key(draft.source, draft.revision), SideModel(draft.source, draft.revision, False)


def _images(settings: Settings, is_cpu: bool) -> Iterator[tuple[str, bool]]:
    """Images by reference, and whether each is a base: those of the toolchain unless it's `reference`, and the base."""
    if settings.package.base != "none":
        yield settings.package.base, True
    if not is_cpu:
        toolchain = catalog.toolchains()[settings.toolchain]
        for name in (toolchain.build_image, toolchain.serving_image):
            if name:
                yield name, False
