"""Which part of which source tensor every part of a rank's tensor is.

The inverse of the converter's table, written again from what TensorRT-LLM documents of its checkpoints
(docs/source/architecture/checkpoint.md, models/{llama,qwen,gemma,phi3}/model.py, layers/moe.py), from the rank's side:
an error in one of the two tables shows as a difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from builder.model.spec import ModelSpec
from builder.reference.config import Config


def _everything() -> slice:
    return slice(None)


_NORMS = {
    "input_layernorm": "input_layernorm",
    "post_layernorm": "post_attention_layernorm",
    "pre_feedforward_layernorm": "pre_feedforward_layernorm",
    "post_feedforward_layernorm": "post_feedforward_layernorm",
}


@dataclass(frozen=True)
class Piece:
    """`target` rows of a tensor of a rank (of its expert `expert`) are `rows` and `columns` of the source tensor."""

    rank: int
    tensor: str
    source: str
    target: slice = field(default_factory=_everything)
    rows: slice = field(default_factory=_everything)
    columns: slice = field(default_factory=_everything)
    expert: int | None = None

    @property
    def linear(self) -> str:
        return self.tensor.removesuffix(".weight")


@dataclass(frozen=True)
class Padding:
    """Rows of a tensor that must be zeros."""

    rank: int
    tensor: str
    rows: slice


def pieces(config: Config, spec: ModelSpec) -> Iterator[Piece | Padding]:
    """All parts of all weights, biases and norms of all ranks; scales aren't among them."""
    for rank in range(config.mapping.files):
        yield from _Rank(config, spec, rank).pieces()


