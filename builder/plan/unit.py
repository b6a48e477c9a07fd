"""A unit: recipe × target, fully resolved."""

from __future__ import annotations

from dataclasses import dataclass

from builder import catalog
from builder.catalog import Gpu, Precision, Toolchain
from builder.errors import RecipeError
from builder.lock import Lock
from builder.model.spec import ModelSpec
from builder.recipe import Limits, PackageSettings, Parallelism, Recipe, Serving


@dataclass(frozen=True)
class Unit:
    """One engine for one SKU. `id` is RECIPE/PRECISION-tpN[-ppM]/SKU[/NAME]; `target` its index in the recipe."""

    id: str
    recipe: Recipe
    target: int
    gpu: Gpu
    toolchain: Toolchain
    precision: Precision
    limits: Limits
    parallelism: Parallelism
    serving: Serving
    package: PackageSettings
    spec: ModelSpec
    lock: Lock

    @property
    def ranks(self) -> int:
        return self.parallelism.tensor * self.parallelism.pipeline

    @property
    def max_input_len(self) -> int:
        """The longest prompt: as the recipe says, else all of a sequence but the one token of an answer."""
        return self.limits.max_input_len or max(1, self.limits.max_seq_len - 1)

    @property
    def served_model_name(self) -> str:
        return self.serving.served_model_name or self.recipe.content.name


def resolve_units(recipe: Recipe, lock: Lock) -> list[Unit]:
    """All units of a recipe, in the order of its targets. Raises RecipeError where two have one id."""
    spec = ModelSpec.from_config(lock.config, recipe.lock_file, lock.generation_config)
    units: dict[str, Unit] = {}
    for index, target in enumerate(recipe.content.targets):
        settings = recipe.settings(index)
        gpu = catalog.gpus()[target.sku]
        toolchain = catalog.toolchains()["reference" if gpu.is_cpu else settings.toolchain]
        parallelism = settings.parallelism
        pipeline = f"-pp{parallelism.pipeline}" if parallelism.pipeline > 1 else ""
        shape = f"{settings.precision.weights}-tp{parallelism.tensor}{pipeline}"
        name = f"/{target.name}" if target.name else ""
        unit = Unit(
            id=f"{recipe.content.name}/{shape}/{gpu.name}{name}",
            recipe=recipe,
            target=index,
            gpu=gpu,
            toolchain=toolchain,
            precision=catalog.precisions()[settings.precision.weights],
            limits=settings.limits,
            parallelism=parallelism,
            serving=settings.serving,
            package=settings.package,
            spec=spec,
            lock=lock,
        )
        if unit.id in units:
            raise RecipeError(
                f"two targets make the same unit {unit.id!r}",
                where=recipe.place("targets", index),
                hint="give one of them a `name`",
                code="DUPLICATE_UNIT",
            )
        units[unit.id] = unit
    return list(units.values())
