"""Rules on the memory of the GPUs: weights, the KV cache of a sequence, that of a batch, and buffers of the runtime.

The estimate is a range. A unit is refused only where not even its optimistic end works; see `builder.plan.memory`.

One full sequence has to fit, or the engine doesn't start (KV_POOL_BELOW_MINIMUM). A full batch needn't: with in-flight
batching max_batch_size is a ceiling, requests are seldom as long as they may be, and what doesn't fit waits. So a large
ceiling alone is a warning (RUNTIME_BUFFERS), and KV_DOES_NOT_FIT is found where all of these hold:

    less than a quarter of the batch fits at max_seq_len: it is only ever full if requests take on average less than a
        quarter of what the recipe gives each of them
    fewer than 16 full sequences fit: with more the GPU is busy, and a ceiling that is never reached costs little
    the KV cache is smaller than the weights: memory is full of weights, so that twice the GPUs would hold about three
        times the sequences, or more

A quarter, 16 and that comparison are our judgement, not a limit of TensorRT-LLM; so it can be waived. Llama-2-70B in 16
bit on two GPUs of 80 GB with a batch of 50 x 8,192 tokens is found (NVIDIA/TensorRT-LLM issue 203: about 8 fit),
Llama-3.1-8B on one of them with 64 x 16,384 isn't (about 26 fit), and a batch of 8,192 for Llama-3-70B on eight of them
isn't (issue 2139). A batch of one that doesn't fit is no judgement: it is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from builder.model.parallelism import legal_tensor_parallel
from builder.model.spec import ModelSpec
from builder.model.weights import weights
from builder.plan.findings import Problem, rule
from builder.plan.memory import MemoryEstimate, Split, demand_of, kv_sequence_bytes, legal_estimate, proposals
from builder.plan.memory import memory as estimate_of
from builder.plan.memory.of_unit import is_legal, storage_of
from builder.plan.memory.weights import weight_bytes
from builder.plan.rules.alternatives import listed
from builder.plan.rules.conditions import GIB, gib
from builder.plan.unit import Unit

_SHARE_OF_BATCH = 0.25
_ENOUGH_SEQUENCES = 16
_UNUSUAL_RATIO = 10
_LOGITS_SHARE = 0.02
_DEFAULT_FRACTION = 0.9
_HIGHEST_FRACTION = 0.95
_DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@rule("WEIGHTS_DO_NOT_FIT", "refuse")
def weights_fit(unit: Unit) -> Iterator[Problem]:
    """The weights of each rank are smaller than the memory of its GPU."""
    memory = legal_estimate(unit)
    if memory is None or memory.gpu_bytes is None or memory.weights_bytes <= memory.gpu_bytes:
        return
    found = proposals(unit)
    ways = [f"parallelism.tensor: {found.tensor}"] if found.tensor else []
    ways += [f"precision.weights: {listed(found.precisions)}"] if found.precisions else []
    yield Problem(
        f"the weights take {gib(memory.weights_bytes)} on each rank ({memory.weights_bytes:,} bytes in "
        f"{unit.precision.name}), {unit.gpu.name} has {gib(memory.gpu_bytes)}",
        ("parallelism", "tensor"),
        f"use {', or '.join(ways)}" if ways else "use a GPU with more memory, or several",
        {
            "weight_bytes": memory.weights_bytes,
            "weight_gib": round((memory.weights_bytes - memory.rope_bytes) / GIB, 2),
            "gpu_gib": round(memory.gpu_bytes / GIB, 1),
            "int4_linear_only_bytes": int4_linear_only_bytes(unit.spec, _DTYPE_BYTES[unit.dtype]),
            "fitting_precisions": list(found.precisions),
            "fitting_tensor": found.tensor,
        },
    )


@lru_cache(maxsize=256)
def int4_linear_only_bytes(spec: ModelSpec, dtype_bytes: int) -> int:
    """The whole model with linear layers of half a byte per weight, everything else as it is; scales come on top."""
    found = weights(spec)
    linear = sum(weight.parameters for weight in found if weight.quantized)
    return linear // 2 + dtype_bytes * sum(weight.parameters for weight in found if not weight.quantized)


@rule("KV_POOL_BELOW_MINIMUM", "refuse")
def kv_cache_holds_one_sequence(unit: Unit) -> Iterator[Problem]:
    """The KV cache holds one sequence of max_seq_len on every beam: without that the engine doesn't start."""
    memory = legal_estimate(unit)
    if memory is None or unit.settings.limits.max_seq_len is None:
        return
    cap, beams = unit.settings.serving.max_tokens_in_paged_kv_cache, unit.settings.limits.max_beam_width
    if cap is not None and cap < unit.max_seq_len * beams:
        per_beam = f" on each of {beams} beams" if beams > 1 else ""
        yield Problem(
            f"max_tokens_in_paged_kv_cache {cap} is less than one sequence of max_seq_len "
            f"{unit.max_seq_len}{per_beam}: {memory.needed_tokens} tokens, {memory.sequence_bytes:,} bytes",
            ("serving", "max_tokens_in_paged_kv_cache"),
            f"use at least {memory.needed_tokens}, or a max_seq_len of at most {cap // beams}",
            _pool_values(memory) | {"pool_tokens": cap},
        )
        return
    if memory.kv_pool is None or memory.kv_tokens is None or not _too_small(memory):
        return
    pool, tokens = memory.kv_pool.high, memory.kv_tokens.high
    fraction = unit.settings.serving.kv_cache_free_gpu_mem_fraction
    needed = memory.sequence_bytes / (pool / fraction) if pool else 1.0
    found = proposals(unit)
    ways = []
    if needed <= _HIGHEST_FRACTION:
        ways.append(f"a kv_cache_free_gpu_mem_fraction above {needed:.2f}")
    if tokens >= beams:
        ways.append(f"a max_seq_len of at most {tokens // beams}")
    if found.tensor:
        ways.append(f"parallelism.tensor: {found.tensor}")
    yield Problem(
        f"the KV cache holds {tokens} tokens at best, less than the {memory.needed_tokens} tokens of one sequence "
        f"({memory.sequence_bytes:,} bytes): of {gib(memory.gpu_bytes or 0)} the weights take "
        f"{gib(memory.weights_bytes)}, and the cache gets {fraction:g} of what is left after activations and CUDA",
        ("serving", "kv_cache_free_gpu_mem_fraction") if needed <= _DEFAULT_FRACTION else ("limits", "max_seq_len"),
        f"use {', or '.join(ways)}" if ways else "use a GPU with more memory, or a smaller precision",
        _pool_values(memory) | {"pool_tokens": tokens, "fitting_tensor": found.tensor},
    )


