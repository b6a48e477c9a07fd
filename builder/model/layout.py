"""The tensors of a Llama's TensorRT-LLM checkpoint: what each rank holds, and which parts of the source make it.

One table for all who need it: the converter executes it, the verification checks against it, and the plan sums it up.
Names, splits and their sources follow TensorRT-LLM's own converter (tensorrt_llm/models/llama/convert.py); mind that
its `mlp.fc` is Hugging Face's gate_proj, and its `mlp.gate` is up_proj.

    rank = pipeline stage · tp + tensor rank                 layers are numbered from 0 on every pipeline stage
    first stage: vocab_embedding                             last stage: ln_f, lm_head
    column parallel (rows of the weight are split):          attention.qkv, mlp.fc, mlp.gate, lm_head, their biases
    row parallel (columns of the weight are split):          attention.dense, mlp.proj; their biases are added once,
                                                             after the ranks' results were summed, so every rank has
                                                             them whole
    whole on every rank:                                     norms, vocab_embedding
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from builder.errors import SourceError
from builder.model.parallelism import check_parallelism, legal_tensor_parallel
from builder.model.safetensors import DTYPE_BITS
from builder.model.spec import ModelSpec, stage_layers

__all__ = [
    "RankTensor",
    "Slice",
    "check_parallelism",
    "checkpoint_bytes",
    "legal_tensor_parallel",
    "rank_tensors",
    "require_plain",
    "source_shapes",
    "stage_layers",
]


@dataclass(frozen=True)
class Slice:
    """`source[start:stop]` along dimension `dim` of a Hugging Face tensor that has `shape` as a whole."""

    source: str
    shape: tuple[int, ...]
    dim: int
    start: int
    stop: int


@dataclass(frozen=True)
class RankTensor:
    """A tensor of one rank: its slices one after another along dimension 0, then `padding_rows` rows of zeros.

    `dtype` is spelt as safetensors does ("BF16").
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    slices: tuple[Slice, ...]
    padding_rows: int = 0

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * DTYPE_BITS[self.dtype] // 8


def rank_tensors(spec: ModelSpec, tp: int, pp: int, rank: int) -> tuple[RankTensor, ...]:
    """The tensors of `rank{rank}.safetensors` in the order in which they are stored: by name.

    SourceError for all but plain Llamas, PlanRefused for a split that isn't even.
    """
    require_plain(spec)
    check_parallelism(spec, tp, pp)
    stage, tensor_rank = divmod(rank, tp)
    split = _Split(spec, tp, tensor_rank)
    tensors: list[RankTensor] = []
    if stage == 0:
        tensors.append(split.whole("transformer.vocab_embedding.weight", "model.embed_tokens.weight", _embedding(spec)))
    for number, layer in enumerate(stage_layers(spec.num_hidden_layers, pp, stage)):
        tensors += _layer(spec, split, f"transformer.layers.{number}.", f"model.layers.{layer}.")
    if stage == pp - 1:
        tensors.append(split.whole("transformer.ln_f.weight", "model.norm.weight", (spec.hidden_size,)))
        tensors.append(_head(spec, split))
    return tuple(sorted(tensors, key=lambda tensor: tensor.name))


def require_plain(spec: ModelSpec) -> None:
    """SourceError for a model that has other tensors than those below."""
    if spec.not_plain is not None:
        raise SourceError(
            f"our own converter can't convert this model: {spec.not_plain}",
            why="it converts dense, unquantised LlamaForCausalLM without windows",
            hint="use a toolchain that runs TensorRT-LLM's converters, or the pytorch flow",
            code="UNSUPPORTED_ARCHITECTURE",
        )


def source_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """The Hugging Face tensors that the model consists of, and their shapes."""
    return {part.source: part.shape for tensor in rank_tensors(spec, 1, 1, 0) for part in tensor.slices}


def checkpoint_bytes(spec: ModelSpec, tp: int, pp: int) -> int:
    """The bytes of all tensors of all ranks, without the headers of the files."""
    return sum(tensor.nbytes for rank in range(tp * pp) for tensor in rank_tensors(spec, tp, pp, rank))


