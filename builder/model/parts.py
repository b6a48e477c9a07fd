"""The records that a `ModelSpec` is made of: a layer and what is in it, and how published weights are quantised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Rope:
    """A rotary embedding. `scaling` holds the numbers of its type under transformers' names, lists as tuples.

    `partial_factor` is the share of each head that is turned.
    """

    theta: float
    type: str
    scaling: Mapping[str, Any] = field(default_factory=dict)
    partial_factor: float = 1.0

    def __hash__(self) -> int:
        return hash((self.theta, self.type, self.partial_factor))


@dataclass(frozen=True)
class Mla:
    """Multi-head latent attention: one compressed vector per token stands for the keys and values of all heads.

    The index_* fields describe the indexer of DeepSeek-V3.2's sparse attention, which keeps keys of its own.
    """

    kv_lora_rank: int
    q_lora_rank: int | None
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    index_heads: int | None = None
    index_head_dim: int | None = None
    index_top_k: int | None = None


@dataclass(frozen=True)
class Attention:
    """The attention of a layer. `window`: how many tokens back it sees, None for all.

    `k_eq_v`: values are computed from the same projection as keys; both are cached all the same, since only keys
    are turned. `shares_cache`: it reads the cache of an earlier layer and has no keys and values of its own.
    """

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    mla: Mla | None = None
    rope: Rope | None = None
    k_eq_v: bool = False
    shares_cache: bool = False

    def kv_values_per_token(self, tp: int = 1) -> int:
        """Values (not bytes) that one token has in the cache of one rank.

        Keys and values of max(1, ⌈KV heads / tp⌉ heads), or, for latent attention, its vector, which every rank has
        whole (DeepSeek-V2, arXiv:2405.04434, section 2.1.2; TensorRT-LLM's KVCacheManager does the same).
        """
        if self.shares_cache:
            return 0
        if self.mla is not None:
            return self.mla.kv_lora_rank + self.mla.qk_rope_head_dim
        return 2 * max(1, -(-self.kv_heads // tp)) * self.head_dim

    @property
    def indexer_bytes_per_token(self) -> int:
        """Bytes of the indexer's cache, whatever the KV cache's precision: keys in FP8, a float32 scale for 128 values.

        DSACacheManager in tensorrt_llm/_torch/attention_backend/sparse/dsa.py of NVIDIA/TensorRT-LLM.
        """
        size = 0 if self.mla is None else self.mla.index_head_dim or 0
        return size + size // 128 * 4


@dataclass(frozen=True)
class Experts:
    """A mixture of experts. `shared_intermediate_size` is the width of all shared experts together.

    `latent_size`: experts read and write a vector of this width in place of the hidden size.
    """

    count: int
    per_token: int
    intermediate_size: int
    shared_count: int = 0
    shared_intermediate_size: int = 0
    latent_size: int | None = None


@dataclass(frozen=True)
class Recurrent:
    """A layer with a state of constant size in place of a cache: "mamba2", or "gated-delta" (linear attention).

    `groups` · `state_size` is the width of its B and C (of queries and of keys, for "gated-delta").
    """

    kind: str
    heads: int
    head_dim: int
    state_size: int
    groups: int
    conv_kernel: int
    conv_bias: bool = False
    projection_bias: bool = False

    @property
    def inner_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def conv_channels(self) -> int:
        return self.inner_size + 2 * self.groups * self.state_size

    def state_values(self, tp: int = 1) -> int:
        """Values (not bytes) that one sequence keeps on one rank: the state, and the inputs of the convolution."""
        return -(-(self.inner_size * self.state_size + self.conv_channels * (self.conv_kernel - 1)) // tp)


@dataclass(frozen=True)
class Layer:
    """What a layer consists of; what it doesn't have is None. Gemma-4 has `intermediate_size` and `experts`."""

    attention: Attention | None = None
    intermediate_size: int | None = None
    experts: Experts | None = None
    recurrent: Recurrent | None = None


@dataclass(frozen=True)
class SourceQuantization:
    """How the published weights are quantised.

    `method` is spelt as found. `precision` is the catalog's name for it; None: nothing that we know. `excluded` are
    patterns of modules that stay in the model's dtype. `activations` is "static" if scales of activations are stored.
    """

    method: str
    precision: str | None
    kv_cache: str | None = None
    bits: int | None = None
    group_size: int | None = None
    block: tuple[int, int] | None = None
    excluded: tuple[str, ...] = ()
    desc_act: bool = False
    has_zero_point: bool = False
    activations: str | None = None
