"""A GGUF file turned into a model folder as Hugging Face transformers writes it, without torch.

    folder/
      config.json                 LlamaForCausalLM, every value from the file's metadata
      generation_config.json      the special tokens of generation
      model.safetensors           bfloat16; byte for byte what transformers saves of the same GGUF
      tokenizer.json              see `gguf_tokenizer`
      tokenizer_config.json       with the chat template

Every byte is our own doing, so one GGUF gives the same digests whatever the versions of the libraries are.
Formats: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; llama.cpp's `convert_hf_to_gguf.py` for what the
tensors hold: it interleaves the rows of q and k for its own rotary embedding, here they are put back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import ReaderTensor, dequantize
from numpy.typing import NDArray

from builder.errors import SourceError
from builder.model.safetensors import encode_header
from builder.model.sources.gguf_file import GgufFile
from builder.model.sources.gguf_tokenizer import tokenizer_files
from builder.store.digests import Advance

CONVERTER_VERSION = 1
"""Raised when the converted files would come out differently."""


def convert(gguf: Path, folder: Path, advance: Advance) -> None:
    """Write the model folder into `folder`, which exists. One tensor at a time is in memory, in float32.

    `advance` is told the bytes of weights written. Raises SourceError: `GGUF_DAMAGED`, `GGUF_METADATA`,
    `GGUF_TENSORS`, `UNSUPPORTED_ARCHITECTURE` for all but plain Llama, `UNSUPPORTED_TOKENIZER`.
    """
    file = GgufFile.open(gguf)
    config = _config(file)
    generation = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    documents = {"config.json": config, "generation_config.json": generation, **tokenizer_files(file)}
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    weights = _weights(config)
    _check_tensors(file, weights)
    _write_safetensors(folder / "model.safetensors", file.tensors, weights, advance)


def _config(file: GgufFile) -> dict[str, Any]:
    """config.json; names and meanings as in transformers' LlamaConfig."""
    file.require("general.architecture", "llama", "UNSUPPORTED_ARCHITECTURE")
    file.require("llama.expert_count", 0, "UNSUPPORTED_ARCHITECTURE")
    file.require("llama.rope.scaling.type", "none", "UNSUPPORTED_ARCHITECTURE")
    hidden_size = file.integer("llama.embedding_length")
    heads = file.integer("llama.attention.head_count")
    head_dim = file.integer("llama.attention.key_length", hidden_size // max(heads, 1))
    file.require("llama.attention.value_length", head_dim, "UNSUPPORTED_ARCHITECTURE")
    file.require("llama.rope.dimension_count", head_dim, "UNSUPPORTED_ARCHITECTURE")
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": file.integer("tokenizer.ggml.bos_token_id"),
        "eos_token_id": file.integer("tokenizer.ggml.eos_token_id"),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "hidden_size": hidden_size,
        "intermediate_size": file.integer("llama.feed_forward_length"),
        "max_position_embeddings": file.integer("llama.context_length"),
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_hidden_layers": file.integer("llama.block_count"),
        "num_key_value_heads": file.integer("llama.attention.head_count_kv", heads),
        "pad_token_id": file.metadata.get("tokenizer.ggml.padding_token_id"),
        "rms_norm_eps": file.number("llama.attention.layer_norm_rms_epsilon"),
        "rope_scaling": None,
        "rope_theta": file.number("llama.rope.freq_base", 10000.0),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "torch_dtype": "bfloat16",
        "vocab_size": len(file.texts("tokenizer.ggml.tokens")),
    }


@dataclass(frozen=True)
class _Weight:
    """A tensor of the model and where it lies in the GGUF. `heads`: how many it was interleaved over, 0 for none."""

    gguf_name: str
    shape: tuple[int, ...]
    heads: int = 0


def _weights(config: Mapping[str, Any]) -> dict[str, _Weight]:
    """The model's tensors by their names in transformers, in the order of the file: sorted by name."""
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    heads, kv_heads, head_dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    weights = {
        "model.embed_tokens.weight": _Weight("token_embd.weight", (vocab, hidden)),
        "model.norm.weight": _Weight("output_norm.weight", (hidden,)),
    }
    if not config["tie_word_embeddings"]:
        weights["lm_head.weight"] = _Weight("output.weight", (vocab, hidden))
    for layer in range(config["num_hidden_layers"]):
        for name, weight in {
            "input_layernorm": _Weight("attn_norm", (hidden,)),
            "mlp.down_proj": _Weight("ffn_down", (hidden, inner)),
            "mlp.gate_proj": _Weight("ffn_gate", (inner, hidden)),
            "mlp.up_proj": _Weight("ffn_up", (inner, hidden)),
            "post_attention_layernorm": _Weight("ffn_norm", (hidden,)),
            "self_attn.k_proj": _Weight("attn_k", (kv_heads * head_dim, hidden), kv_heads),
            "self_attn.o_proj": _Weight("attn_output", (hidden, heads * head_dim)),
            "self_attn.q_proj": _Weight("attn_q", (heads * head_dim, hidden), heads),
            "self_attn.v_proj": _Weight("attn_v", (kv_heads * head_dim, hidden)),
        }.items():
            weights[f"model.layers.{layer}.{name}.weight"] = _Weight(
                f"blk.{layer}.{weight.gguf_name}.weight", weight.shape, weight.heads
            )
    return dict(sorted(weights.items()))


def _check_tensors(file: GgufFile, weights: Mapping[str, _Weight]) -> None:
    expected = {weight.gguf_name: weight.shape for weight in weights.values()}
    # GGUF gives dimensions from the innermost one.
    found = {name: tuple(int(length) for length in reversed(tensor.shape)) for name, tensor in file.tensors.items()}
    faults = [f"{name} is missing" for name in expected.keys() - found.keys()]
    faults += [f"{name} isn't part of a plain Llama" for name in found.keys() - expected.keys()]
    faults += [
        f"{name} has the shape {found[name]}, not {shape}"
        for name, shape in expected.items()
        if found.get(name, shape) != shape
    ]
    if faults:
        raise SourceError(
            f"{len(faults)} tensors of the GGUF file aren't as its metadata says",
            where=file.path,
            why="; ".join(sorted(faults)[:3]),
            hint="name the original model as hf://ORG/NAME",
            code="GGUF_TENSORS",
        )


def _write_safetensors(
    path: Path, tensors: Mapping[str, ReaderTensor], weights: Mapping[str, _Weight], advance: Advance
) -> None:
    header = {name: ("BF16", weight.shape) for name, weight in weights.items()}
    with open(path, "wb") as file:
        file.write(encode_header(header, {"format": "pt"}))
        for name, weight in weights.items():
            tensor = tensors[weight.gguf_name]
            values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
            rows = to_bfloat16(values, where=f"{path.name}: {name}").reshape(weight.shape)
            file.write((_deinterleaved(rows, weight.heads) if weight.heads else rows).data)
            advance(rows.nbytes)


def _deinterleaved(rows: NDArray[np.uint16], heads: int) -> NDArray[np.uint16]:
    """Rows 0, 1, 2, 3, … of each head, which are pairs for llama.cpp, as the two halves that transformers rotates."""
    pairs = rows.reshape(heads, -1, 2, rows.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def to_bfloat16(values: NDArray[np.float32], *, where: str) -> NDArray[np.uint16]:
    """The bits of the nearest bfloat16, ties to even. Infinity and NaN are no weights: SourceError `GGUF_DAMAGED`."""
    bits = values.view(np.uint32)
    rounded = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    if not np.isfinite(values).all():
        raise SourceError("a weight is infinite or not a number", where=where, code="GGUF_DAMAGED")
    return rounded
