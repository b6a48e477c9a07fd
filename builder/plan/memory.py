"""Whether a unit fits its GPU: exact weights, exact KV cache per token.

Formulas: weights per rank are the bytes of the tensors of that rank's checkpoint; KV bytes per token and rank are
2 * layers of the rank * max(kv_heads / tp, 1) * head_dim * bytes of a value. What is left of the GPU's memory after
the weights, times `kv_cache_free_gpu_mem_fraction`, is the KV cache. Activations and the CUDA context come on top,
so this is the optimistic end: what doesn't fit here doesn't fit at all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from builder.model.layout import legal_tensor_parallel, rank_tensors
from builder.plan.unit import Unit

MIB = 1 << 20


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes on the fullest rank; `kv_tokens` is None where the memory of the machine isn't known."""

    weights_bytes: int
    kv_bytes_per_token: int
    gpu_bytes: int | None
    kv_tokens: int | None


def legal_estimate(unit: Unit) -> MemoryEstimate | None:
    """The estimate, or None for a split over GPUs that isn't legal."""
    tp, pp = unit.parallelism.tensor, unit.parallelism.pipeline
    if tp not in legal_tensor_parallel(unit.spec) or pp > unit.spec.num_hidden_layers:
        return None
    return estimate(unit)


def estimate(unit: Unit) -> MemoryEstimate:
    """Of the fullest rank. Raises PlanRefused for a split that isn't legal."""
    tp, pp = unit.parallelism.tensor, unit.parallelism.pipeline
    spec = replace(unit.spec, dtype=unit.precision.dtype)
    weights = max(sum(tensor.nbytes for tensor in rank_tensors(spec, tp, pp, rank)) for rank in range(tp * pp))
    kv_per_token = unit.spec.kv_bytes_per_token(unit.precision.bits // 8, tp, pp)
    if unit.gpu.memory_mib is None:
        return MemoryEstimate(weights, kv_per_token, None, None)
    gpu_bytes = unit.gpu.memory_mib * MIB
    free = max(gpu_bytes - weights, 0)
    kv_tokens = int(free * unit.serving.kv_cache_free_gpu_mem_fraction) // kv_per_token
    return MemoryEstimate(weights, kv_per_token, gpu_bytes, kv_tokens)
