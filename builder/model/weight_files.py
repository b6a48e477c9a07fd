"""Which files of a model hold its weights, decided from the names of its files and its index alone.

The weights lie in `model.safetensors`, else in the files that `model.safetensors.index.json` names:
{"weight_map": {TENSOR: FILE}, "metadata": {…}}. Other copies (`consolidated*`, `original/`, `metal/`, *.bin, *.gguf)
are never looked at. Where there are no weights that we read, what there is instead is called by its name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

from builder.errors import SourceError
from builder.model.files import read_json

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

MAX_INDEX_BYTES, MAX_INDEX_VALUES = 40_000_000, 300_000
"""One value per tensor. Kimi-K2 in NVFP4, with a thousand tensors and three scales for each per layer, has 280,000."""

_SHARD_NAME = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def read_index(path: Path, where: object = None) -> dict[str, str]:
    """The weight map of an index file. Raises SourceError as `check_index` does, or for a file that can't be read."""
    content = read_json(path, "INDEX_JSON", most_bytes=MAX_INDEX_BYTES, most_values=MAX_INDEX_VALUES)
    return check_index(content, where or path)


def check_index(content: Any, where: object) -> dict[str, str]:
    """The weight map of an index: tensor → file. Raises SourceError `INDEX_JSON` or `PATH_ESCAPE`."""
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise SourceError(
            "the index of the shards has no weight_map that maps tensors to files", where=where, code="INDEX_JSON"
        )
    for shard in sorted(set(weight_map.values())):
        path = PurePosixPath(shard)
        if path.is_absolute() or ".." in path.parts or "\\" in shard or "\0" in shard or path.suffix != ".safetensors":
            raise SourceError(
                f"the index names a weight file that is not allowed: {shard!r}",
                where=where,
                why="weight files are .safetensors files inside of the model's folder",
                hint="don't use this copy of the model",
                code="PATH_ESCAPE",
            )
    return weight_map


def shards_of(weight_map: dict[str, str], present: Collection[str], where: object) -> list[str]:
    """The files that an index names, sorted. Raises SourceError `SHARD_MISSING` with their names and count."""
    shards = sorted(set(weight_map.values()))
    if missing := [shard for shard in shards if shard not in present]:
        raise SourceError(
            f"{len(missing)} of {len(shards)} weight files are missing: {some(missing)}",
            where=where,
            why=f"{INDEX_FILE} names them",
            hint="fetch the model again; the download or copy was not finished",
            code="SHARD_MISSING",
        )
    return shards


def nothing_at_all(names: Collection[str]) -> bool:
    """Whether there are neither weights in any format, nor an index or an adapter that speaks of some."""
    weights = ("*.safetensors", "*.gguf", *_PICKLES, "*.index.json", "adapter_*")
    return not any(fnmatchcase(name, pattern) for name in names for pattern in weights)


def no_weights(names: Iterable[str], where: object) -> SourceError:
    """What lies in a model instead of weights that we can read, as the error to raise."""
    names = sorted(names)
    for found, code, message, hint in (
        (
            [name for name in names if _SHARD_NAME.fullmatch(name)],
            "INDEX_MISSING",
            f"the weights are in several files, but {INDEX_FILE} is missing",
            "fetch the model again; the download or copy was not finished",
        ),
        (
            [name for name in names if name.startswith("adapter_")],
            "ADAPTER_ONLY",
            "this is a LoRA adapter, not a whole model",
            "name its base model (base_model_name_or_path in adapter_config.json) as the source, or a merged model",
        ),
        (
            [name for name in names if fnmatchcase(name, "*.gguf")],
            "GGUF_ONLY",
            "the weights are only there as GGUF",
            "name the repository that it was quantised from; it has the safetensors",
        ),
        (
            [name for name in names if any(fnmatchcase(name, pattern) for pattern in _PICKLES)],
            "PICKLE_ONLY",
            "the weights are only there as pickle files, which run code when they are read; we never read one",
            "look for a revision with safetensors, or convert it on a machine that you can lose",
        ),
    ):
        if found:
            return SourceError(message, where=where, why=f"found {some(found)}", hint=hint, code=code)
    others = [name for name in names if name.endswith(".safetensors")]
    return SourceError(
        "no weights found",
        where=where,
        why=f"neither {SINGLE_FILE} nor {INDEX_FILE}" + (f"; only {some(others)}" if others else ""),
        hint="the source must be a Hugging Face model with safetensors; check the name and the revision",
        code="WEIGHTS_MISSING",
    )


def some(names: list[str]) -> str:
    """The first three of `names`, and how many more there are."""
    rest = len(names) - 3
    return ", ".join(names[:3]) + (f" and {rest} more" if rest > 0 else "")
