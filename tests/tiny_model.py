"""A Llama of a few hundred kB with random weights and a byte-level tokenizer, as a Hugging Face folder."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers.pre_tokenizers import ByteLevel

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "num_hidden_layers": 2,
    "vocab_size": 260,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 257,
}

RECIPE = """\
schema: 1
name: tiny
version: 1.0.0
model: {source: ./model}
toolchain: trtllm-1.2.1
precision: {weights: fp32}
limits: {max_batch_size: 4, max_seq_len: 128}
targets:
  - sku: cpu
"""


def write_tiny_model(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """Write the model; the same seed gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    config = CONFIG | changes
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    head = hidden // config["num_attention_heads"]
    kv = config["num_key_value_heads"] * head
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (vocab, hidden),
    }
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        shapes |= {
            f"{prefix}input_layernorm.weight": (hidden,),
            f"{prefix}post_attention_layernorm.weight": (hidden,),
            f"{prefix}self_attn.q_proj.weight": (hidden, hidden),
            f"{prefix}self_attn.k_proj.weight": (kv, hidden),
            f"{prefix}self_attn.v_proj.weight": (kv, hidden),
            f"{prefix}self_attn.o_proj.weight": (hidden, hidden),
            f"{prefix}mlp.gate_proj.weight": (inner, hidden),
            f"{prefix}mlp.up_proj.weight": (inner, hidden),
            f"{prefix}mlp.down_proj.weight": (hidden, inner),
        }
    random = np.random.default_rng(seed)
    weights = {name: random.standard_normal(shape, dtype=np.float32) * 0.1 for name, shape in shapes.items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tiny_tokenizer()))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages[0].content }}"}))
    (folder / "README.md").write_text("A tiny model.\n")
    return folder


def write_tiny_recipe(folder: Path, text: str = RECIPE) -> Path:
    """A recipe beside its model."""
    write_tiny_model(folder / "model")
    recipe = folder / "tiny.yaml"
    recipe.write_text(text)
    return recipe


def tiny_tokenizer() -> dict[str, Any]:
    """One token per byte, and the special tokens."""
    vocabulary = {symbol: index for index, symbol in enumerate(sorted(ByteLevel.alphabet()))}
    special = {"<s>": 256, "</s>": 257, "<|im_start|>": 258, "<|im_end|>": 259}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": index, "content": text, **flags} for text, index in special.items()],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": vocabulary | special,
            "merges": [],
        },
    }
