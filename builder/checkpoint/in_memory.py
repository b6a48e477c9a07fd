"""Checkpoints in the reference model, where there is memory for them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from builder import __version__
from builder.checkpoint.memory import free_memory_bytes
from builder.errors import HostError, VerificationError
from builder.reference.errors import ReferenceModelError
from builder.reference.folder import ModelFolder
from builder.reference.layout import EMBEDDING, HEAD
from builder.reference.model import ReferenceModel

WORKING_BYTES = 512 << 20
"""Logits, activations and the KV cache of one window, for any model."""


def float32_bytes(folder: ModelFolder) -> int:
    """Memory that the reference model takes to hold a checkpoint: every weight as float32, and a copy while it loads.

    4-bit weights are two to a byte. A tied head that isn't stored is kept apart from the embedding.
    """
    quantization = folder.pretrained_config.get("quantization")
    algorithm = quantization.get("quant_algo") if isinstance(quantization, dict) else None
    packed = ("U8", "I8") if str(algorithm).startswith(("W4A16_AWQ", "W4A16_GPTQ", "W4A8_AWQ")) else ("U8",)
    counts = {
        (file.path, name): math.prod(entry.shape) * (2 if name.endswith("weight") and entry.dtype in packed else 1)
        for file in folder.ranks
        for name, entry in file.tensors.items()
    }
    last = folder.ranks[-1]
    head = counts.get((last.path, EMBEDDING), 0) if HEAD not in last.tensors else 0
    return 4 * (sum(counts.values()) + head + 2 * max(counts.values(), default=0))


def require_memory(model_bytes: int, free_bytes: int | None) -> int | None:
    """The free bytes, where they are known. HostError OUT_OF_MEMORY if one model doesn't fit."""
    free = free_memory_bytes() if free_bytes is None else free_bytes
    if free is not None and model_bytes + WORKING_BYTES > free:
        raise HostError(
            f"the model takes {(model_bytes + WORKING_BYTES) / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free",
            why="the reference model computes in float32, with all weights in memory",
            hint="use a machine with more memory, or stop what uses it here",
            code="OUT_OF_MEMORY",
        )
    return free


def open_checkpoint(folder: Path) -> ModelFolder:
    with _readable(folder):
        return ModelFolder.open(folder)


@contextmanager
def load_checkpoint(folder: Path) -> Iterator[ReferenceModel]:
    with _readable(folder):
        yield ReferenceModel.load(folder)


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    try:
        yield
    except ReferenceModelError as error:
        raise VerificationError(
            "the reference model doesn't take the checkpoint",
            where=folder,
            why=str(error),
            code="CHECKPOINT_UNREADABLE",
        ) from error
    except MemoryError as error:
        raise HostError(
            "there isn't memory enough for the model",
            where=folder,
            why=str(error),
            hint="use a machine with more memory, or stop what uses it here",
            code="OUT_OF_MEMORY",
        ) from error


def vocabulary_differs(checkpoint: Path, size: int, other: str, other_size: int) -> VerificationError:
    return VerificationError(
        f"the checkpoint's vocabulary has {size} tokens, that of {other} {other_size}",
        where=checkpoint,
        why="they aren't the same model, or the vocabulary was padded",
        code="VOCABULARY_DIFFERS",
    )


def computed_with(*packages: str) -> dict[str, str]:
    return {"engine-builder": __version__, **{name: version(name) for name in packages}}
