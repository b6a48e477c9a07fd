"""Names, shapes and types of every rank, and every value of config.json.

The tensors are those of `builder.reference.layout`, which is written from TensorRT-LLM's side without the converter's
table. config.json is held against what the model's own configuration makes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from builder.checkpoint.config import checkpoint_config
from builder.checkpoint.verification.report import Mismatch
from builder.errors import BuilderError
from builder.model.layout import Split
from builder.model.spec import STORED_DTYPES, ModelSpec
from builder.reference.config import Config
from builder.reference.errors import ReferenceModelError
from builder.reference.layout import HEAD, may_omit_head, rank_tensors
from builder.reference.tensorfile import TensorFile

_FREE = ("quantization", "use_parallel_embedding", "embedding_sharding_dim", "mapping", "dtype", "logits_dtype")
"""Of config.json what a recipe chooses, not the model."""


def verify_structure(checkpoint: Path) -> tuple[Mismatch, ...]:
    """What is wrong with a checkpoint by itself, all of it; empty where nothing is."""
    try:
        config = read_config(checkpoint)
    except ReferenceModelError as error:
        return (Mismatch("config.json", "", f"can't be used: {error}"),)
    return tuple(_ranks(checkpoint, config))


def read_config(checkpoint: Path) -> Config:
    """ReferenceModelError for what can't be read, and for what contradicts itself."""
    path = checkpoint / "config.json"
    try:
        table = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ReferenceModelError(f"{path}: {error}") from error
    return Config.from_dict(table, str(path))


def config_mismatches(checkpoint: Path, spec: ModelSpec) -> Iterator[Mismatch]:
    """Values of config.json that the model's own configuration makes otherwise."""
    found: Mapping[str, Any] = json.loads((checkpoint / "config.json").read_bytes())
    dtype = found.get("dtype")
    if dtype not in STORED_DTYPES:
        return  # the structure says so
    try:
        expected = checkpoint_config(replace(spec, dtype=dtype), _split(found))
    except BuilderError as error:
        yield Mismatch("config.json", "", f"can't be that of this model: {error.message}")
        return
    for name, value in expected.items():
        if name not in _FREE and found.get(name) != value:
            yield Mismatch("config.json", name, "differs from the model", _short(value), _short(found.get(name)))


def _split(config: Mapping[str, Any]) -> Split:
    mapping: Mapping[str, Any] = config.get("mapping") or {}
    sizes = {name: int(mapping.get(f"{name}_size", 1)) for name in ("tp", "pp", "cp", "moe_ep")}
    return Split(
        **sizes,
        moe_tp=int(mapping.get("moe_tp_size", 0)),
        use_parallel_embedding=bool(config.get("use_parallel_embedding")),
        embedding_sharding_dim=int(config.get("embedding_sharding_dim") or 0),
    )


def _ranks(checkpoint: Path, config: Config) -> Iterator[Mismatch]:
    expected_files = {f"rank{rank}.safetensors" for rank in range(config.mapping.files)}
    present = {path.name for path in checkpoint.glob("rank*.safetensors")}
    yield from (Mismatch(name, "", "is missing") for name in sorted(expected_files - present))
    yield from (Mismatch(name, "", "is no rank of this checkpoint") for name in sorted(present - expected_files))
    for rank in range(config.mapping.files):
        name = f"rank{rank}.safetensors"
        if name not in present:
            continue
        try:
            file = TensorFile.open(checkpoint / name)
        except ReferenceModelError as error:
            yield Mismatch(name, "", f"can't be read: {error}")
            continue
        yield from _tensors(config, rank, file)


def _tensors(config: Config, rank: int, file: TensorFile) -> Iterator[Mismatch]:
    name, expected = file.path.name, rank_tensors(config, rank)
    if HEAD in expected and HEAD not in file.tensors and may_omit_head(config):
        del expected[HEAD]
    for tensor, wanted in expected.items():
        entry = file.tensors.get(tensor)
        if entry is None:
            if not wanted.optional:
                yield Mismatch(name, tensor, "is missing")
        elif entry.shape not in wanted.shapes:
            yield Mismatch(name, tensor, "has another shape", str(list(wanted.shapes[0])), str(list(entry.shape)))
        elif entry.dtype not in wanted.dtypes:
            yield Mismatch(name, tensor, "has another type", " or ".join(wanted.dtypes), entry.dtype)
    yield from (Mismatch(name, tensor, "isn't part of the model") for tensor in file.tensors if tensor not in expected)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
