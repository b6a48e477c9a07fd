"""Configs from ModelOpt recipes: YAML files that the library loads. Nothing in them is executed.

    imports:                               names of snippets that the library ships (configs/…)
      w8a8_fp8_fp8: configs/ptq/units/w8a8_fp8_fp8
    metadata: {recipe_type: ptq}
    quantize:
      algorithm: max
      quant_cfg: [{$import: w8a8_fp8_fp8}, …]

Since ModelOpt 0.41 or so; 0.37 has none. It would also import files: those aren't pinned by any lock.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

from builder.checkpoint.modelopt.failure import Failure

_MAX_BYTES = 1 << 20


def recipe_config(path: Path) -> dict[str, Any]:
    """The config for `mtq.quantize`. Failure RECIPE if it can't be used."""
    try:
        from modelopt.recipe import load_recipe
    except ImportError:
        raise Failure("RECIPE", "this version of ModelOpt has no recipes") from None
    try:
        _check_imports(path)
        recipe = load_recipe(path.absolute())
        if recipe.recipe_type.value != "ptq":
            raise Failure("RECIPE", f"recipe_type is {recipe.recipe_type.value}, and only ptq is post-training")
        config: dict[str, Any] = recipe.quantize.model_dump(exclude_unset=True)
    except Failure:
        raise
    except Exception as error:  # pydantic's, yaml's, the library's own
        raise Failure("RECIPE", f"{type(error).__name__}: {error}") from error
    return config


def _check_imports(path: Path) -> None:
    import yaml
    from modelopt.recipe import loader

    if path.stat().st_size > _MAX_BYTES:
        raise Failure("RECIPE", f"it has more than {_MAX_BYTES} bytes")
    for document in yaml.safe_load_all(path.read_text()):
        imports = document.get("imports") if isinstance(document, dict) else None
        if imports is not None and not isinstance(imports, dict):
            raise Failure("RECIPE", "imports is no mapping")
        for name in (imports or {}).values():
            inside = PurePosixPath(str(name))
            found = (loader.BUILTIN_RECIPES_LIB.joinpath(f"{name}{suffix}") for suffix in ("", ".yml", ".yaml"))
            if inside.is_absolute() or ".." in inside.parts or not any(file.is_file() for file in found):
                raise Failure("RECIPE", f"it imports {name}, which isn't one of the library's own")
