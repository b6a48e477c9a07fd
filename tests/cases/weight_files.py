"""Weight files that a test lays into a model's folder: real headers over holes, so that any size costs nothing."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BYTES = {"BF16": 2, "F16": 2, "F32": 4, "I32": 4, "U8": 1, "F8_E4M3": 1}

Tensors = Mapping[str, tuple[str, tuple[int, ...]]]
"""Name → dtype and shape."""


def bf16(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: ("BF16", shape) for name, shape in shapes.items()}


def write_tensors(path: Path, tensors: Tensors) -> int:
    """A safetensors file whose tensors are all zero, as the safetensors library lays it out; returns its size."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, (dtype, shape) in tensors.items():
        end = position + math.prod(shape) * BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, end]}
        position = end
    return write_header(path, header, position)


def write_header(path: Path, header: Any, data_bytes: int) -> int:
    """A file with this header and so many bytes of data; returns its size."""
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + data_bytes)
    return 8 + len(text) + data_bytes


def write_shards(folder: Path, shards: list[Tensors], total_size: int | None = None) -> list[str]:
    """model-0000n-of-0000m.safetensors and their index; returns the names of the shards."""
    names = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    for name, tensors in zip(names, shards, strict=True):
        write_tensors(folder / name, tensors)
    weight_map = {tensor: name for name, tensors in zip(names, shards, strict=True) for tensor in tensors}
    metadata = {} if total_size is None else {"total_size": total_size}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": metadata, "weight_map": weight_map}))
    return names


def decoder(
    *, layers: int, hidden: int, inner: int, heads: int, kv_heads: int, head_dim: int, vocab: int, tied: bool = False
) -> dict[str, tuple[int, ...]]:
    """The shapes of a Llama's tensors (Mistral's and Vicuna's too) by their names on the Hub."""
    query, key = heads * head_dim, kv_heads * head_dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    for number in range(layers):
        layer = f"model.layers.{number}"
        shapes |= {
            f"{layer}.input_layernorm.weight": (hidden,),
            f"{layer}.post_attention_layernorm.weight": (hidden,),
            f"{layer}.self_attn.q_proj.weight": (query, hidden),
            f"{layer}.self_attn.k_proj.weight": (key, hidden),
            f"{layer}.self_attn.v_proj.weight": (key, hidden),
            f"{layer}.self_attn.o_proj.weight": (hidden, query),
            f"{layer}.mlp.gate_proj.weight": (inner, hidden),
            f"{layer}.mlp.up_proj.weight": (inner, hidden),
            f"{layer}.mlp.down_proj.weight": (hidden, inner),
        }
    return shapes if tied else shapes | {"lm_head.weight": (vocab, hidden)}
