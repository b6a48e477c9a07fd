"""Rules on Hugging Face transformers, with which a toolchain reads configurations and tokenizers."""

from __future__ import annotations

from collections.abc import Iterator

from builder import catalog
from builder.plan.findings import Problem, rule
from builder.plan.rules.alternatives import listed
from builder.plan.unit import Unit

_TOOLCHAIN = ("toolchain",)

_OLDER_THAN_THE_TABLE = ("gpt2", "llama")
"""Model types that transformers had before the catalog's table begins (4.28)."""

_ROPE_PARAMETERS = "5.0.0"
"""The first transformers that reads `rope_parameters`; before, `rope_theta` and `rope_scaling` stand alone."""


@rule("TRANSFORMERS_TOO_OLD", "refuse")
def transformers_knows_the_model_type(unit: Unit) -> Iterator[Problem]:
    """The image's transformers must be new enough for the model_type; upgrading it there breaks TensorRT-LLM.

    The version that a config.json names is the one that wrote it, a hint only: the table of model types decides.
    Some releases list models that their transformers doesn't know, so that there it can be waived; a model that
    brings its own code needs no entry in transformers.
    """
    there, model_type = unit.toolchain.transformers, unit.spec.model_type
    if there is None or unit.gpu.is_cpu or unit.spec.custom_code:
        return
    needed = catalog.minimum_transformers(model_type, _rope_type(unit))
    if needed is None or catalog.parse_version(needed) <= catalog.parse_version(there):
        return
    wrote = unit.spec.transformers_version
    yield Problem(
        f"model_type {model_type} needs transformers {needed}, {unit.toolchain.name} has {there}"
        + (f" (config.json was written by {wrote[:20]})" if wrote else ""),
        _TOOLCHAIN,
        f"{_newer(needed)}; don't upgrade transformers inside the image",
        {"model_type": model_type, "needed": needed, "there": there, "config": wrote},
        "refuse-waivable" if unit.spec.architecture in unit.toolchain.architectures.get(unit.flow, ()) else None,
    )


def _rope_type(unit: Unit) -> str | None:
    attention = unit.spec.layers[0].attention
    return attention.rope.type if attention and attention.rope else None


def _newer(needed: str) -> str:
    names = [
        release.name
        for release in catalog.toolchains().values()
        if release.transformers
        and not release.retired
        and catalog.parse_version(release.transformers) >= catalog.parse_version(needed)
    ]
    return f"use toolchain: {listed(names)}" if names else "no toolchain in the catalog is known to have it"


@rule("ROPE_PARAMETERS_UNREAD", "refuse-waivable")
def rope_parameters_are_read(unit: Unit) -> Iterator[Problem]:
    """A config.json of transformers 5 keeps rope_theta inside `rope_parameters`: an older one takes its default.

    Nothing fails: answers are wrong. Our own converter reads both spellings.
    """
    there = unit.toolchain.transformers
    config = unit.lock.config
    inner = config.get("text_config")
    config = inner if isinstance(inner, dict) and "rope_parameters" in inner else config
    if there is None or "rope_parameters" not in config or "rope_theta" in config or unit.gpu.is_cpu:
        return
    ours = unit.maker == "converter"
    if ours or catalog.parse_version(there) >= catalog.parse_version(_ROPE_PARAMETERS):
        return
    yield Problem(
        f"config.json has its rope_theta ({unit.spec.rope_theta:g}) in rope_parameters only, which transformers "
        f"{there} of {unit.toolchain.name} doesn't read: it would take the default of {unit.spec.model_type}",
        _TOOLCHAIN,
        f"write rope_theta and rope_scaling into config.json as well; or {_newer(_ROPE_PARAMETERS)}",
        {"rope_theta": unit.spec.rope_theta, "there": there},
    )


@rule("TRUST_REMOTE_CODE", "warn")
def no_code_of_the_repository_runs(unit: Unit) -> Iterator[Problem]:
    """The recipe lets Python code from the model's repository run; it is recorded here."""
    if unit.recipe.content.model.trust_remote_code:
        brings = unit.spec.custom_code
        yield Problem(
            "Python code from the model's repository may run in the build and on serving nodes"
            if brings
            else "trust_remote_code is set, and the model brings no code",
            ("model", "trust_remote_code"),
            "read the code at the pinned commit before you build" if brings else "remove trust_remote_code",
            {"custom_code": brings, "revision": unit.lock.snapshot.revision},
        )


@rule("CUSTOM_CODE", "refuse")
def custom_code_is_not_needed(unit: Unit) -> Iterator[Problem]:
    """A model that transformers doesn't know by itself needs the code of its repository, which runs only if trusted."""
    if not unit.spec.custom_code or unit.recipe.content.model.trust_remote_code or unit.gpu.is_cpu:
        return
    model_type = unit.spec.model_type
    if model_type not in _OLDER_THAN_THE_TABLE and catalog.minimum_transformers(model_type) is None:
        yield Problem(
            f"model_type {model_type} isn't part of transformers: its repository brings code for it (auto_map), "
            "and code isn't run unless the recipe trusts it",
            ("model", "source"),
            "read the code at the pinned commit, then write model.trust_remote_code: true; or use a model that "
            "needs none",
            {"model_type": model_type},
        )