@dataclass(frozen=True)
class _Split:
    """The three ways in which a tensor comes to a rank."""

    spec: ModelSpec
    tp: int
    rank: int

    def whole(self, name: str, source: str, shape: tuple[int, ...]) -> RankTensor:
        return self._tensor(name, Slice(source, shape, 0, 0, shape[0]))

    def columns(self, name: str, source: str, shape: tuple[int, ...]) -> RankTensor:
        """Column parallel: weights are stored (out, in), so a rank gets rows."""
        share = shape[0] // self.tp
        return self._tensor(name, Slice(source, shape, 0, self.rank * share, (self.rank + 1) * share))

    def rows(self, name: str, source: str, shape: tuple[int, ...]) -> RankTensor:
        """Row parallel: a rank gets columns of the stored weight."""
        share = shape[1] // self.tp
        part = Slice(source, shape, 1, self.rank * share, (self.rank + 1) * share)
        return RankTensor(name, (shape[0], share), self.spec.stored_dtype, (part,))

    def heads(self, name: str, sources: dict[str, int], tail: tuple[int, ...]) -> RankTensor:
        """Q, K and V fused. Of each a rank gets its share of the heads (source → number of heads), or, if there are
        fewer heads than ranks, the one that its query heads belong to; neighbours then hold the same one."""
        parts = []
        for source, count in sources.items():
            first, share = self.rank * count // self.tp, max(1, count // self.tp)
            rows = self.spec.head_dim
            parts.append(Slice(source, (count * rows, *tail), 0, first * rows, (first + share) * rows))
        return self._tensor(name, *parts)

    def _tensor(self, name: str, *parts: Slice) -> RankTensor:
        rows = sum(part.stop - part.start for part in parts)
        return RankTensor(name, (rows, *parts[0].shape[1:]), self.spec.stored_dtype, parts)


def _layer(spec: ModelSpec, split: _Split, target: str, source: str) -> list[RankTensor]:
    hidden, inner = spec.hidden_size, spec.intermediate_size
    attention = spec.num_attention_heads * spec.head_dim

    def qkv(kind: str) -> dict[str, int]:
        return {
            f"{source}self_attn.q_proj.{kind}": spec.num_attention_heads,
            f"{source}self_attn.k_proj.{kind}": spec.num_key_value_heads,
            f"{source}self_attn.v_proj.{kind}": spec.num_key_value_heads,
        }

    tensors = [
        split.whole(f"{target}input_layernorm.weight", f"{source}input_layernorm.weight", (hidden,)),
        split.heads(f"{target}attention.qkv.weight", qkv("weight"), (hidden,)),
        split.rows(f"{target}attention.dense.weight", f"{source}self_attn.o_proj.weight", (hidden, attention)),
        split.whole(f"{target}post_layernorm.weight", f"{source}post_attention_layernorm.weight", (hidden,)),
        split.columns(f"{target}mlp.fc.weight", f"{source}mlp.gate_proj.weight", (inner, hidden)),
        split.columns(f"{target}mlp.gate.weight", f"{source}mlp.up_proj.weight", (inner, hidden)),
        split.rows(f"{target}mlp.proj.weight", f"{source}mlp.down_proj.weight", (hidden, inner)),
    ]
    if spec.attention_bias:
        tensors += [
            split.heads(f"{target}attention.qkv.bias", qkv("bias"), ()),
            split.whole(f"{target}attention.dense.bias", f"{source}self_attn.o_proj.bias", (hidden,)),
        ]
    if spec.mlp_bias:
        tensors += [
            split.columns(f"{target}mlp.fc.bias", f"{source}mlp.gate_proj.bias", (inner,)),
            split.columns(f"{target}mlp.gate.bias", f"{source}mlp.up_proj.bias", (inner,)),
            split.whole(f"{target}mlp.proj.bias", f"{source}mlp.down_proj.bias", (hidden,)),
        ]
    return tensors


def _head(spec: ModelSpec, split: _Split) -> RankTensor:
    """The output head, always stored: its rows are split and the embedding's are not, so that one can't stand for the
    other where tp > 1 or where the last stage isn't the first. TensorRT-LLM's converter does the same for tied models.

    Rows are padded with zeros to a multiple of tp; TensorRT-LLM cuts the logits of the padding off.
    """
    source = "model.embed_tokens.weight" if spec.tie_word_embeddings else "lm_head.weight"
    share = -(-spec.vocab_size // split.tp)
    start = min(split.rank * share, spec.vocab_size)
    stop = min(start + share, spec.vocab_size)
    part = Slice(source, _embedding(spec), 0, start, stop)
    return RankTensor(
        "lm_head.weight", (share, spec.hidden_size), spec.stored_dtype, (part,), padding_rows=share - (stop - start)
    )


def _embedding(spec: ModelSpec) -> tuple[int, int]:
    return (spec.vocab_size, spec.hidden_size)
