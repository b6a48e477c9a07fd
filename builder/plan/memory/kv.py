"""The KV cache: what a sequence takes, and how many blocks a pool has.

TensorRT-LLM's logs show how it rounds: the pool on the GPU gets ⌈free · fraction / block⌉ blocks, the one in host
memory ⌊bytes / block⌋ (triton-inference-server/tensorrtllm_backend issue 576: 17,210 and 10,728 blocks of 4 MiB). So
logs are reproduced with `kv_blocks` and `host_kv_blocks`; whether something fits is decided with `whole_blocks`.
"""

from __future__ import annotations

import math
from functools import lru_cache

from builder.model.spec import ModelSpec, attention_of_stages


def kv_blocks(free_bytes: int, fraction: float, tokens_per_block: int, kv_bytes_per_token: int) -> int:
    """Blocks of the GPU's pool as TensorRT-LLM logs them."""
    return math.ceil(free_bytes * fraction / (tokens_per_block * kv_bytes_per_token))


def host_kv_blocks(host_bytes: int, tokens_per_block: int, kv_bytes_per_token: int) -> int:
    """Blocks of the pool in host memory (kv_cache_host_memory_bytes)."""
    return host_bytes // (tokens_per_block * kv_bytes_per_token)


def whole_blocks(pool_bytes: int, tokens_per_block: int, kv_bytes_per_token: int) -> int:
    """Blocks that certainly fit into so many bytes."""
    return max(0, pool_bytes) // (tokens_per_block * kv_bytes_per_token)


def block_tokens(tokens: int, tokens_per_block: int) -> int:
    """The tokens that a sequence holds room for: whole blocks."""
    return -(-tokens // tokens_per_block) * tokens_per_block


@lru_cache(maxsize=4096)
def stage_token_bytes(spec: ModelSpec, value_bytes: float, tp: int, pp: int) -> tuple[int, ...]:
    """Per pipeline stage and rank, what one more token costs while no window is full: all layers, see `Attention`."""
    return tuple(
        math.ceil(value_bytes * sum(count * attention.kv_values_per_token(tp) for attention, count in stage))
        for stage in attention_of_stages(spec, pp)
    )


@lru_cache(maxsize=4096)
def stage_sequence_bytes(
    spec: ModelSpec, tokens: int, value_bytes: float, state_bytes: int, tp: int, pp: int
) -> tuple[int, ...]:
    """Per pipeline stage and rank, what a sequence of so many tokens takes: a layer with a window keeps no more than
    that, and recurrent layers keep a state of constant size, of `state_bytes` a value."""
    state = spec.state_values(tp, pp) * state_bytes
    return tuple(
        state
        + math.ceil(
            value_bytes
            * sum(
                count * attention.kv_values_per_token(tp) * min(attention.window or tokens, tokens)
                for attention, count in stage
            )
        )
        for stage in attention_of_stages(spec, pp)
    )
