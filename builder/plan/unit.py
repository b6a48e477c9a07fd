"""A unit: recipe × target, fully resolved."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal

from builder import catalog
from builder.catalog import Gpu, KvPrecision, Precision, Toolchain
from builder.errors import RecipeError, SourceError
from builder.lock import Lock
from builder.model.layout import Split, not_covered
from builder.model.snapshot import FileKind
from builder.model.spec import STORED_DTYPES, ModelSpec
from builder.recipe import (
    AS_PUBLISHED,
    Limits,
    PackageSettings,
    Parallelism,
    Recipe,
    Serving,
    Settings,
)

_OF_DTYPE = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
_DTYPES = {word: dtype for dtype, word in _OF_DTYPE.items()}

CheckpointMaker = Literal["snapshot", "converter", "modelopt", "toolchain"]

Proof = Literal["perplexity", "logits"]

FP8_ATTENTION = ("FP8", "W4A8_AWQ", "NVFP4")
"""The quant_algos with which TensorRT-LLM keeps FP8 context attention: it needs that over an FP8 KV cache."""


@dataclass(frozen=True, eq=False)
class Unit:
    """One engine for one SKU. `id` is RECIPE/PRECISION-tpN[-ppM][-cpK]/SKU[/NAME]; `target` its index in the recipe.

    `precision` and `kv_precision` are resolved: never "auto" or "as published". `dtype` is what isn't quantised.
    """

    id: str
    recipe: Recipe
    target: int
    settings: Settings
    gpu: Gpu
    toolchain: Toolchain
    precision: Precision
    kv_precision: KvPrecision
    dtype: str
    spec: ModelSpec
    lock: Lock
    files: Mapping[FileKind, Mapping[str, str]]
    """SHA-256 of the model's files by path, by kind; one mapping for all units of a lock."""

    @property
    def flow(self) -> str:
        return self.settings.flow

    @property
    def limits(self) -> Limits:
        return self.settings.limits

    @property
    def parallelism(self) -> Parallelism:
        return self.settings.parallelism

    @property
    def serving(self) -> Serving:
        return self.settings.serving

    @property
    def package(self) -> PackageSettings:
        return self.settings.package

    @property
    def as_published(self) -> bool:
        """Whether the weights are used in the format that the source has."""
        return self.settings.precision.weights == AS_PUBLISHED

    @property
    def stores_kv_scales(self) -> bool:
        """Whether a quantised KV cache is part of the checkpoint: in the PyTorch flow it is quantised when it runs."""
        return self.flow == "engine" and self.kv_precision.quant_algo is not None

    @property
    def quantized_here(self) -> bool:
        """Whether weights or KV cache are quantised by us, rather than found so."""
        return (self.precision.quantized or self.stores_kv_scales) and self.spec.quantization is None

    @property
    def calibrated_here(self) -> bool:
        """Whether making the checkpoint measures activations, or keys and values, on text."""
        return self.spec.quantization is None and (self.precision.calibrated or self.stores_kv_scales)

    @cached_property
    def maker(self) -> CheckpointMaker:
        """What makes the checkpoint.

        "snapshot": nothing, the PyTorch flow reads the model as it was published. "converter": our own. "modelopt":
        NVIDIA's library on the machine that builds. "toolchain": the scripts of the release, in its image.
        """
        weight_only = self.precision.scheme == "weight-only" and not self.kv_precision.quant_algo
        if self.flow == "pytorch":
            if not self.quantized_here:
                return "snapshot"
        elif (not self.quantized_here or weight_only) and not_covered(self.spec) is None:
            return "converter"
        elif not self.quantized_here:
            return "toolchain"
        on_host = self.gpu.is_cpu or self.settings.precision.quantizer == "host"
        return "modelopt" if on_host and self.precision.scheme != "weight-only" else "toolchain"

    @property
    def proof(self) -> Proof | None:
        """What the recipe wants proved of the checkpoint: weights quantised here beside the unquantised model, others
        beside transformers. None where no gate is about it."""
        gates = self.settings.qualify
        if gates is None or self.maker == "snapshot":
            return None
        if self.quantized_here:
            return "perplexity" if gates.perplexity else None
        return "logits" if gates.logits and self.spec.quantization is None else None

    @property
    def split(self) -> Split:
        """The ranks of the checkpoint."""
        split = self.parallelism
        return Split(
            split.tensor,
            split.pipeline,
            split.context,
            self.moe_tensor,
            self.moe_expert,
            split.use_parallel_embedding,
            split.embedding_sharding_dim,
        )

    @property
    def ranks(self) -> int:
        """The GPUs that one instance of the model takes: TensorRT-LLM's world size."""
        return self.parallelism.tensor * self.parallelism.pipeline * self.parallelism.context

    @property
    def gpus(self) -> int:
        """The GPUs of the serving node: as the target says, else as many as there are ranks."""
        return self.recipe.content.targets[self.target].gpus or self.ranks

    @property
    def max_seq_len(self) -> int:
        """As the recipe says. Without it TensorRT-LLM would take what the model claims, and a rule refuses that."""
        return self.limits.max_seq_len or self.spec.max_position_embeddings

    @property
    def max_input_len(self) -> int:
        """The longest prompt: as the recipe says, else all of a sequence but the one token of an answer."""
        return self.limits.max_input_len or max(1, self.max_seq_len - 1)

    @property
    def moe_expert(self) -> int:
        """moe_ep_size; with neither expert size given, 1: every expert is split over all tensor ranks."""
        split = self.parallelism
        if split.expert is not None:
            return split.expert
        return max(1, split.tensor // split.expert_tensor) if split.expert_tensor else 1

    @property
    def moe_tensor(self) -> int:
        """moe_tp_size."""
        split = self.parallelism
        return split.expert_tensor or max(1, split.tensor // self.moe_expert)

    @property
    def served_model_name(self) -> str:
        return self.serving.served_model_name or self.recipe.content.name

    @cached_property
    def engine_options(self) -> Mapping[str, object]:
        """The recipe's options of trtllm-build; booleans in its own words, "enable" and "disable"."""
        words = {True: "enable", False: "disable"}
        return {
            name: words[value] if isinstance(value, bool) else value for name, value in self.settings.engine.items()
        }

    @property
    def group_size(self) -> int | None:
        """Weights that share a scale: as the recipe says, as the source has it, or the precision's own."""
        found = self.spec.quantization
        if self.as_published and found is not None:
            return found.group_size
        return self.settings.precision.group_size or self.precision.group_size

    @cached_property
    def paged_context_fmha(self) -> bool:
        """Whether the engine will have paged context FMHA, which KV reuse and chunked context need.

        TensorRT-LLM switches it off for an INT8 KV cache, for an FP8 KV cache under weights that aren't FP8, W4A8-AWQ
        or NVFP4, and without context FMHA.
        """
        if self.flow != "engine":
            return True
        options = self.engine_options
        if "disable" in (options.get("use_paged_context_fmha"), options.get("context_fmha")):
            return False
        if self.kv_precision.name == "int8":
            return False
        return self.kv_precision.name != "fp8" or self.precision.quant_algo in FP8_ATTENTION

    @property
    def kv_cache_reuse(self) -> bool:
        """As the recipe says; else on where the engine can."""
        asked = self.serving.enable_kv_cache_reuse
        return self.paged_context_fmha if asked is None else asked


def resolve_units(recipe: Recipe, lock: Lock) -> list[Unit]:
    """All units of a recipe, in the order of its targets. Raises RecipeError where two have one id."""
    spec = spec_of(lock, recipe.lock_file)
    files = _files(lock)
    units: dict[str, Unit] = {}
    for index, target in enumerate(recipe.content.targets):
        settings = recipe.settings(index)
        gpu = catalog.gpus()[target.sku]
        precision, dtype = _precision(settings, spec)
        unit = Unit(
            id=_unit_id(recipe, settings, gpu.name, target.name),
            recipe=recipe,
            target=index,
            settings=settings,
            gpu=gpu,
            toolchain=catalog.toolchains()["reference" if gpu.is_cpu else settings.toolchain],
            precision=precision,
            kv_precision=_kv_precision(settings, spec, dtype),
            dtype=dtype,
            spec=spec,
            lock=lock,
            files=files,
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


def spec_of(lock: Lock, where: Path) -> ModelSpec:
    """The model of a lock. Where config.json names no dtype, that of most stored bytes counts."""
    stored = None
    if lock.tensors:
        floats = {name: size for name, size in lock.tensors.dtypes.items() if name in STORED_DTYPES.values()}
        stored = max(floats, key=floats.__getitem__) if floats else None
    documents = (lock.config, lock.generation_config, lock.hf_quant_config)
    return _spec(json.dumps(documents, sort_keys=True), stored) or ModelSpec.from_config(
        lock.config, where, lock.generation_config, lock.hf_quant_config or None, stored
    )


@lru_cache(maxsize=1024)
def _spec(documents: str, stored: str | None) -> ModelSpec | None:
    """Recipes of one model have one spec. None where it can't be read: the error must name the lock."""
    config, generation_config, hf_quant_config = json.loads(documents)
    try:
        return ModelSpec.from_config(config, "", generation_config, hf_quant_config or None, stored)
    except SourceError:
        return None


def _files(lock: Lock) -> dict[FileKind, dict[str, str]]:
    files: dict[FileKind, dict[str, str]] = {}
    for file in lock.snapshot.files:
        files.setdefault(file.kind, {})[file.path] = file.sha256
    return files


def _unit_id(recipe: Recipe, settings: Settings, sku: str, name: str | None) -> str:
    split = settings.parallelism
    shape = f"{settings.precision.weights}-tp{split.tensor}"
    shape += f"-pp{split.pipeline}" if split.pipeline > 1 else ""
    shape += f"-cp{split.context}" if split.context > 1 else ""
    return f"{recipe.content.name}/{shape}/{sku}" + (f"/{name}" if name else "")


def _precision(settings: Settings, spec: ModelSpec) -> tuple[Precision, str]:
    """The weight precision, and the dtype of all that it doesn't quantise.

    A float32 source is never built as float32 unless the recipe says so: TensorRT-LLM's `auto` makes float16 of it.
    """
    source = "float16" if spec.dtype == "float32" else spec.dtype
    wanted = settings.precision
    dtype = source if wanted.activations == "auto" else _DTYPES[wanted.activations]
    if wanted.weights == AS_PUBLISHED:
        found = spec.quantization.precision if spec.quantization else None
        return catalog.precisions()[found or _OF_DTYPE[dtype]], dtype
    precision = catalog.precisions()[wanted.weights]
    return precision, precision.dtype or dtype


def _kv_precision(settings: Settings, spec: ModelSpec, dtype: str) -> KvPrecision:
    asked = settings.precision.kv_cache
    if asked == "auto":
        found = spec.quantization.kv_cache if spec.quantization else None
        asked = found if found and settings.precision.weights == AS_PUBLISHED else _OF_DTYPE[dtype]
    return catalog.kv_precisions()[asked]