@dataclass(frozen=True)
class _Rank:
    config: Config
    spec: ModelSpec
    rank: int
    stage: int = field(init=False)
    place: int = field(init=False)
    """Its number among the tensor ranks."""

    def __post_init__(self) -> None:
        stage, place = divmod(self.rank, self.config.tp_size)
        object.__setattr__(self, "stage", stage)
        object.__setattr__(self, "place", place)

    def pieces(self) -> Iterator[Piece | Padding]:
        config = self.config
        if self.stage == 0:
            yield from self._embedding()
        for number, layer in enumerate(config.stage_layers(self.stage)):
            yield from self._layer(f"transformer.layers.{number}.", f"model.layers.{layer}.", layer)
        if self.stage == config.pp_size - 1:
            yield Piece(self.rank, "transformer.ln_f.weight", "model.norm.weight")
            tied = self.spec.tie_word_embeddings
            yield from self._vocabulary("lm_head.weight", "model.embed_tokens.weight" if tied else "lm_head.weight")

    def _embedding(self) -> Iterator[Piece | Padding]:
        name, source = "transformer.vocab_embedding.weight", "model.embed_tokens.weight"
        if not self.config.use_parallel_embedding:
            yield Piece(self.rank, name, source)
        elif self.config.embedding_sharding_dim == 0:
            yield from self._vocabulary(name, source)
        else:
            yield Piece(self.rank, name, source, columns=self._share(self.config.hidden_size))

    def _vocabulary(self, name: str, source: str) -> Iterator[Piece | Padding]:
        share, vocab = self.config.rank_vocab, self.config.vocab_size
        start = min(self.place * share, vocab)
        stop = min(start + share, vocab)
        yield Piece(self.rank, name, source, slice(0, stop - start), slice(start, stop))
        if stop - start < share:
            yield Padding(self.rank, name, slice(stop - start, share))

    def _layer(self, target: str, source: str, layer: int) -> Iterator[Piece]:
        config = self.config
        for ours, theirs in _NORMS.items():
            if config.sandwich_norms or "feedforward" not in ours:
                yield Piece(self.rank, f"{target}{ours}.weight", f"{source}{theirs}.weight")
        if config.qk_layernorm:
            for kind in ("q", "k"):
                theirs = f"{source}self_attn.{kind}_norm.weight"
                yield Piece(self.rank, f"{target}attention.{kind}_layernorm.weight", theirs)
        yield from self._qkv(f"{target}attention.qkv.weight", f"{source}self_attn.", "weight")
        if config.attn_bias:
            yield from self._qkv(f"{target}attention.qkv.bias", f"{source}self_attn.", "bias")
        attention = self._share(config.num_attention_heads * config.head_size)
        yield Piece(self.rank, f"{target}attention.dense.weight", f"{source}self_attn.o_proj.weight", columns=attention)
        if config.dense_bias:
            yield Piece(self.rank, f"{target}attention.dense.bias", f"{source}self_attn.o_proj.bias")
        experts = config.experts_of(layer)
        if experts is not None:
            module = "block_sparse_moe" if self.spec.model_type == "mixtral" else "mlp"
            yield Piece(self.rank, f"{target}mlp.router.weight", f"{source}{module}.gate.weight")
            yield from self._experts(target, f"{source}{module}.experts.", experts.count, experts.intermediate_size)
        else:
            yield from self._mlp(target, source)

    def _qkv(self, name: str, module: str, kind: str) -> Iterator[Piece]:
        """Queries of this rank, then keys, then values: the heads that its query heads share."""
        config, size = self.config, self.config.head_size
        heads, kv_heads = config.rank_heads, config.rank_key_value_heads
        copies = max(1, config.tp_size // config.num_key_value_heads)  # ranks that hold the same KV head
        first_kv = self.place // copies * kv_heads if copies > 1 else self.place * kv_heads
        fused = config.fused_mlp  # Phi-3, whose projections are one tensor
        begin, offset = 0, 0
        for letter, first, count, total in (
            ("q", self.place * heads, heads, config.num_attention_heads),
            ("k", first_kv, kv_heads, config.num_key_value_heads),
            ("v", first_kv, kv_heads, config.num_key_value_heads),
        ):
            source = f"{module}qkv_proj.{kind}" if fused else f"{module}{letter}_proj.{kind}"
            start = (first + (offset if fused else 0)) * size
            yield Piece(
                self.rank,
                name,
                source,
                slice(begin, begin + count * size),
                slice(start, start + count * size),
            )
            begin, offset = begin + count * size, offset + total

    def _mlp(self, target: str, source: str) -> Iterator[Piece]:
        config, inner = self.config, self.config.intermediate_size
        mine = self._share(inner)
        width = mine.stop - mine.start
        if config.fused_mlp:
            fused = f"{source}mlp.gate_up_proj.weight"
            up, gate = slice(inner + mine.start, inner + mine.stop), mine
            yield Piece(self.rank, f"{target}mlp.fc.weight", fused, slice(0, width), up)
            yield Piece(self.rank, f"{target}mlp.fc.weight", fused, slice(width, 2 * width), gate)
        for kind in ("weight", "bias") if config.mlp_bias else ("weight",):
            if not config.fused_mlp:
                yield Piece(self.rank, f"{target}mlp.fc.{kind}", f"{source}mlp.gate_proj.{kind}", rows=mine)
                yield Piece(self.rank, f"{target}mlp.gate.{kind}", f"{source}mlp.up_proj.{kind}", rows=mine)
            columns = mine if kind == "weight" else _everything()
            yield Piece(self.rank, f"{target}mlp.proj.{kind}", f"{source}mlp.down_proj.{kind}", columns=columns)

    def _experts(self, target: str, source: str, count: int, inner: int) -> Iterator[Piece]:
        mapping = self.config.mapping
        here, width = count // mapping.moe_ep, inner // mapping.moe_tp
        part = self.place // mapping.moe_ep
        mine = slice(part * width, (part + 1) * width)
        gate, up, down = (
            ("w1", "w3", "w2") if self.spec.model_type == "mixtral" else ("gate_proj", "up_proj", "down_proj")
        )
        for number in range(here):
            module = f"{source}{self.place % mapping.moe_ep * here + number}."
            fc, proj = f"{target}mlp.fc.weight", f"{target}mlp.proj.weight"
            yield Piece(self.rank, fc, f"{module}{up}.weight", slice(0, width), mine, expert=number)
            yield Piece(self.rank, fc, f"{module}{gate}.weight", slice(width, 2 * width), mine, expert=number)
            yield Piece(self.rank, proj, f"{module}{down}.weight", columns=mine, expert=number)

    def _share(self, size: int) -> slice:
        share = size // self.config.tp_size
        return slice(self.place * share, (self.place + 1) * share)
