"""Makes the engine folder of the SKU `cpu` out of a checkpoint: the same tensors, with build_config joined to them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path

from builder.reference.errors import ReferenceModelError
from builder.reference.folder import ENGINE_KIND, ENGINE_VERSION, ModelFolder, engine_metadata
from builder.reference.limits import Limits
from builder.reference.tensorfile import TensorFile, encode_header

_BUFFER_BYTES = 4 << 20


def write_engine(
    checkpoint: Path, out: Path, build_config: Mapping[str, object], advance: Callable[[int], None]
) -> dict[str, tuple[str, int]]:
    """Write `out`/config.json and `out`/rank{N}.engine; `out` is created if need be.

    The checkpoint is checked first, as trtllm-build would. Tensors are copied in one pass, hashed on the way;
    `advance` is told the bytes copied. The same checkpoint and build_config give the same bytes.
    Returns file name → (sha256 in hex, size in bytes). ReferenceModelError for what the reference model can't run.
    """
    folder = ModelFolder.open(checkpoint)
    if folder.limits is not None:
        raise ReferenceModelError(f"{checkpoint}: an engine, not a checkpoint")
    Limits.from_build_config(build_config, "build_config")
    pretrained = dict(folder.pretrained_config)
    pretrained["mapping"] = {key: value for key, value in (pretrained.get("mapping") or {}).items() if key != "rank"}
    config = {
        "version": ENGINE_VERSION,
        "engine_kind": ENGINE_KIND,
        "pretrained_config": pretrained,
        "build_config": dict(build_config),
    }
    text = json.dumps(config, indent=2, sort_keys=True, allow_nan=False).encode() + b"\n"
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_bytes(text)
    written = {"config.json": (hashlib.sha256(text).hexdigest(), len(text))}
    for rank, file in enumerate(folder.ranks):
        name = f"rank{rank}.engine"
        written[name] = _copy_tensors(file, out / name, engine_metadata(rank), advance)
    return written


def _copy_tensors(
    source: TensorFile, target: Path, metadata: Mapping[str, str], advance: Callable[[int], None]
) -> tuple[str, int]:
    header = encode_header(source.tensors, metadata)
    digest = hashlib.sha256(header)
    size = len(header)
    buffer = memoryview(bytearray(_BUFFER_BYTES))
    with open(source.path, "rb", buffering=0) as reader, open(target, "wb") as writer:
        writer.write(header)
        reader.seek(source.data_begin)
        while count := reader.readinto(buffer):
            writer.write(buffer[:count])
            digest.update(buffer[:count])
            size += count
            advance(count)
    if size - len(header) != source.size - source.data_begin:
        raise ReferenceModelError(f"{source.path}: changed while it was read")
    return digest.hexdigest(), size
