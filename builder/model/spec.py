"""What a model is: `ModelSpec`, made of the records of `builder.model.parts`. `builder.model.config` reads it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from builder.model.parts import Attention, Experts, Layer, Mla, Recurrent, Rope, SourceQuantization

__all__ = [
    "STORED_DTYPES",
    "Attention",
    "Experts",
    "Layer",
    "Mla",
    "ModelSpec",
    "Recurrent",
    "Rope",
    "SourceQuantization",
    "attention_of_stages",
    "shared",
    "stage_layers",
]

STORED_DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
"""The precisions that a model can have, and how safetensors spells them."""

Record = TypeVar("Record")


@dataclass(frozen=True)
class ModelSpec:
    """A decoder, as its config.json describes it.

    The plain numbers are those of most layers: where layers differ, `head_dim`, `num_key_value_heads` and
    `intermediate_size` are the largest (of dense layers, else of experts) and `layers` tells the rest. `rope_scaling`
    is None or TensorRT-LLM's spelling of the rope of full attention, {"type": "linear", "factor": ...}.

    `assumed` holds the numbers, by key, that the file leaves to the class defaults of transformers. `towers` names the
    parts of a multimodal model that are not described here. `next_token_layers` counts layers for multi-token
    prediction, which are stored beside `layers`.

    Scores of attention are divided by √query_pre_attn_scalar, where that is given, else by √head_dim; soft caps bend
    numbers beyond them, c · tanh(x / c). `norm_topk_prob`: the weights of a token's experts sum up to 1.

    Equal layers are one object, and so are equal specs that were read from files: comparing and hashing are cheap, and
    functions of a spec can be cached.
    """

    architecture: str
    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    hidden_act: str
    rope_theta: float
    rope_scaling: Mapping[str, Any] | None
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    dtype: str
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    pad_token_id: int | None
    model_type: str
    layers: tuple[Layer, ...]
    qk_norm: bool = False
    quantization: SourceQuantization | None = None
    transformers_version: str | None = None
    custom_code: bool = False
    next_token_layers: int = 0
    assumed: Mapping[str, int | float] = field(default_factory=dict)
    towers: tuple[str, ...] = ()
    query_pre_attn_scalar: float | None = None
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    norm_topk_prob: bool = True

    def __hash__(self) -> int:
        return hash((self.architecture, self.model_type, self.num_hidden_layers, self.hidden_size, self.vocab_size))

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, Any],
        where: str | Path,
        generation_config: Mapping[str, Any] | None = None,
        hf_quant_config: Mapping[str, Any] | None = None,
        stored_dtype: str | None = None,
    ) -> ModelSpec:
        """The model that a Hugging Face config.json describes: see `builder.model.config.read_spec`."""
        from builder.model.config import read_spec  # it makes these records

        return read_spec(config, where, generation_config, hf_quant_config, stored_dtype)

    @property
    def stored_dtype(self) -> str:
        """The dtype as safetensors spells it: "BF16", "F16" or "F32"."""
        return STORED_DTYPES[self.dtype]

    @property
    def experts(self) -> Experts | None:
        """The experts of the first layer that has some."""
        return next((layer.experts for layer in self.layers if layer.experts), None)

    def kv_bytes_per_token(self, dtype_bytes: float, tp: int, pp: int = 1) -> int:
        """KV cache of one token that all attention layers of the fullest rank see, windows not considered.

        2 · layers of the rank · max(1, ⌈KV heads / tp⌉) · head_dim · dtype_bytes, summed over unequal layers.
        """
        return self.kv_bytes(1, dtype_bytes, tp, pp)

    def kv_bytes(self, tokens: int, dtype_bytes: float, tp: int, pp: int = 1) -> int:
        """KV cache of one sequence of `tokens` on the fullest rank: a window layer keeps min(window, tokens) of it."""
        return max(
            math.ceil(
                dtype_bytes
                * sum(
                    count * attention.kv_values_per_token(tp) * min(attention.window or tokens, tokens)
                    for attention, count in stage
                )
            )
            for stage in attention_of_stages(self, pp)
        )

    def indexer_bytes_per_token(self, pp: int = 1) -> int:
        """What the indexers of sparse attention cache of one token on the fullest rank, beside the KV cache."""
        return max(
            sum(count * attention.indexer_bytes_per_token for attention, count in stage)
            for stage in attention_of_stages(self, pp)
        )

    def state_values(self, tp: int, pp: int = 1) -> int:
        """Values (not bytes) that recurrent layers keep of one sequence on the fullest rank, whatever its length."""
        stages = (stage_layers(self.num_hidden_layers, pp, stage) for stage in range(pp))
        states = [layer.recurrent.state_values(tp) if layer.recurrent else 0 for layer in self.layers]
        return max(sum(states[number] for number in stage) for stage in stages)

    def windows(self, max_seq_len: int) -> dict[int, int]:
        """How many attention layers see how many tokens: windows are clamped to `max_seq_len`, which is no window."""
        return dict(
            Counter(
                min(layer.attention.window or max_seq_len, max_seq_len)
                for layer in self.layers
                if layer.attention and not layer.attention.shares_cache
            )
        )


def stage_layers(num_layers: int, pp: int, stage: int) -> range:
    """The layers of a pipeline stage, split as torch.tensor_split does: the first stages take the remainder."""
    share, remainder = divmod(num_layers, pp)
    start = stage * share + min(stage, remainder)
    return range(start, start + share + (stage < remainder))


@lru_cache(maxsize=4096)
def attention_of_stages(spec: ModelSpec, pp: int) -> tuple[tuple[tuple[Attention, int], ...], ...]:
    """The distinct attentions of every pipeline stage, each with how many layers have it."""
    return tuple(
        tuple(
            Counter(
                layer.attention
                for layer in (spec.layers[number] for number in stage_layers(spec.num_hidden_layers, pp, stage))
                if layer.attention
            ).items()
        )
        for stage in range(pp)
    )


@lru_cache(maxsize=1 << 14)
def _first_equal(record: object) -> object:
    return record


def shared(record: Record) -> Record:
    """The record that was first seen of all that are equal to this one."""
    return _first_equal(record)  # type: ignore[return-value]
