"""Rules on splitting a model over GPUs: heads, layers, ranks. What a release refuses hours later in a splitter."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

from builder.model.parallelism import tensor_parallel_obstacles
from builder.model.spec import Layer, ModelSpec, stage_layers
from builder.plan.findings import Problem, rule
from builder.plan.rules.alternatives import listed
from builder.plan.unit import Unit

_TENSOR = ("parallelism", "tensor")
_GIB = 1 << 30


@lru_cache(maxsize=4096)
def distinct_layers(spec: ModelSpec) -> tuple[Layer, ...]:
    return tuple(dict.fromkeys(spec.layers))


@lru_cache(maxsize=4096)
def tensor_parallel_by_heads(spec: ModelSpec) -> tuple[int, ...]:
    """The sizes that divide the query heads, and divide the KV heads or are a multiple of them, smallest first.

    A latent cache is whole on every rank, so its KV heads don't count.
    """
    heads, kv_heads = set(), set()
    for layer in distinct_layers(spec):
        if layer.attention:
            heads.add(layer.attention.heads)
            if layer.attention.mla is None:
                kv_heads.add(layer.attention.kv_heads)
        if layer.recurrent:
            heads.add(layer.recurrent.heads)
    common = math.gcd(*heads) if heads else spec.num_attention_heads
    return tuple(tp for tp in divisors(common) if all(kv % tp == 0 or tp % kv == 0 for kv in kv_heads))


@lru_cache(maxsize=4096)
def legal_tensor_parallel(spec: ModelSpec) -> tuple[int, ...]:
    """Those of `tensor_parallel_by_heads` under which all but the experts divides evenly: they have more ways."""
    return tuple(tp for tp in tensor_parallel_by_heads(spec) if not tensor_parallel_obstacles(spec, tp, moe_tensor=1))


def divisors(number: int) -> list[int]:
    """All divisors, smallest first."""
    small = [factor for factor in range(1, math.isqrt(number) + 1) if number % factor == 0]
    return sorted({*small, *(number // factor for factor in small)})


@rule("TP_HEADS", "refuse")
def tensor_parallel_divides_the_heads(unit: Unit) -> Iterator[Problem]:
    """tp divides the query heads and the MLP, and divides the KV heads or is a multiple of them."""
    tp, spec = unit.parallelism.tensor, unit.spec
    if tp == 1 or tp in (legal := legal_tensor_parallel(spec)) or _attention_is_whole(unit):
        return
    yield Problem(
        f"the model can't be split over {tp} GPUs: {'; '.join(tensor_parallel_obstacles(spec, tp, moe_tensor=1))}",
        _TENSOR,
        f"use a tensor parallel size of {listed(legal)}{_rest_in_stages(unit, legal)}",
        {
            "valid_tp": list(legal),
            "valid_by_heads_and_kv_only": list(tensor_parallel_by_heads(spec)),
        },
    )


def _rest_in_stages(unit: Unit, legal: tuple[int, ...]) -> str:
    """How the GPUs that were asked for can be used all the same: pipeline stages, or further replicas."""
    asked = unit.parallelism.tensor
    best = max((tp for tp in legal if asked % tp == 0 and tp < asked), default=1)
    stages = unit.parallelism.pipeline * asked // best
    layers = unit.spec.num_hidden_layers
    if not 1 < stages <= layers:
        return ""
    shares = [len(stage_layers(layers, stages, stage)) for stage in range(stages)]
    split = " + ".join(map(str, shares)) if stages <= 8 else f"{shares[0]} or {shares[-1]} each"
    gpus = asked * unit.parallelism.pipeline
    return f"; for {gpus} GPUs tensor: {best} with pipeline: {stages} ({split} layers), or replicas"


def _attention_is_whole(unit: Unit) -> bool:
    """Attention data parallelism of the PyTorch flow: every rank has all heads, for requests of its own."""
    return unit.settings.llm_args.get("enable_attention_dp") is True


@lru_cache(maxsize=4096)
def _fewest_kv_heads(spec: ModelSpec) -> int | None:
    """Of any layer that splits its cache along heads, which a latent cache isn't."""
    attentions = [layer.attention for layer in distinct_layers(spec) if layer.attention]
    return min((attention.kv_heads for attention in attentions if attention.mla is None), default=None)


@rule("KV_HEADS_REPLICATED", "warn")
def kv_heads_are_not_replicated(unit: Unit) -> Iterator[Problem]:
    """With fewer KV heads than ranks each head is held by several ranks, and so is its cache."""
    tp, spec = unit.parallelism.tensor, unit.spec
    if tp == 1 or (fewest := _fewest_kv_heads(spec)) is None or tp <= fewest:
        return
    if tp not in legal_tensor_parallel(spec) or _attention_is_whole(unit):
        return
    size = unit.kv_precision.bytes
    rank, whole = spec.kv_bytes_per_token(size, tp), spec.kv_bytes_per_token(size, 1)
    yield Problem(
        f"{fewest} KV heads on {tp} ranks: each is replicated on {tp // fewest}, weights, biases and cache; a token "
        f"costs {rank:,} bytes on each rank and {rank * tp:,} together, not {whole:,}",
        _TENSOR,
        f"tensor: {fewest} keeps one copy of the cache; more ranks still share the other weights",
        {
            "kv_dup": tp // fewest,
            "kv_bytes_per_token_rank": rank,
            "kv_bytes_per_token_tp1": whole,
        },
    )


