"""A Hugging Face model becomes a TensorRT-LLM checkpoint: config.json and one rankN.safetensors per rank.

The tensor table of `builder.model.layout` is executed as it stands. All tensor ranks of a pipeline stage are written
side by side, each file front to back, so that a weight is read once however many ranks share or split it, and every
byte is hashed as it passes. Memory is a few blocks, whatever the model's size.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from builder.checkpoint.config import checkpoint_config
from builder.checkpoint.copying import Copier
from builder.checkpoint.source import SourceWeights
from builder.errors import disk_errors
from builder.model.layout import Split, rank_tensors
from builder.model.safetensors import encode_header
from builder.model.spec import ModelSpec
from builder.store.digests import Advance, HashingWriter, ignore_progress
from builder.store.local import Workspace


def convert(
    source: Path,
    spec: ModelSpec,
    out: Workspace,
    split: Split = Split(),  # noqa: B008 - frozen
    *,
    dtype: str | None = None,
    quantization: Mapping[str, Any] | None = None,
    advance: Advance = ignore_progress,
) -> None:
    """Write the checkpoint of the model in folder `source`, which `spec` describes, for the ranks of `split` to `out`.

    `dtype` ("bfloat16", "float16", "float32") asks for a precision by name, and tensors that are stored in another
    one are rounded to it; None keeps what the model has, byte for byte. `quantization` is what config.json says of it
    (see `checkpoint_config`). The same source gives the same bytes, however it is sharded. `advance` is told the
    bytes of tensors as they are written, `layout.checkpoint_bytes` in all.

    SourceError if the model isn't covered or the weights are not those that `spec` describes, PlanRefused if they
    can't be split like this, HostError if the disk is full. What is half-written then is the workspace's to clear.
    """
    target = spec if dtype is None else replace(spec, dtype=dtype)
    config = checkpoint_config(target, split, quantization)
    tables = [[rank_tensors(target, split, rank) for rank in ranks] for ranks in _stages(split)]
    with disk_errors(out.path), SourceWeights(source, spec) as weights:
        weights.check(dtype)
        for ranks, table in zip(_stages(split), tables, strict=True):
            with ExitStack() as stack:
                writers = [stack.enter_context(HashingWriter(out.path / f"rank{rank}.safetensors")) for rank in ranks]
                for tensors, writer in zip(table, writers, strict=True):
                    layout = {tensor.name: (tensor.dtype, tensor.shape) for tensor in tensors}
                    writer.write(encode_header(layout, {"format": "pt"}))
                threads = min(len(writers), os.cpu_count() or 1)
                pool = stack.enter_context(ThreadPoolExecutor(threads))
                copier = Copier(weights, writers, pool, threads, advance)
                for same in zip(*table, strict=True):
                    copier.copy(same)
                copier.settle()
            for rank, writer in zip(ranks, writers, strict=True):
                out.record(f"rank{rank}.safetensors", writer.digest)
        text = json.dumps(config, indent=2, allow_nan=False) + "\n"
        with HashingWriter(out.path / "config.json") as file:
            file.write(text.encode())
        out.record("config.json", file.digest)


def _stages(split: Split) -> Iterator[Sequence[int]]:
    """The ranks of each pipeline stage."""
    return (range(stage * split.tp, (stage + 1) * split.tp) for stage in range(split.pp))
