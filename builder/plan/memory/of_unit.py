"""The memory of a unit: its demand as the recipe states it, with what TensorRT-LLM makes of the limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from builder.catalog import Precision
from builder.model.parallelism import check_parallelism, tensor_parallel_obstacles
from builder.model.spec import ModelSpec
from builder.model.stored import plain_bytes
from builder.model.weights import weights
from builder.plan.memory.estimate import Demand, MemoryEstimate, memory
from builder.plan.memory.kv import stage_sequence_bytes
from builder.plan.memory.weights import Split, Storage

if TYPE_CHECKING:
    from builder.plan.unit import Unit

_TOKENS_PER_BLOCK = 32
"""Default of trtllm-build since 1.0, and of kv_cache_config in the PyTorch flow."""

_LEAST_BITS = 4

_estimates: WeakKeyDictionary[Unit, MemoryEstimate | None] = WeakKeyDictionary()


def legal_estimate(unit: Unit) -> MemoryEstimate | None:
    """The estimate, or None for a split over GPUs that isn't legal. Computed once per unit."""
    if unit not in _estimates:
        _estimates[unit] = memory(demand_of(unit)) if is_legal(unit.spec, split_of(unit)) else None
    return _estimates[unit]


def estimate(unit: Unit) -> MemoryEstimate:
    """Of the fullest rank. Raises PlanRefused for a split that isn't legal."""
    found = legal_estimate(unit)
    if found is None:
        check_parallelism(unit.spec, unit.parallelism.tensor, unit.parallelism.pipeline)
        return memory(demand_of(unit))  # the experts' split isn't legal: a rule tells, sizes are rounded up
    return found


def kv_sequence_bytes(unit: Unit, tokens: int) -> int:
    """The cache of one sequence of so many tokens on the fullest rank, windows clamped, blocks not rounded up."""
    split, storage = split_of(unit), storage_of(unit)
    stages = stage_sequence_bytes(
        unit.spec, tokens, unit.kv_precision.bytes, storage.dtype_bytes, split.tensor, split.pipeline
    )
    return -(-max(stages) // split.context)


def demand_of(unit: Unit) -> Demand:
    """What a unit's engine has to hold."""
    limits, serving, options = unit.limits, unit.serving, unit.engine_options
    tokens_per_block = options.get("tokens_per_block")
    speculative = unit.settings.speculative
    return Demand(
        spec=unit.spec,
        storage=storage_of(unit),
        split=split_of(unit),
        kv_bytes=unit.kv_precision.bytes,
        max_batch_size=limits.max_batch_size,
        max_seq_len=unit.max_seq_len,
        max_num_tokens=effective_num_tokens(unit),
        max_beam_width=limits.max_beam_width,
        tokens_per_block=tokens_per_block if isinstance(tokens_per_block, int) else _TOKENS_PER_BLOCK,
        fraction=serving.kv_cache_free_gpu_mem_fraction,
        gpu_bytes=unit.gpu.memory_bytes,
        max_kv_tokens=serving.max_tokens_in_paged_kv_cache,
        logit_rows=1 + (speculative.max_draft_len if speculative else 0),
        logit_bytes=2 if options.get("logits_dtype") == "float16" else 4,
        context_logits=bool({"gather_context_logits", "gather_all_token_logits"} & _switched_on(options)),
        unfused_length=unit.max_input_len if options.get("context_fmha") == "disable" else 0,
    )


def effective_num_tokens(unit: Unit) -> int:
    """max_num_tokens as trtllm-build makes it: at most max_batch_size · max_seq_len, and that with padded inputs."""
    product = unit.limits.max_batch_size * unit.max_seq_len
    if unit.engine_options.get("remove_input_padding") == "disable":
        return product
    return min(unit.limits.max_num_tokens, product)


def storage_of(unit: Unit) -> Storage:
    """Engines keep an embedding whole on every rank, and the head of a tied model a second time; ModelOpt's exports and
    the PyTorch flow split the embedding. The sizes of Llama-2-70B in FP8 on two ranks show it: 64.78 GiB with the rope
    table are 64.73 GiB of tensors with a split embedding, and 65.22 with a whole one (TensorRT-LLM
    examples/sample_weight_stripping/README.md@03dad628)."""
    engine = unit.flow == "engine"
    return Storage(
        precision=_mixed(unit) if unit.precision.scheme == "mixed" else unit.precision,
        dtype=unit.dtype,
        group_size=unit.group_size,
        quantized_head=unit.settings.precision.quantize_lm_head,
        parallel_embedding=not engine or unit.precision.calibrated or unit.parallelism.use_parallel_embedding,
        tied_head_stored=engine,
        router_float32=engine,
    )


def _mixed(unit: Unit) -> Precision:
    """Linears of several formats count with their mean: what the headers of the files leave after everything else.
    Without headers 4 bits count, the least, so that nothing is refused that may fit."""
    bits = _LEAST_BITS
    if unit.lock.tensors is not None:
        linears = sum(weight.parameters for weight in weights(unit.spec) if weight.quantized)
        plain = sum(
            plain_bytes(unit.spec, weight) * weight.total for weight in weights(unit.spec) if not weight.quantized
        )
        bits = max(bits, (unit.lock.tensors.bytes - plain) * 8 // max(1, linears))
    return replace(unit.precision, bits=min(bits, unit.precision.bits))


def split_of(unit: Unit) -> Split:
    parallelism = unit.parallelism
    return Split(parallelism.tensor, parallelism.pipeline, parallelism.context, unit.moe_tensor, unit.moe_expert)


@lru_cache(maxsize=4096)
def is_legal(spec: ModelSpec, split: Split) -> bool:
    """Whether heads, widths, layers and experts can be split so."""
    moe_tensor = None
    if spec.experts is not None:
        moe_tensor = split.moe_tensor
        if moe_tensor * split.moe_expert != split.tensor or spec.experts.count % split.moe_expert:
            return False
    return split.pipeline <= spec.num_hidden_layers and not tensor_parallel_obstacles(
        spec, split.tensor, moe_tensor=moe_tensor
    )


def _switched_on(options: Mapping[str, object]) -> set[str]:
    return {name for name, value in options.items() if value in ("enable", True)}