def _too_small(memory: MemoryEstimate) -> bool:
    """Whether the weights fit and not one sequence beside them."""
    return (
        memory.sequences is not None
        and memory.sequences.high == 0
        and memory.sequence_bytes > 0
        and memory.weights_bytes <= (memory.gpu_bytes or 0)
    )


def _pool_values(memory: MemoryEstimate) -> dict[str, int]:
    return {
        "kv_bytes_per_token": memory.kv_bytes_per_token,
        "needed_tokens": memory.needed_tokens,
        "needed_bytes": memory.sequence_bytes,
    }


@rule("KV_DOES_NOT_FIT", "refuse-waivable")
def kv_cache_holds_enough_of_a_batch(unit: Unit) -> Iterator[Problem]:
    """A batch at max_seq_len fits to a fair part: a quarter, or 16 sequences, or a KV cache larger than the weights."""
    memory, batch = legal_estimate(unit), unit.settings.limits.max_batch_size
    if memory is None or memory.sequences is None or memory.kv_pool is None or memory.kv_tokens is None:
        return
    if not _out_of_reach(memory, batch) or unit.settings.limits.max_seq_len is None:
        return
    fit, pool, one = memory.sequences.high, memory.kv_pool.high, batch == 1
    beams = unit.limits.max_beam_width
    needed = kv_sequence_bytes(unit, unit.max_seq_len) * batch * beams
    whole = sum(weight_bytes(unit.spec, storage_of(unit), Split()))
    tensor, longest = _tensor_for_batch(unit), memory.kv_tokens.high // (batch * beams)
    ways = [f"max_batch_size: {fit}"] if fit else []
    ways += [f"max_seq_len: {longest}"] if longest else []
    ways += [f"parallelism.tensor: {tensor}"] if tensor else []
    ways += ["a smaller precision of weights or KV cache, or more GPUs"]
    yield Problem(
        f"the KV cache of max_batch_size {batch} x max_seq_len {unit.max_seq_len} tokens takes {gib(needed)} per rank, "
        f"and {gib(pool)} is left at best beside {gib(memory.weights_bytes)} of weights on {unit.gpu.name}: room for "
        f"{memory.kv_tokens.high} tokens, or {fit} full sequences",
        ("limits", "max_seq_len" if one else "max_batch_size"),
        "use " + ", or ".join(ways) + ("" if one else "; if requests are much shorter, waive KV_DOES_NOT_FIT"),
        {
            "weight_bytes": memory.weights_bytes - memory.rope_bytes,
            "weight_bytes_total": whole,
            "weight_gib": round((memory.weights_bytes - memory.rope_bytes) / GIB, 3),
            "weight_gib_rank": round((memory.weights_bytes - memory.rope_bytes) / GIB, 2),
            "kv_bytes_per_token": memory.kv_bytes_per_token,
            "kv_bytes_per_token_rank": memory.kv_bytes_per_token,
            "kv_needed_bytes": needed,
            "kv_gib_rank_full_batch": round(needed / GIB, 2),
            "kv_available_gib": round(pool / GIB, 2),
            "max_tokens": memory.kv_tokens.high,
            "max_batch_size": fit,
            "fitting_tensor": tensor,
        },
        "refuse" if one else None,
    )


