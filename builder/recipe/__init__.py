"""The user's words: what a recipe may say, and reading it with line numbers."""

from builder.recipe.loading import AS_PUBLISHED, Recipe, load_recipe
from builder.recipe.schema import (
    Limits,
    ModelSettings,
    PackageSettings,
    Parallelism,
    PrecisionSettings,
    RecipeDocument,
    Serving,
    Settings,
)

__all__ = [
    "AS_PUBLISHED",
    "Limits",
    "ModelSettings",
    "PackageSettings",
    "Parallelism",
    "PrecisionSettings",
    "Recipe",
    "RecipeDocument",
    "Serving",
    "Settings",
    "load_recipe",
]