@rule("VOCAB_PADDED", "warn")
def vocabulary_divides_evenly(unit: Unit) -> Iterator[Problem]:
    """The rows of the output head are filled up with zeros to a multiple of tp; their logits are cut off."""
    tp, vocabulary = unit.parallelism.tensor, unit.spec.vocab_size
    if vocabulary % tp:
        rows = -(-vocabulary // tp)
        yield Problem(
            f"the vocabulary of {vocabulary} will become {rows * tp} in the output head: {rows} rows on each of "
            f"{tp} ranks",
            _TENSOR,
            "nothing needs to be done: logits of the added rows are never returned",
            {"padded": rows * tp, "rows_per_rank": rows},
        )


@rule("PP_LAYERS", "refuse")
def pipeline_has_a_layer_for_each_stage(unit: Unit) -> Iterator[Problem]:
    """Every pipeline stage holds at least one layer."""
    stages, layers = unit.parallelism.pipeline, unit.spec.num_hidden_layers
    if stages > layers:
        yield Problem(
            f"{layers} layers can't be split over {stages} pipeline stages",
            ("parallelism", "pipeline"),
            f"use at most {layers}",
            {"max_pipeline": layers},
        )


@rule("CP_HEADS", "refuse")
def context_parallel_divides_the_heads(unit: Unit) -> Iterator[Problem]:
    """In the engine flow attention is split over tensor and context ranks together (Ulysses): both divide the heads.

    Source: TensorRT-LLM tensorrt_llm/mapping.py@05ebebb2: attn_tp_size = tp_size * cp_size, attn_cp_size must be 1.
    """
    split = unit.parallelism
    if split.context == 1 or unit.flow != "engine":
        return
    together = split.tensor * split.context
    heads = tensor_parallel_by_heads(unit.spec)
    if together not in heads:
        yield Problem(
            f"attention can't be split over tensor {split.tensor} times context {split.context} = {together} ranks: "
            f"num_attention_heads is {unit.spec.num_attention_heads}",
            ("parallelism", "context"),
            f"use sizes whose product is {listed(heads)}",
            {"valid_products": list(heads)},
        )


@rule("CONTEXT_PARALLEL", "refuse-waivable")
def context_parallel_is_known_to_work(unit: Unit) -> Iterator[Problem]:
    """Context parallelism of engines: converters have the option, and no source shows such an engine being served."""
    if unit.parallelism.context > 1 and unit.flow == "engine":
        yield Problem(
            f"no source shows an engine with context parallelism ({unit.parallelism.context}) being served",
            ("parallelism", "context"),
            "use tensor and pipeline parallelism; or waive CONTEXT_PARALLEL with the reason if you have seen it work",
        )


@rule("NOT_ENOUGH_GPUS", "refuse")
def node_has_a_gpu_for_each_rank(unit: Unit) -> Iterator[Problem]:
    """World size = tensor * pipeline * context; each rank needs a GPU of its own."""
    ranks = unit.ranks
    if ranks == 1 or unit.gpu.is_cpu or unit.gpu.mig is not None:  # slices have a finding of their own
        return
    stated = unit.recipe.content.targets[unit.target].gpus
    available = stated or unit.gpu.gpus_per_node
    if available is None or ranks <= available:
        return
    split = unit.parallelism
    factors = f"tensor {split.tensor} * pipeline {split.pipeline} * context {split.context}"
    yield Problem(
        f"the model is split over {ranks} ranks ({factors}), the node has {available} GPUs"
        + ("" if stated else f", as servers with {unit.gpu.name} have at most"),
        ("gpus",) if stated else _TENSOR,
        f"use sizes whose product is at most {available}" + ("" if stated else ", or say `gpus` in the target"),
        {"world_size": ranks, "gpus": available},
    )


@rule("MIG_RANKS", "refuse")
def ranks_are_whole_gpus(unit: Unit) -> Iterator[Problem]:
    """MIG slices can't talk to each other: neither NVLink nor PCIe peer access, and a process sees one slice only.

    Source: NVIDIA Multi-Instance GPU user guide, application considerations.
    """
    if unit.ranks > 1 and unit.gpu.mig is not None:
        yield Problem(
            f"{unit.ranks} ranks can't be MIG slices ({unit.gpu.name}): slices have no peer access, and NCCL needs it",
            _TENSOR,
            f"use a larger slice, or {unit.gpu.parent or 'the whole GPU'}",
        )


@rule("NO_NVLINK", "warn")
def ranks_are_joined_by_nvlink(unit: Unit) -> Iterator[Problem]:
    """Tensor ranks exchange activations twice in every layer; without NVLink that goes over PCIe."""
    tp, gpu = unit.parallelism.tensor, unit.gpu
    if tp == 1 or gpu.is_cpu or gpu.mig is not None or gpu.nvlink_gb_s:
        return
    spec = unit.spec
    size = 2 if unit.dtype != "float32" else 4
    # A ring all-reduce sends 2 (n - 1) / n of a tensor from each rank: attention and MLP of every layer.
    sent = 4 * (tp - 1) * spec.hidden_size * size * spec.num_hidden_layers // tp
    yield Problem(
        f"{gpu.name} has no NVLink, as far as known: of every token each of {tp} ranks sends {sent:,} bytes over PCIe, "
        f"{sent * unit.limits.max_num_tokens / _GIB:.1f} GiB for a pass of max_num_tokens",
        _TENSOR,
        "where the model fits, replicas of fewer ranks answer more requests; pipeline parallelism sends less",
        {"bytes_per_token": sent},
    )