def _out_of_reach(memory: MemoryEstimate, batch: int) -> bool:
    """Whether too little of a batch fits; False where not even a sequence does, unless it is the whole batch."""
    if memory.sequences is None or memory.kv_pool is None or memory.weights_bytes > (memory.gpu_bytes or 0):
        return False
    fit = memory.sequences.high
    if fit >= batch or not memory.sequence_bytes:
        return False
    if batch == 1:
        return True
    few = 0 < fit < _ENOUGH_SEQUENCES and fit < _SHARE_OF_BATCH * batch
    return few and memory.kv_pool.high < memory.weights_bytes


def _tensor_for_batch(unit: Unit) -> int | None:
    """The smallest larger tensor-parallel size at which the whole batch fits at max_seq_len, at best."""
    demand = demand_of(unit)
    for tensor in legal_tensor_parallel(unit.spec):
        split = replace(demand.split, tensor=tensor, moe_tensor=max(1, tensor // demand.split.moe_expert))
        if tensor > demand.split.tensor and is_legal(unit.spec, split):
            found = estimate_of(replace(demand, split=split)).sequences
            if found is not None and found.high >= demand.max_batch_size:
                return tensor
    return None


@rule("RUNTIME_BUFFERS", "warn")
def batch_limit_is_in_proportion(unit: Unit) -> Iterator[Problem]:
    """Logits and decoder buffers are there for max_batch_size, whether or not the KV cache ever holds such a batch."""
    memory, limits = legal_estimate(unit), unit.settings.limits
    if memory is None or memory.kv_pool is None or memory.gpu_bytes is None or not memory.kv_pool.high:
        return
    if limits.max_seq_len is None:
        return
    if _out_of_reach(memory, limits.max_batch_size):
        return
    demand, pool = memory.sequence_bytes * limits.max_batch_size, memory.kv_pool.high
    logits = limits.max_batch_size * limits.max_beam_width * _padded_vocabulary(unit) * 4
    if demand <= _UNUSUAL_RATIO * pool and logits <= _LOGITS_SHARE * memory.gpu_bytes:
        return
    fit = max(1, memory.sequences.high) if memory.sequences else 1
    yield Problem(
        f"max_batch_size {limits.max_batch_size} is far more than the GPU can use: its logits alone take {logits:,} "
        f"bytes in float32, and its KV cache at max_seq_len {unit.max_seq_len} {gib(demand)} per rank, "
        f"{demand / pool:.1f} times the {gib(pool)} there are at best; in-flight batching allows it, but the buffers "
        "of the runtime grow with it",
        ("limits", "max_batch_size"),
        f"full sequences: {fit} fit; choose max_batch_size and max_num_tokens for the traffic that you expect",
        {
            "fp32_logits_bytes_unsharded": logits,
            "kv_full_batch_bytes": demand,
            "kv_ratio": round(demand / pool, 1),
            "sequences": fit,
        },
    )


def _padded_vocabulary(unit: Unit) -> int:
    tensor = unit.parallelism.tensor
    return -(-unit.spec.vocab_size // tensor) * tensor
