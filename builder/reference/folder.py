"""A folder that holds a model, checked as a whole before any weight is read. Two kinds:

    checkpoint      config.json                                   rank0.safetensors, rank1.safetensors, …
    engine          config.json {"version": "reference-1",        rank0.engine, rank1.engine, …: safetensors files
                    "engine_kind": "reference",                   with the metadata {"format":
                    "pretrained_config", "build_config"}          "engine-builder-reference", "rank": "N"}

TensorRT-LLM's own engine folders have the same names with other contents; they are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.reference.config import Config
from builder.reference.errors import ReferenceModelError
from builder.reference.layout import HEAD, may_omit_head, rank_tensors
from builder.reference.limits import Limits
from builder.reference.tensorfile import TensorFile

ENGINE_VERSION = "reference-1"
ENGINE_KIND = "reference"
ENGINE_FORMAT = "engine-builder-reference"


def engine_metadata(rank: int) -> dict[str, str]:
    return {"format": ENGINE_FORMAT, "rank": str(rank)}


@dataclass(frozen=True)
class ModelFolder:
    """`ranks[N]` is the file of rank N; `limits` is None for a checkpoint, which has none."""

    path: Path
    pretrained_config: Mapping[str, Any]
    config: Config
    limits: Limits | None
    ranks: tuple[TensorFile, ...]

    @classmethod
    def open(cls, path: Path) -> ModelFolder:
        """ReferenceModelError unless config.json, the ranks' files, and the tensors' names, shapes and types fit."""
        config_path = path / "config.json"
        table = _read_config(config_path)
        if "pretrained_config" in table or "engine_kind" in table:
            if (table.get("version"), table.get("engine_kind")) != (ENGINE_VERSION, ENGINE_KIND):
                raise ReferenceModelError(
                    f"{config_path}: not an engine of the reference model: version {table.get('version')!r}, "
                    f"engine_kind {table.get('engine_kind')!r} instead of {ENGINE_VERSION!r} and {ENGINE_KIND!r}"
                )
            limits = Limits.from_build_config(table.get("build_config"), f"{config_path}: build_config")
            pretrained, suffix = table.get("pretrained_config"), "engine"
        else:
            limits, pretrained, suffix = None, table, "safetensors"
        if not isinstance(pretrained, dict):
            raise ReferenceModelError(f"{config_path}: pretrained_config must be a JSON object")
        config = Config.from_dict(pretrained, str(config_path))
        files = _rank_files(path, suffix, config.mapping.files)
        for rank, file in enumerate(files):
            if limits is not None and dict(file.metadata) != engine_metadata(rank):
                raise ReferenceModelError(f"{file.path}: not rank {rank} of a reference engine: {dict(file.metadata)}")
            _check_tensors(config, rank, file)
        return cls(path, pretrained, config, limits, files)


def _read_config(path: Path) -> dict[str, Any]:
    try:
        table = json.loads(path.read_bytes())
    except OSError as error:
        raise ReferenceModelError(f"{path}: can't be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ReferenceModelError(f"{path}: not JSON: {error}") from error
    if not isinstance(table, dict):
        raise ReferenceModelError(f"{path}: a JSON object is expected")
    return table


def _rank_files(folder: Path, suffix: str, world_size: int) -> tuple[TensorFile, ...]:
    expected = [f"rank{rank}.{suffix}" for rank in range(world_size)]
    found = {path.name for path in folder.iterdir() if re.fullmatch(rf"rank\d+\.{suffix}", path.name)}
    if missing := [name for name in expected if name not in found]:
        raise ReferenceModelError(f"{folder}: {', '.join(missing)} missing; config.json tells of {world_size} ranks")
    if extra := sorted(found - set(expected)):
        raise ReferenceModelError(f"{folder}: {', '.join(extra)} too many; config.json tells of {world_size} ranks")
    return tuple(TensorFile.open(folder / name) for name in expected)


def _check_tensors(config: Config, rank: int, file: TensorFile) -> None:
    expected = rank_tensors(config, rank)
    if HEAD in expected and HEAD not in file.tensors and may_omit_head(config):
        del expected[HEAD]
    needed = {name for name, tensor in expected.items() if not tensor.optional}
    for verdict, names in (("missing", needed - file.tensors.keys()), ("not known", file.tensors.keys() - expected)):
        if names:
            listed = ", ".join(sorted(names)[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
            raise ReferenceModelError(f"{file.path}: tensors {verdict}: {listed}")
    for name, entry in file.tensors.items():
        shapes, dtypes = expected[name].shapes, expected[name].dtypes
        if entry.shape not in shapes or entry.dtype not in dtypes:
            raise ReferenceModelError(
                f"{file.path}: {name} is {entry.dtype} {list(entry.shape)}, "
                f"expected {' or '.join(dtypes)} {list(shapes[0])}"
            )
