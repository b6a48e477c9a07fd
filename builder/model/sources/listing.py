"""Which files of a source a build can need, and whether there is a usable model among them at all."""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import filter as matching

from builder.errors import SourceError
from builder.model.snapshot import FileKind, classify

NEEDED: tuple[FileKind, ...] = ("weights", "config", "tokenizer")

_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def needed(paths: Collection[str], *, where: str) -> list[str]:
    """The paths to pin, sorted: weights, configuration and tokenizer. Documentation, code and pickles never count.

    Where there are weights under the standard name (`model*.safetensors`), others are a second copy in another
    format (`consolidated.safetensors`) or an adapter, and are left out.
    Raises SourceError `ADAPTER_ONLY`, `GGUF_ONLY`, `PICKLE_ONLY`, `WEIGHTS_MISSING` or `CONFIG_MISSING`.
    """
    candidates = [path for path in paths if classify(path) in NEEDED]
    weights = matching(candidates, "*.safetensors")
    standard = matching(weights, "model*.safetensors")
    _refuse_unusable(paths, weights, standard, where)
    second_copies = set(weights) - set(standard) if standard else set()
    return sorted(set(candidates) - second_copies)


def _refuse_unusable(paths: Collection[str], weights: list[str], standard: list[str], where: str) -> None:
    if "adapter_config.json" in paths and not standard:
        raise SourceError(
            "this is a LoRA adapter, not a model",
            where=where,
            hint="name its base model (base_model_name_or_path in adapter_config.json), or a merged model",
            code="ADAPTER_ONLY",
        )
    if not weights and matching(paths, "*.gguf"):
        raise SourceError(
            "this has weights in GGUF files only",
            where=where,
            hint="name the repository that it was quantised from; it has the safetensors",
            code="GGUF_ONLY",
        )
    if not weights and any(matching(paths, pattern) for pattern in _PICKLES):
        raise SourceError(
            "this has weights in pickle files only",
            where=where,
            why="loading a pickle (.bin, .pt, .pth) runs whatever code its author put in; we never do",
            hint="look for a revision with safetensors, or convert it on a machine that you can lose",
            code="PICKLE_ONLY",
        )
    if not weights:
        raise SourceError(
            "there are no weights here",
            where=where,
            why="no *.safetensors at the top level",
            hint="check the name and the revision",
            code="WEIGHTS_MISSING",
        )
    if "config.json" not in paths:
        raise SourceError(
            "there is no config.json beside the weights",
            where=where,
            hint="name a repository in the format of Hugging Face transformers",
            code="CONFIG_MISSING",
        )
