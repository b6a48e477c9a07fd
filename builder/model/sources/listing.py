"""Which files of a source a build can need, and whether there is something usable among them at all."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Literal

from builder.errors import SourceError
from builder.model.snapshot import FileKind, classify
from builder.model.weight_files import INDEX_FILE, SINGLE_FILE, no_weights, nothing_at_all, shards_of

Content = Literal["model", "adapter", "dataset"]
"""What a source is asked for: a whole model, a LoRA adapter for one, or texts."""

NEEDED: tuple[FileKind, ...] = ("weights", "config", "tokenizer")

MOST_WORDS = 200

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"

WeightMap = Callable[[], dict[str, str]]
"""Reads the index of the shards: tensor → file."""


def needed(
    paths: Collection[str], content: Content, weight_map: WeightMap, *, where: str, may_lack_weights: bool = False
) -> list[str]:
    """The paths to pin, sorted.

    Of a model: weights, configuration and tokenizer; of an adapter: weights and configuration; of texts: all but
    documentation and code. Raises SourceError `ADAPTER_ONLY`, `GGUF_ONLY`, `PICKLE_ONLY`, `INDEX_MISSING`,
    `SHARD_MISSING`, `WEIGHTS_MISSING`, `CONFIG_MISSING`, `NOT_AN_ADAPTER` or `DATA_MISSING`.
    """
    if content == "dataset":
        return _texts(paths, where)
    if content == "adapter":
        return _adapter(paths, where)
    weights = weights_among(paths, weight_map, where=where, may_lack=may_lack_weights)
    if "config.json" not in paths:
        raise SourceError(
            "there is no config.json beside the weights" if weights else "there is no config.json here",
            where=where,
            hint="name a repository in the format of Hugging Face transformers",
            code="CONFIG_MISSING",
        )
    words = words_among(paths)
    if len(words) > MOST_WORDS:
        raise SourceError(
            f"there are {len(words)} files of configuration and tokenizers",
            where=where,
            why=f"a model has a dozen; {MOST_WORDS} at most are pinned",
            code="TOO_MANY_FILES",
        )
    return sorted({*weights, *words})


def weights_among(paths: Collection[str], weight_map: WeightMap, *, where: str, may_lack: bool = False) -> list[str]:
    """The files of a model's weights, with the index if there is one; none where it `may_lack` them and has none."""
    if SINGLE_FILE in paths:
        return [SINGLE_FILE]
    if INDEX_FILE in paths:
        return [INDEX_FILE, *shards_of(weight_map(), paths, where)]
    if may_lack and nothing_at_all(paths):
        return []
    raise no_weights(paths, where)


def words_among(paths: Collection[str]) -> list[str]:
    """The files of a model's configuration and tokenizer."""
    return [path for path in paths if path != ADAPTER_CONFIG and classify(path) in ("config", "tokenizer")]


def kind_of(path: str, content: Content) -> FileKind:
    """The class of a pinned file; an index may name shards in folders, too."""
    if content == "dataset":
        return "other"
    return "weights" if path.endswith(".safetensors") else classify(path)


def _adapter(paths: Collection[str], where: str) -> list[str]:
    if ADAPTER_CONFIG not in paths:
        raise SourceError(
            f"this isn't a LoRA adapter: it has no {ADAPTER_CONFIG}",
            where=where,
            hint="name an adapter in the format of PEFT",
            code="NOT_AN_ADAPTER",
        )
    if ADAPTER_WEIGHTS not in paths:
        raise no_weights([path for path in paths if path != ADAPTER_CONFIG], where)
    return [ADAPTER_CONFIG, ADAPTER_WEIGHTS]


def _texts(paths: Collection[str], where: str) -> list[str]:
    found = sorted(path for path in paths if classify(path) != "documentation" and not path.endswith(".py"))
    if not found:
        raise SourceError("there are no texts here", where=where, hint="check the name", code="DATA_MISSING")
    return found
