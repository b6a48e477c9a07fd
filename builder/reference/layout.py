"""The tensors of each rank of a TensorRT-LLM checkpoint: names and shapes.

Written from TensorRT-LLM's side (tensorrt_llm/models/llama/model.py and its layers), on purpose without the
converter's table, so that each checks the other. Weights are (out_features, in_features); layers are numbered from 0
on every pipeline stage. `mlp.fc` is the activated half of the gated MLP (gate_proj in Hugging Face's naming),
`mlp.gate` the other (up_proj). Biases of row-parallel layers (dense, proj) are whole on every rank.
"""

from __future__ import annotations

from builder.reference.config import Config

EMBEDDING = "transformer.vocab_embedding.weight"
FINAL_NORM = "transformer.ln_f.weight"
HEAD = "lm_head.weight"


def layer_prefix(layer: int) -> str:
    return f"transformer.layers.{layer}."


def rank_shapes(config: Config, rank: int) -> dict[str, tuple[int, ...]]:
    """Name → shape for every tensor of `rank` (= pipeline stage · tp_size + tensor rank)."""
    stage = rank // config.tp_size
    hidden, inner = config.hidden_size, config.intermediate_size // config.tp_size
    attention = config.rank_heads * config.head_size
    qkv = attention + 2 * config.rank_key_value_heads * config.head_size
    shapes: dict[str, tuple[int, ...]] = {}
    if stage == 0:
        shapes[EMBEDDING] = (config.vocab_size, hidden)
    for layer in range(config.stage_layers(stage)):
        prefix = layer_prefix(layer)
        shapes[f"{prefix}input_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}attention.qkv.weight"] = (qkv, hidden)
        shapes[f"{prefix}attention.dense.weight"] = (hidden, attention)
        shapes[f"{prefix}post_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}mlp.fc.weight"] = (inner, hidden)
        shapes[f"{prefix}mlp.gate.weight"] = (inner, hidden)
        shapes[f"{prefix}mlp.proj.weight"] = (hidden, inner)
        if config.attn_bias:
            shapes[f"{prefix}attention.qkv.bias"] = (qkv,)
            shapes[f"{prefix}attention.dense.bias"] = (hidden,)
        if config.mlp_bias:
            shapes[f"{prefix}mlp.fc.bias"] = (inner,)
            shapes[f"{prefix}mlp.gate.bias"] = (inner,)
            shapes[f"{prefix}mlp.proj.bias"] = (hidden,)
    if stage == config.pp_size - 1:
        shapes[FINAL_NORM] = (hidden,)
        shapes[HEAD] = (config.rank_vocab, hidden)
    return shapes


def may_omit_head(config: Config) -> bool:
    """Whether lm_head may be absent, the embedding then standing for it.

    TensorRT-LLM's loader looks for the embedding in the same rank file and takes it whole, which fits one rank only.
    """
    return config.world_size == 1 and config.tie_word_embeddings is not False
