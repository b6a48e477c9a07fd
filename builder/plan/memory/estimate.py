"""Whether an engine fits its GPU: exact weights and KV cache, activations and overhead as far as logs tell.

    pool = (memory of the GPU − weights − activations − logits − all-reduce workspace − overhead) · fraction

`Demand` says with plain values what is to be held, so that logs can be reproduced without a recipe; `memory` estimates
it. All numbers are those of the fullest rank: the stage with the largest sum of weights, logits and one sequence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from builder.model.spec import ModelSpec
from builder.plan.memory.activations import activations, all_reduce_bytes, logits_bytes, overhead
from builder.plan.memory.kv import block_tokens, stage_sequence_bytes, stage_token_bytes, whole_blocks
from builder.plan.memory.ranges import Range
from builder.plan.memory.weights import ONE_GPU, Split, Storage, rope_bytes, weight_bytes

FORMULAS: Mapping[str, str] = MappingProxyType(
    {
        "weights": "tensors of the rank in the target precision with scales and padding; the embedding on the first "
        "stage, the output head (vocabulary padded to a multiple of tp) on the last; rope table",
        "rope": "max_position_embeddings · rotary dimension · 4 bytes",
        "kv_per_token": "layers of the stage · 2 · max(1, kv_heads / tp) · head_dim · bytes; "
        "MLA: layers · (kv_lora_rank + qk_rope_head_dim) · bytes",
        "activations": "max_num_tokens · (2·hidden + 2·intermediate/tp to all tensors of a layer) · 2 bytes "
        "+ max_batch_size · vocabulary · 2 bytes",
        "logits": "max_batch_size · max_beam_width · padded vocabulary · 4 bytes",
        "all_reduce": "5 · tp · 16 MB for tp 2, 8 MB for more",
        "overhead": "CUDA context and runtime: 350 MiB to 3.5 GiB, NCCL at the high end",
        "kv_pool": "(GPU − weights − activations − logits − all-reduce − overhead) · kv_cache_free_gpu_mem_fraction",
        "kv_tokens": "⌊pool / (tokens_per_block · kv_per_token)⌋ · tokens_per_block",
        "sequences": "⌊pool / cache of max_seq_len tokens in whole blocks, windows clamped, × beams⌋",
    }
)
"""How each number is made, for people."""


@dataclass(frozen=True)
class Demand:
    """What an engine has to hold, and where.

    kv_bytes: of one key or value in the cache. logit_rows: positions per sequence whose logits are computed in one
    pass (1 + draft tokens). context_logits: those of every token of a pass too. unfused_length: longest prompt where
    context FMHA is off, else 0. max_kv_tokens: max_tokens_in_paged_kv_cache. gpu_bytes: None where nobody knows.
    """

    spec: ModelSpec
    storage: Storage
    kv_bytes: float
    max_batch_size: int
    max_seq_len: int
    max_num_tokens: int
    split: Split = ONE_GPU
    max_beam_width: int = 1
    tokens_per_block: int = 32
    fraction: float = 0.9
    gpu_bytes: int | None = None
    max_kv_tokens: int | None = None
    logit_rows: int = 1
    logit_bytes: int = 4
    context_logits: bool = False
    unfused_length: int = 0

    @property
    def needed_tokens(self) -> int:
        """The least that a pool must hold: one sequence of max_seq_len on every beam, in whole blocks."""
        return block_tokens(self.max_seq_len, self.tokens_per_block) * self.max_beam_width


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes on the fullest rank.

    weights_bytes: tensors in the target precision with scales and padding, and rope_bytes of tables. activations: the
    execution context. logits_bytes: the runtime's buffer of them. kv_bytes_per_token: what one more token of one
    sequence costs while no window is full. sequence_bytes: the cache of one sequence of max_seq_len on every beam.
    kv_pool, kv_tokens, sequences (of max_seq_len): None where the memory of the machine isn't known; `high` is the
    optimistic end. A unit can't work where `sequences.high` is 0.
    """

    weights_bytes: int
    rope_bytes: int
    kv_bytes_per_token: int
    sequence_bytes: int
    activations: Range
    logits_bytes: int
    all_reduce_bytes: int
    overhead: Range
    gpu_bytes: int | None
    kv_pool: Range | None
    kv_tokens: Range | None
    sequences: Range | None
    needed_tokens: int

    @property
    def fixed_bytes(self) -> Range:
        """All that isn't the KV cache."""
        return self.activations + self.overhead + (self.weights_bytes + self.logits_bytes + self.all_reduce_bytes)


