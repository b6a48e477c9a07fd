"""What is generated from the schema: the JSON Schema for editors, and docs/recipe.md for people.

Both are committed; a test compares them with what this module makes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from builder import catalog
from builder.recipe.loading import AS_PUBLISHED
from builder.recipe.options import TOOL
from builder.recipe.schema import RecipeDocument, Settings, Target

_TYPES: Mapping[str, dict[str, Any]] = {
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "str": {"type": "string"},
    "strings": {"type": "array", "items": {"type": "string"}},
    "enable": {"enum": [True, False, "enable", "disable"]},
    "switch": {"type": "boolean"},
}


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a recipe, with the words of the catalogue.

    What a recipe extends may give what is required, and so may the recipe for its targets: loading checks the whole.
    """
    schema = RecipeDocument.model_json_schema(by_alias=True)
    settings = Settings.model_json_schema()
    definitions = schema["$defs"]
    definitions |= settings.get("$defs", {})
    definitions["PrecisionSettings"]["properties"]["weights"]["enum"] = [*catalog.precisions(), AS_PUBLISHED]
    definitions["PrecisionSettings"]["properties"]["kv_cache"]["enum"] = ["auto", *catalog.kv_precisions()]
    target = definitions["Target"]
    target["properties"] = {**target["properties"], **settings["properties"]}
    for partial in ("PrecisionSettings", "ModelSettings", "PerplexityGate", "AgreementGate"):
        definitions[partial].pop("required")  # the rest of it may come from elsewhere
    target["additionalProperties"] = False
    target["properties"]["sku"]["enum"] = list(catalog.gpus())
    for holder in (schema, target):
        properties = holder["properties"]
        properties["toolchain"]["enum"] = list(catalog.toolchains())
        properties["engine"] |= {"properties": _options(), "additionalProperties": False}
    required = schema.pop("required")
    schema["if"] = {"not": {"required": ["extends"]}}
    schema["then"] = {"required": required}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:engine-builder:recipe:1",
        **schema,
    }


def _options() -> dict[str, Any]:
    """Every option of trtllm-build that some supported release has and that no other field sets."""
    options: dict[str, Any] = {}
    for toolchain in catalog.toolchains().values():
        if toolchain.version and "engine" in toolchain.flows and not toolchain.retired:
            for name, flag in catalog.flags(TOOL, str(toolchain.version)).items():
                if not flag.reserved_by:
                    known = dict(_TYPES.get(flag.type, {}))
                    if flag.choices and flag.type not in ("enable", "switch"):
                        known = {"enum": list(flag.choices)}
                    options[name] = known | ({"description": flag.note} if flag.note else {})
    return dict(sorted(options.items()))


def json_schema_text() -> str:
    return json.dumps(json_schema(), indent=2, allow_nan=False) + "\n"


def reference_text() -> str:
    """The recipe reference as Markdown."""
    return "\n".join(_reference()) + "\n"


def _reference() -> Iterator[str]:
    yield "# The recipe"
    yield ""
    yield "Generated from builder/recipe/schema.py and the catalogue by `engine-builder schema --format markdown`."
    yield "Unknown keys are errors. What a target gives is laid over what the recipe gives: mappings are merged,"
    yield "anything else is replaced. So is a recipe over the files that it `extends`."
    yield ""
    yield "## Top level"
    yield ""
    yield from _table(RecipeDocument, leave_out=frozenset(Settings.model_fields))
    yield ""
    yield "## Settings: at the top level, and in every target"
    yield ""
    yield from _table(Settings)
    yield ""
    yield "## `targets`"
    yield ""
    yield from _table(Target)
    for title, model in _sections():
        yield ""
        yield f"## `{title}`"
        yield ""
        if model.__doc__:
            yield model.__doc__.strip().partition("\n")[0]
            yield ""
        yield from _table(model)
    yield ""
    yield "## Words"
    yield ""
    yield f"- weight precisions: {', '.join((*catalog.precisions(), AS_PUBLISHED))}"
    yield f"- KV-cache precisions: auto, {', '.join(catalog.kv_precisions())}"
    yield f"- toolchains: {', '.join(name for name, known in catalog.toolchains().items() if not known.retired)}"
    yield "- SKUs: `engine-builder catalog gpus`; rules: `engine-builder catalog rules`"
    yield ""
    yield "## `engine`: options of trtllm-build"
    yield ""
    yield "The flag table of the recipe's toolchain decides. These exist in at least one supported release:"
    yield ""
    yield "| option | values | |"
    yield "|---|---|---|"
    for name, entry in _options().items():
        values = ", ".join(f"`{json.dumps(v)}`" if not isinstance(v, str) else f"`{v}`" for v in entry.get("enum", []))
        yield f"| `{name}` | {values or entry.get('type', '')} | {_cell(entry.get('description', ''))} |"


def _sections() -> Iterator[tuple[str, type[BaseModel]]]:
    for holder in (RecipeDocument, Settings):
        for name, field in holder.model_fields.items():
            if holder is RecipeDocument and name in Settings.model_fields:
                continue
            for model in _models(field.annotation):
                if model is not Target:
                    yield name, model
                    for inner_name, inner_field in model.model_fields.items():
                        for inner in _models(inner_field.annotation):
                            yield f"{name}.{inner_name}", inner


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models(argument)]


def _table(model: type[BaseModel], leave_out: frozenset[str] = frozenset()) -> Iterator[str]:
    yield "| key | default | meaning |"
    yield "|---|---|---|"
    for name, field in model.model_fields.items():
        if name not in leave_out:
            yield f"| `{field.alias or name}` | {_default(field)} | {_cell(_meaning(name, field))} |"


def _meaning(name: str, field: FieldInfo) -> str:
    if field.description:
        return field.description
    models = _models(field.annotation)
    summary = (models[0].__doc__ or "").strip().partition("\n")[0] if models else ""
    return f"see `{name}` below. {summary}".strip()


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default is None or field.default in ({}, ()) or isinstance(field.default, BaseModel):
        return ""
    return f"`{json.dumps(field.default)}`" if not isinstance(field.default, str) else f"`{field.default}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
