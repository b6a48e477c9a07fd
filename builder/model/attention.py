"""The attention of a config's layers: heads, their sizes, how far they see, and whether they are compressed."""

from __future__ import annotations

from collections.abc import Iterable

from builder.model.families import Family
from builder.model.fields import Fields
from builder.model.rope import read_ropes
from builder.model.spec import Attention, Mla, Rope

MOST_LAYERS = 1000
"""Also of heads. The deepest published model has 126 layers, the widest 128 heads."""


def read_attentions(fields: Fields, family: Family, kinds: Iterable[str]) -> dict[str, Attention]:
    """The attention of every kind of layer that has one."""
    if family.latent:
        return {"full_attention": _latent(fields, family)}
    own = {
        kind: (key_value_heads(fields), read_head_dim(fields), False) for kind in kinds if kind != "linear_attention"
    }
    if family.global_heads and "full_attention" in own:
        k_eq_v = fields.flag("attention_k_eq_v")
        kv_heads = fields.optional_count("num_global_key_value_heads") if k_eq_v else None
        own["full_attention"] = (kv_heads or key_value_heads(fields), fields.count("global_head_dim"), k_eq_v)
    ropes = read_ropes(fields, family, {kind: head_dim for kind, (_, head_dim, _) in own.items()})
    if family.windows == "chunked" and "chunked_attention" in own:
        ropes["full_attention"] = None  # these layers have no positions
    window = read_window(fields, family)
    result = {}
    for kind, (kv_heads, head_dim, k_eq_v) in own.items():
        whole = read_attention(fields, head_count(fields), kv_heads, head_dim, ropes[kind])
        seen = None if kind == "full_attention" else window
        result[kind] = Attention(whole.heads, kv_heads, head_dim, seen, None, whole.rope, k_eq_v)
    return result


def read_attention(fields: Fields, heads: int, kv_heads: int, head_dim: int, rope: Rope | None) -> Attention:
    """Attention over all tokens, once its numbers fit together."""
    if heads % kv_heads:
        raise fields.contradiction(f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}")
    if rope is not None and head_dim % 2:
        raise fields.contradiction(f"head_dim {head_dim} is odd, but rotary embeddings turn pairs")
    return Attention(heads, kv_heads, head_dim, rope=rope)


def read_window(fields: Fields, family: Family) -> int | None:
    """How far the layers with a window see. A number that `use_sliding_window` switches off doesn't count."""
    if family.windows == "none" or fields.get("use_sliding_window") is False:
        return None
    return fields.optional_count("attention_chunk_size" if family.windows == "chunked" else "sliding_window")


def head_count(fields: Fields) -> int:
    return fields.count("num_attention_heads", most=MOST_LAYERS)


def key_value_heads(fields: Fields) -> int:
    """Models from before grouped-query attention don't have the field."""
    return head_count(fields) if fields.get("num_key_value_heads") is None else fields.count("num_key_value_heads")


def read_head_dim(fields: Fields) -> int:
    if fields.get("head_dim") is not None:
        return fields.count("head_dim", most=1 << 20)
    hidden_size, heads = fields.count("hidden_size"), head_count(fields)
    if hidden_size % heads:
        raise fields.contradiction(
            f"hidden_size {hidden_size} is not a multiple of num_attention_heads {heads}, and head_dim is not given"
        )
    return hidden_size // heads


def layer_count(fields: Fields) -> int:
    return fields.count("num_hidden_layers", most=MOST_LAYERS)


def _latent(fields: Fields, family: Family) -> Attention:
    """DeepSeek's attention. Its num_key_value_heads say nothing about the cache."""
    fields.require(("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    mla = Mla(
        fields.count("kv_lora_rank"),
        fields.optional_count("q_lora_rank"),
        fields.count("qk_nope_head_dim"),
        fields.count("qk_rope_head_dim"),
        fields.count("v_head_dim"),
        *((fields.count(name) for name in ("index_n_heads", "index_head_dim", "index_topk")) if family.indexer else ()),
    )
    rope = read_ropes(fields, family, {"full_attention": mla.qk_rope_head_dim})["full_attention"]
    heads = head_count(fields)
    return Attention(heads, heads, mla.qk_nope_head_dim + mla.qk_rope_head_dim, mla=mla, rope=rope)