def memory(demand: Demand) -> MemoryEstimate:
    """The estimate of the fullest rank. The split must be a legal one."""
    spec, split, beams = demand.spec, demand.split, demand.max_beam_width
    tp, pp = split.tensor, split.pipeline
    rows = demand.max_batch_size * beams * demand.logit_rows
    rows += demand.max_num_tokens if demand.context_logits else 0
    logits = logits_bytes(spec, tp, rows, demand.logit_bytes)
    rope = rope_bytes(spec)
    tokens = block_tokens(demand.max_seq_len, demand.tokens_per_block)
    weights = weight_bytes(spec, demand.storage, split)
    per_token = stage_token_bytes(spec, demand.kv_bytes, tp, pp)
    sequence = stage_sequence_bytes(spec, tokens, demand.kv_bytes, demand.storage.dtype_bytes, tp, pp)
    last = pp - 1
    stage = max(range(pp), key=lambda one: weights[one] + beams * sequence[one] + logits * (one == last))
    if stage != last:
        rows = logits = 0
    context = activations(spec, split, demand.storage.dtype_bytes, demand.max_num_tokens, rows, demand.unfused_length)
    all_reduce, other = all_reduce_bytes(tp), overhead(split.ranks, logits)
    token_bytes, sequence_bytes = (
        _context_share(per_token[stage], split),
        _context_share(sequence[stage], split) * beams,
    )
    gpu_bytes, pool, kv_tokens, sequences = demand.gpu_bytes, None, None, None
    if gpu_bytes is not None:
        free = gpu_bytes - weights[stage] - rope - logits - all_reduce
        pool = Range(
            _pool(demand, free - context.high - other.high, token_bytes),
            _pool(demand, free - context.low - other.low, token_bytes),
        )
        kv_tokens = Range(_tokens(demand, pool.low, token_bytes), _tokens(demand, pool.high, token_bytes))
        sequences = Range(_sequences(pool.low, sequence_bytes), _sequences(pool.high, sequence_bytes))
    return MemoryEstimate(
        weights_bytes=weights[stage] + rope,
        rope_bytes=rope,
        kv_bytes_per_token=token_bytes,
        sequence_bytes=sequence_bytes,
        activations=context,
        logits_bytes=logits,
        all_reduce_bytes=all_reduce,
        overhead=other,
        gpu_bytes=gpu_bytes,
        kv_pool=pool,
        kv_tokens=kv_tokens,
        sequences=sequences,
        needed_tokens=demand.needed_tokens,
    )


def _context_share(count: int, split: Split) -> int:
    """Context-parallel ranks each hold the cache of their share of a sequence."""
    return -(-count // split.context)


def _pool(demand: Demand, free: int, token_bytes: int) -> int:
    pool = max(0, int(free * demand.fraction))
    if demand.max_kv_tokens is None:
        return pool
    return min(pool, block_tokens(demand.max_kv_tokens, demand.tokens_per_block) * token_bytes)


def _tokens(demand: Demand, pool: int, token_bytes: int) -> int:
    """0 for a model without any attention, which has no cache of tokens."""
    return whole_blocks(pool, demand.tokens_per_block, token_bytes) * demand.tokens_per_block if token_bytes else 0


def _sequences(pool: int, sequence_bytes: int) -> int:
    return pool // sequence_bytes if sequence_bytes else 0
