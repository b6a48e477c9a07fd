"""ReferenceModel: the ranks of a checkpoint or engine, computed apart and joined where TensorRT-LLM joins them.

    tokens → vocab_embedding → stage 0 ─→ stage 1 … ─→ ln_f → lm_head of every rank, side by side → logits
                               │
                               └ layer: x += Σ over ranks of dense(attention(qkv(norm(x)))) + bias
                                        x += Σ over ranks of proj(swiglu(fc and gate(norm(x)))) + bias

Every tensor rank has its own heads, KV cache and slice of the MLP; the sums stand for the all-reduces. What all ranks
hold alike (norms, embedding, the biases after the sums) must be equal on all of them, and is kept once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from builder.reference.cache import KVCache
from builder.reference.config import Config, Limits
from builder.reference.errors import ReferenceModelError
from builder.reference.folder import ModelFolder
from builder.reference.layers import RotaryAngles, causal_attention, inverse_frequencies, rms_norm, swiglu
from builder.reference.layout import EMBEDDING, FINAL_NORM, HEAD, layer_prefix
from builder.reference.linear import Linear
from builder.reference.weights import Float32, RankWeights

_CHUNK_ROWS = 256
_CHUNK_SCORE_BYTES = 64 << 20


@dataclass(frozen=True)
class _Shard:
    """What one rank holds of a layer; `fc_gate` is both halves of the gated MLP in one product."""

    qkv: Linear
    dense: Linear
    fc_gate: Linear
    proj: Linear


@dataclass(frozen=True)
class _Layer:
    input_norm: Float32
    post_norm: Float32
    dense_bias: Float32 | None
    proj_bias: Float32 | None
    shards: tuple[_Shard, ...]


@dataclass(frozen=True)
class _Batch:
    """Rows of several sequences packed behind each other: each cache takes part with the rows of its slice."""

    spans: tuple[tuple[KVCache, slice], ...]
    angles: RotaryAngles


class ReferenceModel:
    """Immutable after `load`; several threads may compute at once, each on caches of its own."""

    def __init__(
        self,
        config: Config,
        limits: Limits | None,
        embedding: Float32,
        stages: tuple[tuple[_Layer, ...], ...],
        final_norm: Float32,
        heads: tuple[Linear, ...],
    ) -> None:
        self.config = config
        self.limits = limits
        self._embedding = embedding
        self._stages = stages
        self._final_norm = final_norm
        self._heads = heads
        self._frequencies = inverse_frequencies(config)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read a checkpoint or a reference engine; weights are widened to float32 once.

        ReferenceModelError for whatever is missing, malformed or not implemented. `limits` is None for a checkpoint.
        """
        opened = ModelFolder.open(folder)
        config = opened.config
        weights = [RankWeights(file) for file in opened.ranks]
        stage_ranks = [weights[first : first + config.tp_size] for first in range(0, config.world_size, config.tp_size)]
        return cls(
            config,
            opened.limits,
            _replicated(stage_ranks[0], EMBEDDING),
            tuple(
                tuple(_load_layer(config, ranks, layer) for layer in range(config.stage_layers(stage)))
                for stage, ranks in enumerate(stage_ranks)
            ),
            _replicated(stage_ranks[-1], FINAL_NORM),
            tuple(Linear(rank.float32(HEAD if HEAD in rank else EMBEDDING)) for rank in stage_ranks[-1]),
        )

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    def new_cache(self, capacity: int) -> KVCache:
        """An empty cache for a sequence of up to `capacity` tokens, prompt included."""
        if self.limits is not None and capacity > self.limits.max_seq_len:
            raise ReferenceModelError(f"a sequence of {capacity} tokens exceeds max_seq_len {self.limits.max_seq_len}")
        return KVCache(self.config, capacity)

    def prefill(self, tokens: npt.ArrayLike, cache: KVCache, *, all_positions: bool = False) -> Float32:
        """Append `tokens` (1-D) to the sequence of `cache`; logits (vocab_size,) after the last of them.

        With `all_positions`, logits (tokens, vocab_size) after each. Long prompts are computed in chunks.
        """
        ids = self._checked(tokens)
        if self.limits is not None and len(ids) > self.limits.max_input_len:
            raise ReferenceModelError(f"{len(ids)} tokens exceed max_input_len {self.limits.max_input_len}")
        _check_room(cache, len(ids))
        logits = []
        for rows in self._chunks(cache.length, len(ids)):
            hidden = self._advance(ids[rows], (cache,))
            if all_positions:
                logits.append(self._logits(hidden))
        return np.concatenate(logits) if all_positions else self._logits(hidden[-1:])[0]

    def decode(self, tokens: npt.ArrayLike, caches: Sequence[KVCache]) -> Float32:
        """Append tokens[i] to the sequence of caches[i], all in one step; logits (len(caches), vocab_size).

        The sequences may have different lengths.
        """
        ids = self._checked(tokens)
        if len(ids) != len(caches) or len({id(cache) for cache in caches}) != len(caches):
            raise ReferenceModelError(f"{len(ids)} tokens for {len(caches)} caches; each needs one of its own")
        if self.limits is not None and len(ids) > self.limits.max_batch_size:
            raise ReferenceModelError(f"{len(ids)} sequences exceed max_batch_size {self.limits.max_batch_size}")
        for cache in caches:
            _check_room(cache, 1)
        return self._logits(self._advance(ids, caches))

    def _advance(self, ids: npt.NDArray[np.int64], caches: Sequence[KVCache]) -> Float32:
        """Append equally many of `ids` to each of `caches`; the last stage's activations (len(ids), hidden_size)."""
        count = len(ids) // len(caches)
        positions = np.concatenate([np.arange(cache.length, cache.length + count) for cache in caches])
        batch = _Batch(
            spans=tuple((cache, slice(i * count, (i + 1) * count)) for i, cache in enumerate(caches)),
            angles=RotaryAngles(self._frequencies, positions),
        )
        x = self._embedding[ids]
        for stage, layers in enumerate(self._stages):
            for number, layer in enumerate(layers):
                x = self._layer(x, layer, stage, number, batch)
        for cache in caches:
            cache.length += count
        return x

    def _layer(self, x: Float32, layer: _Layer, stage: int, number: int, batch: _Batch) -> Float32:
        normed = rms_norm(x, layer.input_norm, self.config.norm_epsilon)
        first_rank = stage * self.config.tp_size
        x = x + _all_reduce(
            [
                self._attention(normed, shard, first_rank + tensor_rank, number, batch)
                for tensor_rank, shard in enumerate(layer.shards)
            ],
            layer.dense_bias,
        )
        normed = rms_norm(x, layer.post_norm, self.config.norm_epsilon)
        return x + _all_reduce([shard.proj(swiglu(shard.fc_gate(normed))) for shard in layer.shards], layer.proj_bias)

    def _attention(self, x: Float32, shard: _Shard, rank: int, number: int, batch: _Batch) -> Float32:
        heads, kv_heads = self.config.rank_heads, self.config.rank_key_value_heads
        qkv = shard.qkv(x).reshape(len(x), heads + 2 * kv_heads, self.config.head_size)
        batch.angles.rotate(qkv[:, : heads + kv_heads])
        queries, keys, values = np.split(qkv, (heads, heads + kv_heads), axis=1)
        mixed = np.empty((len(x), heads * self.config.head_size), dtype=np.float32)
        for cache, rows in batch.spans:
            mixed[rows] = causal_attention(queries[rows], *cache.store(rank, number, keys[rows], values[rows]))
        return shard.dense(mixed)

    def _logits(self, hidden: Float32) -> Float32:
        normed = rms_norm(hidden, self._final_norm, self.config.norm_epsilon)
        return np.concatenate([head(normed) for head in self._heads], axis=1)[:, : self.config.vocab_size]

    def _chunks(self, start: int, count: int) -> Iterator[slice]:
        """Slices of a prompt, short enough that the attention scores of a layer and rank stay within bounds."""
        begin = 0
        while begin < count:
            row_bytes = 4 * self.config.rank_heads * (start + begin + _CHUNK_ROWS)
            rows = min(max(_CHUNK_SCORE_BYTES // row_bytes, 1), _CHUNK_ROWS, count - begin)
            yield slice(begin, begin + rows)
            begin += rows

    def _checked(self, tokens: npt.ArrayLike) -> npt.NDArray[np.int64]:
        ids = np.asarray(tokens)
        if ids.ndim != 1 or not ids.size or ids.dtype.kind not in "iu":
            raise ReferenceModelError(f"tokens must be a non-empty 1-D array of integers, not {ids.dtype} {ids.shape}")
        if ids.min() < 0 or ids.max() >= self.vocab_size:
            raise ReferenceModelError(f"token ids must be in 0…{self.vocab_size - 1}")
        return ids.astype(np.int64)


def _check_room(cache: KVCache, count: int) -> None:
    if cache.length + count > cache.capacity:
        raise ReferenceModelError(f"{count} more tokens than the {cache.length} held exceed {cache.capacity}")


def _all_reduce(partial_results: Sequence[Float32], bias: Float32 | None) -> Float32:
    """The sum over the tensor ranks; the bias is added once, after it (RowLinear of tensorrt_llm/layers/linear.py)."""
    total = partial_results[0]
    for partial in partial_results[1:]:
        total += partial
    if bias is not None:
        total += bias
    return total


def _replicated(ranks: Sequence[RankWeights], name: str) -> Float32:
    """A tensor that all tensor ranks hold alike."""
    first = ranks[0].stored(name)
    for rank in ranks[1:]:
        if not np.array_equal(first, rank.stored(name)):
            raise ReferenceModelError(f"{rank.file.path}: {name} differs from that of {ranks[0].file.path}")
    return ranks[0].float32(name)


def _load_layer(config: Config, ranks: Sequence[RankWeights], number: int) -> _Layer:
    prefix = layer_prefix(number)
    return _Layer(
        input_norm=_replicated(ranks, f"{prefix}input_layernorm.weight"),
        post_norm=_replicated(ranks, f"{prefix}post_layernorm.weight"),
        dense_bias=_replicated(ranks, f"{prefix}attention.dense.bias") if config.attn_bias else None,
        proj_bias=_replicated(ranks, f"{prefix}mlp.proj.bias") if config.mlp_bias else None,
        shards=tuple(_load_shard(config, rank, prefix) for rank in ranks),
    )


def _load_shard(config: Config, rank: RankWeights, prefix: str) -> _Shard:
    def fc_gate(kind: str) -> Float32:
        return np.concatenate([rank.float32(f"{prefix}mlp.fc.{kind}"), rank.float32(f"{prefix}mlp.gate.{kind}")])

    return _Shard(
        qkv=Linear(
            rank.float32(f"{prefix}attention.qkv.weight"),
            rank.float32(f"{prefix}attention.qkv.bias") if config.attn_bias else None,
        ),
        dense=Linear(rank.float32(f"{prefix}attention.dense.weight")),
        fc_gate=Linear(fc_gate("weight"), fc_gate("bias") if config.mlp_bias else None),
        proj=Linear(rank.float32(f"{prefix}mlp.proj.weight")),
    )
