"""The tables of published models, for every split that the rules allow: nothing is missing, nothing is there twice.

Of models whose layers are alike, a few layers stand for all: more of them say nothing new.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest

from builder.errors import SourceError
from builder.model.layout import (
    RankTensor,
    Slice,
    Split,
    checkpoint_bytes,
    not_covered,
    rank_tensors,
    source_tensors,
)
from builder.model.parallelism import legal_tensor_parallel
from builder.model.safetensors import DTYPE_BITS
from builder.model.spec import ModelSpec
from builder.model.weights import parameter_count, stored_bytes
from tests.unit.model.published import published_names, published_spec

STAGES = (1, 2, 3, 4, 8)


@cache
def covered() -> tuple[str, ...]:
    """The published models that our own converter converts."""
    found = []
    for name in published_names():
        try:
            if not_covered(published_spec(name)) is None:
                found.append(name)
        except SourceError:
            continue
    return tuple(found)


MODELS = covered()
MIXTURES = [name for name in MODELS if published_spec(name).experts]


def shortened(name: str, layers: int) -> ModelSpec:
    spec = published_spec(name)
    return replace(spec, num_hidden_layers=layers, layers=spec.layers[:layers])


def expected_bytes(spec: ModelSpec, split: Split) -> int:
    """What TensorRT-LLM's documentation makes of the sizes of a model: each term once, or on each tensor rank."""
    tp, hidden, size = split.tp, spec.hidden_size, spec.head_dim
    plain = DTYPE_BITS[spec.stored_dtype] // 8
    quantized = 1 if spec.quantization else plain
    query, key_value = spec.num_attention_heads * size, max(spec.num_key_value_heads, tp) * size
    padded = -(-spec.vocab_size // tp) * tp
    by_rows = spec.model_type.startswith("gemma") or (
        split.use_parallel_embedding and split.embedding_sharding_dim == 0
    )
    rows = padded if by_rows else spec.vocab_size * (1 if split.use_parallel_embedding else tp)
    total = plain * hidden * (rows + padded + tp)
    norms = 4 if spec.model_type in ("gemma2", "gemma3_text") else 2
    for layer in spec.layers:
        total += plain * tp * (norms * hidden + (2 * size if spec.qk_norm else 0))
        total += quantized * ((query + 2 * key_value) * hidden + hidden * query)
        if spec.attention_bias:
            total += plain * (query + 2 * key_value + (0 if spec.model_type == "qwen2" else hidden * tp))
        if layer.experts:
            total += quantized * 3 * layer.experts.count * layer.experts.intermediate_size * hidden
            total += 4 * tp * layer.experts.count * hidden
        elif layer.intermediate_size:
            total += quantized * 3 * layer.intermediate_size * hidden
        if spec.quantization:  # FP8: five linears with two scales each, and one of the KV cache
            total += 4 * tp * (5 * 2 + (spec.quantization.kv_cache is not None))
    return total


def copies(kind: str, index: int, spec: ModelSpec, split: Split) -> int:
    """On how many ranks of a stage the same part of a source tensor is."""
    if kind == "attention.qkv.weight" or kind == "attention.qkv.bias":
        return 1 if index == 0 else max(1, split.tp // spec.num_key_value_heads)
    if kind == "transformer.vocab_embedding.weight":
        return 1 if split.use_parallel_embedding or spec.model_type.startswith("gemma") else split.tp
    whole = ("norm.weight", "ln_f.weight", "router.weight", "dense.bias", "proj.bias", "_scaling_factor")
    return split.tp if kind.endswith(whole) else 1


def elements(tensor: RankTensor) -> int:
    parts = (math.prod(part.shape) // part.shape[part.dim] * (part.stop - part.start) for part in tensor.slices)
    return sum(parts) + tensor.padding_rows * math.prod(tensor.shape[1:])


def check(spec: ModelSpec, split: Split) -> None:
    """All ranks' tables together: sorted names, shapes that fit, and every source tensor in whole."""
    seen: dict[tuple[str, str], Counter[tuple[int, Slice]]] = defaultdict(Counter)
    total = 0
    for rank in range(split.files):
        table = rank_tensors(spec, split, rank)
        names = [tensor.name for tensor in table]
        assert names == sorted(set(names))
        for tensor in table:
            kind = tensor.name.split(".", 3)[3] if ".layers." in tensor.name else tensor.name
            total += tensor.nbytes
            if tensor.rule in ("copy", "plus_one", "rescaled"):
                assert elements(tensor) == math.prod(tensor.shape), tensor.name
            assert all(size > 0 for size in tensor.shape)
            for index, part in enumerate(tensor.slices):
                place = index if kind.startswith("attention.qkv") else 0
                seen[kind, part.source][place, part] += 1
    needed, optional = source_tensors(spec)
    assert not optional
    assert {source for _, source in seen} == needed.keys()
    for (kind, source), parts in seen.items():
        assert {part.shape for _, part in parts} == {needed[source].shape}
        for (index, _), count in parts.items():
            assert count == copies(kind, index, spec, split), (kind, source)
        if not needed[source].shape:
            continue
        ((dim, size),) = {(part.dim, part.shape[part.dim]) for _, part in parts}
        ends = sorted((part.start, part.stop) for _, part in parts if part.stop > part.start)
        assert (ends[0][0], ends[-1][1]) == (0, size), (kind, source, dim)
        assert all(one[1] == other[0] for one, other in pairwise(ends)), (kind, source)
    assert total == checkpoint_bytes(spec, split) == expected_bytes(spec, split)


@pytest.mark.parametrize("name", MODELS)
def test_every_tensor_parallel_size(name: str) -> None:
    spec = shortened(name, 1 if name in MIXTURES else 2)
    sizes = legal_tensor_parallel(spec)
    assert 1 in sizes
    assert len(sizes) > 1
    for tp in sizes:
        check(spec, Split(tp))


@pytest.mark.parametrize("name", [name for name in MODELS if published_spec(name).model_type != "phi3"])
def test_every_number_of_stages(name: str) -> None:
    """Nine layers aren't shared out evenly by 2, 4 and 8."""
    spec = shortened(name, 9)
    for tp in (1, legal_tensor_parallel(spec)[1]):
        for pp in STAGES:
            check(spec, Split(tp, pp))


@pytest.mark.parametrize("name", MODELS)
def test_split_embeddings(name: str) -> None:
    spec = shortened(name, 1)
    for tp in legal_tensor_parallel(spec)[:4]:
        check(spec, Split(tp, use_parallel_embedding=True))
        if spec.hidden_size % tp == 0:
            check(spec, Split(tp, use_parallel_embedding=True, embedding_sharding_dim=1))


@pytest.mark.parametrize("name", MIXTURES)
def test_every_split_of_the_experts(name: str) -> None:
    spec = shortened(name, 1)
    experts = spec.experts
    assert experts is not None
    splits = {
        Split(tp, 1, moe_ep=groups)
        for tp in (2, 4, 8, 16)
        for groups in (1, 2, 4, 8, 16)
        if tp % groups == 0
        and experts.count % groups == 0
        and tp in legal_tensor_parallel(spec, expert_parallel=groups)
    }
    assert len(splits) > 8
    for split in splits:
        check(spec, split)


@pytest.mark.parametrize("name", MODELS)
def test_a_whole_model_on_one_rank_is_all_of_its_parameters(name: str) -> None:
    """Tied models have their head beside the embedding, routers are float32; quantised weights keep their bytes."""
    spec = published_spec(name)
    needed, _ = source_tensors(spec)
    bits = DTYPE_BITS | {None: DTYPE_BITS[spec.stored_dtype], "float": 32}
    sizes = {name: math.prod(part.shape) * bits[part.dtype] // 8 for name, part in needed.items()}
    cache_scales = {name: size for name, size in sizes.items() if name.endswith((".k_scale", ".v_scale"))}
    stored = stored_bytes(spec)
    assert stored is not None
    assert sum(sizes.values()) - sum(cache_scales.values()) == stored
    assert len(cache_scales) == (2 * spec.num_hidden_layers if spec.quantization else 0)
    if spec.quantization is None:
        head = spec.vocab_size * spec.hidden_size if spec.tie_word_embeddings else 0
        width = DTYPE_BITS[spec.stored_dtype] // 8
        routers = sum(layer.experts.count * spec.hidden_size for layer in spec.layers if layer.experts)
        assert sum(math.prod(part.shape) for part in needed.values()) == parameter_count(spec)
        assert checkpoint_bytes(spec, Split()) == stored + head * width + routers * (4 - width)


@pytest.mark.parametrize("tp", [1, 2, 8, 16])
def test_ranks_are_equally_large(tp: int) -> None:
    """Llama-3.1-70B has no remainder anywhere: its ranks differ in nothing but what is in them."""
    spec = shortened("meta-llama--Llama-3.1-70B", 2)
    tables = [rank_tensors(spec, Split(tp), rank) for rank in range(tp)]
    assert len({tuple((tensor.name, tensor.shape, tensor.dtype) for tensor in table) for table in tables}) == 1


def test_stages_share_out_layers_as_torch_does() -> None:
    """126 layers of Llama-3.1-405B on eight stages: 16 for the first six, 15 for the others."""
    spec = published_spec("meta-llama--Llama-3.1-405B")
    counts = []
    for stage in range(8):
        table = rank_tensors(spec, Split(1, 8), stage)
        counts.append(len({tensor.name.split(".")[2] for tensor in table if ".layers." in tensor.name}))
    assert counts == [16] * 6 + [15] * 2
