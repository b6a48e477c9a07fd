"""The layers of DeciLM (Nemotron-NAS), which an architecture search made: each has its own heads and width, or none.

Rules: modeling_decilm.py and configuration_decilm.py in nvidia/Llama-3_3-Nemotron-Super-49B-v1 on the Hub.
"""

from __future__ import annotations

from collections.abc import Mapping

from builder.model.attention import head_count, layer_count, read_attention, read_head_dim
from builder.model.families import Family
from builder.model.fields import MOST, Fields
from builder.model.hybrids import unknown_layer
from builder.model.rope import read_ropes
from builder.model.spec import Attention, Layer, Rope, shared

_WIDTH_MULTIPLE = 256
_OTHER_KINDS = ("replace_with_linear", "unshifted_sink", "num_sink_tokens", "sparsify")


def read_blocks(fields: Fields, family: Family) -> tuple[Layer, ...]:
    """One layer for each of `block_configs`."""
    blocks = fields.get("block_configs")
    if not isinstance(blocks, list) or not all(isinstance(block, Mapping) for block in blocks):
        raise fields.wrong("block_configs", "a list of objects")
    if len(blocks) != layer_count(fields):
        raise fields.contradiction(
            f"block_configs has {len(blocks)} entries, num_hidden_layers is {layer_count(fields)}"
        )
    rope = read_ropes(fields, family, {"full_attention": read_head_dim(fields)})["full_attention"]
    return tuple(shared(_layer(fields, number, block, rope)) for number, block in enumerate(blocks))


def _layer(fields: Fields, number: int, block: Mapping[str, object], rope: Rope | None) -> Layer:
    parts = Fields(block, f"{fields.where}: block_configs[{number}]")
    attention, ffn = parts.inner("attention"), parts.inner("ffn")
    if attention is None or ffn is None:
        raise parts.wrong("ffn" if attention else "attention", "an object")
    for part in (attention, ffn):
        if strange := [name for name in _OTHER_KINDS if part.get(name) not in (None, False)]:
            raise unknown_layer(part, "block_configs", strange)
    return Layer(_attention(fields, attention, rope), _width(fields, ffn))


def _attention(fields: Fields, part: Fields, rope: Rope | None) -> Attention | None:
    if part.flag("no_op"):
        return None
    heads, in_group = head_count(fields), part.count("n_heads_in_group")
    if heads % in_group:
        raise part.contradiction(f"num_attention_heads {heads} is not a multiple of n_heads_in_group {in_group}")
    whole = read_attention(fields, heads, heads // in_group, read_head_dim(fields), rope)
    window = part.optional_count("window_length")
    return Attention(heads, whole.kv_heads, whole.head_dim, window, rope=rope)


def _width(fields: Fields, part: Fields) -> int | None:
    """2/3 of ffn_mult · hidden_size, rounded down, then up to a multiple of 256; or the number itself."""
    if part.flag("no_op"):
        return None
    if part.get("intermediate_size") is not None:
        return part.count("intermediate_size")
    width = int(2 * part.positive("ffn_mult") * fields.count("hidden_size") / 3)
    if not 0 < width <= MOST:
        raise part.wrong("ffn_mult", f"a number that makes a width from 1 to {MOST}")
    return -(-width // _WIDTH_MULTIPLE) * _WIDTH_MULTIPLE
