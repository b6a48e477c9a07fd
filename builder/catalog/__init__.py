"""Facts as data: GPUs, toolchains and precisions, as typed records over the YAML files beside this one."""

from __future__ import annotations

from builder.catalog.containers import Container, container_of_image, containers, containers_with, mismatch
from builder.catalog.flag_history import (
    KV_SCHEMES,
    FlagChange,
    flag_history,
    length_flags,
    migration,
    quantization_schemes,
)
from builder.catalog.flags import Flag, flag_state, flags, llm_args
from builder.catalog.flags import canonical as canonical_flag
from builder.catalog.gpu_names import find_gpu, gpu_hint
from builder.catalog.gpus import Gpu, gpus
from builder.catalog.precisions import AS_PUBLISHED, KvPrecision, Precision, kv_precisions, precisions
from builder.catalog.registries import RegistryLimits, registries, registry_limits
from builder.catalog.releases import (
    EngineRemoval,
    Unlisted,
    engine_refusal,
    engine_removal,
    has_engines,
    minimum_transformers,
    unlisted,
)
from builder.catalog.toolchains import Toolchain, latest_engine_toolchain, toolchains
from builder.catalog.versions import parse as parse_version
from builder.catalog.words import did_you_mean

__all__ = [
    "AS_PUBLISHED",
    "KV_SCHEMES",
    "Container",
    "EngineRemoval",
    "Flag",
    "FlagChange",
    "Gpu",
    "KvPrecision",
    "Precision",
    "RegistryLimits",
    "Toolchain",
    "Unlisted",
    "canonical_flag",
    "container_of_image",
    "containers",
    "containers_with",
    "did_you_mean",
    "engine_refusal",
    "engine_removal",
    "find_gpu",
    "flag_history",
    "flag_state",
    "flags",
    "gpu_hint",
    "gpus",
    "has_engines",
    "kv_precisions",
    "latest_engine_toolchain",
    "length_flags",
    "llm_args",
    "migration",
    "minimum_transformers",
    "mismatch",
    "parse_version",
    "precisions",
    "quantization_schemes",
    "registries",
    "registry_limits",
    "toolchains",
    "unlisted",
]
