"""Into how many tensor-parallel ranks and pipeline stages a model can be split, and what stands in the way.

Rules: tensorrt_llm/layers/attention.py and mlp.py in NVIDIA/TensorRT-LLM (heads, KV heads and widths are divided by tp;
KV heads may be repeated instead), tensorrt_llm/mapping.py for experts (moe_tp · moe_ep = tp). The vocabulary doesn't
matter, it is padded.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from builder.errors import PlanRefused
from builder.model.spec import Attention, Experts, Layer, ModelSpec, Recurrent


@lru_cache(maxsize=1024)
def legal_tensor_parallel(
    spec: ModelSpec, *, group_size: int | None = None, expert_parallel: int | None = None
) -> tuple[int, ...]:
    """The tensor-parallel sizes that split this model evenly, smallest first, up to the number of heads.

    `group_size`: of a precision that shares scales among so many neighbouring weights, whose groups mustn't be cut.
    `expert_parallel`: as many of the ranks share out whole experts instead of cutting each; None: none of them do.
    """
    most = max((layer.attention.heads for layer in spec.layers if layer.attention), default=1)
    return tuple(
        tp
        for tp in range(1, most + 1)
        if (expert_parallel is None or tp % expert_parallel == 0)
        and not tensor_parallel_obstacles(
            spec, tp, group_size=group_size, moe_tensor=None if expert_parallel is None else tp // expert_parallel
        )
    )


@lru_cache(maxsize=1 << 14)
def tensor_parallel_obstacles(
    spec: ModelSpec, tp: int, *, group_size: int | None = None, moe_tensor: int | None = None
) -> tuple[str, ...]:
    """Why the model can't be split into `tp` ranks, one sentence per number that doesn't divide; empty if it can.

    `moe_tensor`: into how many parts each expert is cut, where that isn't `tp`.
    """
    if tp < 1:
        return (f"tensor parallelism {tp} is below 1",)
    found: dict[str, None] = {}
    for layer in dict.fromkeys(spec.layers):
        found |= dict.fromkeys(_of_layer(layer, tp, moe_tensor or tp, group_size))
    return tuple(found)


def check_parallelism(
    spec: ModelSpec, tp: int, pp: int, moe_tensor: int | None = None, group_size: int | None = None
) -> None:
    """PlanRefused if the model can't be split into `tp` tensor ranks and `pp` pipeline stages."""
    if obstacles := tensor_parallel_obstacles(spec, tp, group_size=group_size, moe_tensor=moe_tensor):
        legal = legal_tensor_parallel(spec, group_size=group_size)
        raise PlanRefused(
            f"the model can't be split into {tp} tensor-parallel ranks",
            why="; ".join(obstacles),
            hint=f"use a tensor-parallel size of {', '.join(map(str, legal))}",
            code="TP_HEADS",
        )
    if not 1 <= pp <= spec.num_hidden_layers:
        raise PlanRefused(
            f"the model can't be split into {pp} pipeline stages",
            why=f"it has {spec.num_hidden_layers} layers, and every stage needs one",
            code="PP_LAYERS",
        )


def _of_layer(layer: Layer, tp: int, moe_tensor: int, group_size: int | None) -> Iterator[str]:
    if layer.attention is not None:
        yield from _of_attention(layer.attention, tp, group_size)
    if layer.intermediate_size is not None:
        yield from _of_width("intermediate_size", layer.intermediate_size, tp, group_size)
    if layer.experts is not None:
        yield from _of_experts(layer.experts, tp, moe_tensor, group_size)
    if layer.recurrent is not None:
        yield from _of_recurrent(layer.recurrent, tp)


def _of_attention(attention: Attention, tp: int, group_size: int | None) -> Iterator[str]:
    heads, kv_heads = attention.heads, attention.kv_heads
    if heads % tp:
        yield f"num_attention_heads {heads} is not a multiple of {tp}"
        return
    if attention.mla is None and kv_heads % tp and tp % kv_heads:
        yield f"num_key_value_heads {kv_heads} is neither a multiple nor a divisor of {tp}"
    head_dim = attention.head_dim if attention.mla is None else attention.mla.v_head_dim
    yield from _of_width("num_attention_heads * head_dim", heads * head_dim, tp, group_size)


def _of_width(name: str, width: int, parts: int, group_size: int | None) -> Iterator[str]:
    if width % parts:
        yield f"{name} {width} is not a multiple of {parts}"
    elif group_size is not None and parts > 1 and width // parts % group_size:
        yield f"{name} {width} / {parts} = {width // parts} is not a multiple of the group size {group_size}"


def _of_experts(experts: Experts, tp: int, moe_tensor: int, group_size: int | None) -> Iterator[str]:
    yield from _of_width("the width of an expert,", experts.intermediate_size, moe_tensor, group_size)
    if experts.shared_intermediate_size:
        yield from _of_width("the width of the shared experts,", experts.shared_intermediate_size, tp, group_size)


def _of_recurrent(recurrent: Recurrent, tp: int) -> Iterator[str]:
    for name, number in (("heads", recurrent.heads), ("groups", recurrent.groups)):
        if number % tp:
            yield f"the {number} {name} of its {recurrent.kind} layers are not a multiple of {tp}"
