"""The rules: what is known to fail, or to be rewritten silently, decided before anything is built.

One small function each. A rule yields the findings of one unit; `refuse` stops the unit, `warn` doesn't.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from builder.model.layout import legal_tensor_parallel
from builder.plan.memory import legal_estimate
from builder.plan.unit import Unit

Severity = Literal["refuse", "warn"]


@dataclass(frozen=True)
class Finding:
    code: str
    severity: Severity
    unit: str
    message: str
    where: str
    suggestion: str
    values: Mapping[str, Any] = field(default_factory=dict)


Rule = Callable[[Unit], Iterator[Finding]]

RULES: list[Rule] = []


def rule(function: Rule) -> Rule:
    RULES.append(function)
    return function


def check(unit: Unit) -> list[Finding]:
    """Every finding of every rule for one unit."""
    return [finding for apply in RULES for finding in apply(unit)]


def _finding(
    unit: Unit, code: str, severity: Severity, message: str, *path: str, suggestion: str, **values: Any
) -> Finding:
    place = unit.recipe.place(*path, target=unit.target)
    return Finding(code, severity, unit.id, message, str(place), suggestion, values)


@rule
def tensor_parallel_divides_the_heads(unit: Unit) -> Iterator[Finding]:
    """tp divides the query heads and the MLP, and divides the KV heads or is a multiple of them."""
    tp, spec = unit.parallelism.tensor, unit.spec
    legal = legal_tensor_parallel(spec)
    if tp in legal:
        return
    reasons = []
    if spec.num_attention_heads % tp:
        reasons.append(f"num_attention_heads is {spec.num_attention_heads}")
    if spec.num_key_value_heads % tp and tp % spec.num_key_value_heads:
        reasons.append(f"num_key_value_heads is {spec.num_key_value_heads}")
    if spec.intermediate_size % tp:
        reasons.append(f"intermediate_size is {spec.intermediate_size}")
    yield _finding(
        unit,
        "TP_HEADS",
        "refuse",
        f"the model can't be split over {tp} GPUs: {', '.join(reasons)}",
        "parallelism",
        "tensor",
        suggestion=f"use a tensor parallel size of {', '.join(map(str, legal))}",
        valid_tp=list(legal),
    )


@rule
def pipeline_has_a_layer_for_each_stage(unit: Unit) -> Iterator[Finding]:
    layers = unit.spec.num_hidden_layers
    if unit.parallelism.pipeline > layers:
        yield _finding(
            unit,
            "PP_LAYERS",
            "refuse",
            f"{layers} layers can't be split over {unit.parallelism.pipeline} pipeline stages",
            "parallelism",
            "pipeline",
            suggestion=f"use at most {layers}",
            max_pipeline=layers,
        )


@rule
def toolchain_runs_the_precision_on_the_gpu(unit: Unit) -> Iterator[Finding]:
    """A weight precision runs on a set of compute capabilities, listed per toolchain."""
    if unit.toolchain.runs(unit.precision.name, unit.gpu):
        return
    legal = [name for name in unit.toolchain.precisions if unit.toolchain.runs(name, unit.gpu)]
    capability = f" (compute capability {unit.gpu.compute_capability})" if unit.gpu.compute_capability else ""
    yield _finding(
        unit,
        "PRECISION_UNSUPPORTED",
        "refuse",
        f"{unit.toolchain.name} doesn't run {unit.precision.name} on {unit.gpu.name}{capability}",
        "precision",
        "weights",
        suggestion=f"use one of: {', '.join(legal)}" if legal else "use another toolchain or SKU",
        valid_precisions=legal,
    )


@rule
def toolchain_is_made_for_the_sku(unit: Unit) -> Iterator[Finding]:
    if unit.toolchain.skus and unit.gpu.name not in unit.toolchain.skus:
        yield _finding(
            unit,
            "TOOLCHAIN_SKU",
            "refuse",
            f"the toolchain {unit.toolchain.name!r} is for {', '.join(unit.toolchain.skus)} only",
            "toolchain",
            suggestion="name a TensorRT-LLM release, such as toolchain: trtllm-1.2.1",
        )


@rule
def toolchain_knows_the_architecture(unit: Unit) -> Iterator[Finding]:
    if unit.spec.architecture not in unit.toolchain.architectures:
        yield _finding(
            unit,
            "ARCHITECTURE_UNSUPPORTED",
            "refuse",
            f"{unit.toolchain.name} doesn't compile {unit.spec.architecture}",
            "model",
            "source",
            suggestion=f"it compiles: {', '.join(unit.toolchain.architectures)}",
        )


@rule
def values_are_rounded(unit: Unit) -> Iterator[Finding]:
    """The recipe may ask for another number format than the source has; bits are lost, or memory is."""
    if unit.precision.dtype != unit.spec.dtype:
        yield _finding(
            unit,
            "FP32_SOURCE" if unit.spec.dtype == "float32" else "DTYPE_CHANGE",
            "warn",
            f"the weights are stored as {unit.spec.dtype} and will be rounded to {unit.precision.dtype}",
            "precision",
            "weights",
            suggestion=f"keep the precision of the source ({unit.spec.dtype}) unless this is meant",
            source=unit.spec.dtype,
        )


@rule
def answers_can_end(unit: Unit) -> Iterator[Finding]:
    if not unit.spec.eos_token_ids:
        yield _finding(
            unit,
            "NO_END_TOKEN",
            "refuse",
            "neither config.json nor generation_config.json names an eos_token_id: answers would never end",
            "model",
            "source",
            suggestion="add eos_token_id to the model's config.json",
        )


@rule
def sequence_fits_the_model(unit: Unit) -> Iterator[Finding]:
    """Beyond max_position_embeddings (times a rope factor) TensorRT-LLM only warns, and answers get worse."""
    legal = unit.spec.max_position_embeddings
    scaling = unit.spec.rope_scaling
    if scaling and scaling["type"] == "linear":  # llama3's factor is in max_position_embeddings already
        legal = int(legal * scaling["factor"])
    if unit.limits.max_seq_len > legal:
        yield _finding(
            unit,
            "SEQ_LEN_GT_MODEL",
            "refuse",
            f"max_seq_len {unit.limits.max_seq_len} is more than the {legal} positions that the model was made for",
            "limits",
            "max_seq_len",
            suggestion=f"use at most {legal}",
            max_legal=legal,
        )


@rule
def prompt_leaves_room_for_an_answer(unit: Unit) -> Iterator[Finding]:
    if unit.max_input_len >= unit.limits.max_seq_len:
        yield _finding(
            unit,
            "INPUT_GT_SEQ_LEN",
            "refuse",
            f"max_input_len {unit.max_input_len} fills max_seq_len {unit.limits.max_seq_len}: no token for an answer",
            "limits",
            "max_input_len",
            suggestion=f"use at most {unit.limits.max_seq_len - 1}",
        )


@rule
def one_pass_holds_a_token_of_each_request(unit: Unit) -> Iterator[Finding]:
    if unit.limits.max_num_tokens < unit.limits.max_batch_size:
        yield _finding(
            unit,
            "NUM_TOKENS_LT_BATCH",
            "refuse",
            f"max_num_tokens {unit.limits.max_num_tokens} is less than max_batch_size {unit.limits.max_batch_size}",
            "limits",
            "max_num_tokens",
            suggestion=f"use at least {unit.limits.max_batch_size}",
        )


@rule
def num_tokens_are_used(unit: Unit) -> Iterator[Finding]:
    """TensorRT-LLM clips max_num_tokens to max_seq_len * max_batch_size without a word."""
    product = unit.limits.max_seq_len * unit.limits.max_batch_size
    if unit.limits.max_num_tokens > product:
        yield _finding(
            unit,
            "NUM_TOKENS_CLIPPED",
            "warn",
            f"max_num_tokens {unit.limits.max_num_tokens} will become {product} (max_seq_len * max_batch_size)",
            "limits",
            "max_num_tokens",
            suggestion=f"write {product}",
            becomes=product,
        )


@rule
def weights_fit(unit: Unit) -> Iterator[Finding]:
    memory = legal_estimate(unit)
    if memory and memory.gpu_bytes is not None and memory.weights_bytes > memory.gpu_bytes:
        yield _finding(
            unit,
            "WEIGHTS_DO_NOT_FIT",
            "refuse",
            f"the weights take {memory.weights_bytes:,} bytes on each rank, {unit.gpu.name} has {memory.gpu_bytes:,}",
            "parallelism",
            "tensor",
            suggestion="split the model over more GPUs or use a smaller precision",
        )


@rule
def kv_cache_holds_one_sequence(unit: Unit) -> Iterator[Finding]:
    memory = legal_estimate(unit)
    if memory is None or memory.kv_tokens is None or memory.gpu_bytes is None:
        return
    if memory.weights_bytes <= memory.gpu_bytes and memory.kv_tokens < unit.limits.max_seq_len:
        yield _finding(
            unit,
            "KV_POOL_BELOW_MINIMUM",
            "refuse",
            f"the KV cache holds {memory.kv_tokens} tokens, less than one sequence of {unit.limits.max_seq_len}",
            "limits",
            "max_seq_len",
            suggestion=f"use max_seq_len {memory.kv_tokens} or less, or split the model over more GPUs",
            kv_tokens=memory.kv_tokens,
        )


@rule
def base_image_is_pinned(unit: Unit) -> Iterator[Finding]:
    """What couldn't be reached when locking can be planned with, not built with."""
    for item in unit.lock.unresolved:
        if item.name == unit.package.base:
            yield _finding(
                unit,
                "UNRESOLVED",
                "warn",
                f"the base image {item.name} isn't pinned: {item.reason}",
                "package",
                "base",
                suggestion="make it reachable, then run `engine-builder lock`",
            )
