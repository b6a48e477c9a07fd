"""The table itself.

Names, splits and their sources follow TensorRT-LLM's converters (tensorrt_llm/models/{llama,qwen,gemma,phi3}/convert.py
and layers/moe.py); mind that its `mlp.fc` is Hugging Face's gate_proj, and its `mlp.gate` is up_proj, except where one
tensor holds both (experts, Phi-3): there the rows of up_proj come first.

    rank = pipeline stage · tp + tensor rank                 layers are numbered from 0 on every pipeline stage
    first stage: vocab_embedding                             last stage: ln_f, lm_head
    column parallel (rows of the weight are split):          attention.qkv, mlp.fc, mlp.gate, lm_head, their biases
    row parallel (columns of the weight are split):          attention.dense, mlp.proj; their biases are added once,
                                                             after the ranks' results were summed, so every rank has
                                                             them whole
    experts:                                                 E / moe_ep neighbours per rank, each cut into moe_tp parts
    whole on every rank:                                     norms, router (float32), vocab_embedding unless parallel
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from builder.errors import SourceError
from builder.model.families import families
from builder.model.layout.coverage import require_covered
from builder.model.layout.linears import Linears, Part
from builder.model.layout.split import Split
from builder.model.layout.tensors import RankTensor, Rule, Slice
from builder.model.quantized_modules import Exclusions
from builder.model.spec import Layer, ModelSpec, stage_layers

_Linear = tuple[str, tuple[Part, ...], tuple[int, ...]]
"""Its name, its parts, and the number of experts before its shape."""

_GEMMA = ("gemma", "gemma2", "gemma3_text")
_KV_SCALES = {
    "modelopt": ("k_proj.k_scale", "v_proj.v_scale"),
    "compressed-tensors": ("k_scale", "v_scale"),
}
"""Where published models keep the scales of their KV cache, by the method that quantised them."""

_NORMS = {
    "input_layernorm": "input_layernorm",
    "post_attention_layernorm": "post_layernorm",
    "pre_feedforward_layernorm": "pre_feedforward_layernorm",
    "post_feedforward_layernorm": "post_feedforward_layernorm",
}


def rank_tensors(spec: ModelSpec, split: Split, rank: int) -> tuple[RankTensor, ...]:
    """The tensors of `rank{rank}.safetensors` in the order in which they are stored: by name.

    SourceError for models that aren't covered, PlanRefused for a split that isn't even.
    """
    require_covered(spec)
    split.check(spec)
    return tuple(sorted(_Rank(spec, parallel_embedding(spec, split), rank).tensors(), key=lambda tensor: tensor.name))


def source_tensors(spec: ModelSpec) -> tuple[dict[str, Slice], dict[str, Slice]]:
    """The Hugging Face tensors that the model consists of, and those that it may have besides.

    By name; of a slice, `shape` and `dtype` count.
    """
    needed: dict[str, Slice] = {}
    optional: dict[str, Slice] = {}
    for tensor in rank_tensors(spec, Split(), 0):
        (optional if tensor.rule == "same_or_ones" else needed).update({part.source: part for part in tensor.slices})
        needed |= {other.source: other for part in tensor.slices for other in part.beside}
    return needed, optional


def checkpoint_bytes(spec: ModelSpec, split: Split) -> int:
    """The bytes of all tensors of all ranks, without the headers of the files."""
    return sum(tensor.nbytes for rank in range(split.files) for tensor in rank_tensors(spec, split, rank))


def parallel_embedding(spec: ModelSpec, split: Split) -> Split:
    """The split with what TensorRT-LLM decides by itself: Gemma's embedding is split wherever tp > 1
    (GemmaConfig in tensorrt_llm/models/gemma/config.py ignores what a checkpoint says)."""
    if spec.model_type not in _GEMMA:
        return split
    return replace(split, use_parallel_embedding=split.tp > 1, embedding_sharding_dim=0)


def excluded_modules(spec: ModelSpec, split: Split) -> list[str]:
    """quantization.exclude_modules of a checkpoint whose weights were published quantised: what stays as it was.

    A list replaces the one that TensorRT-LLM has for itself, so that it must name routers, which are linears there
    (quantize_layers in tensorrt_llm/quantization/quantize.py).

    SourceError where ranks would disagree: layers are numbered anew on every pipeline stage.
    """
    if spec.quantization is None:
        return []
    stages = [_Rank(spec, split, stage * split.tp).modules() for stage in range(split.pp)]
    union = sorted({name for stage in stages for name, quantized in stage.items() if not quantized})
    if any(quantized and name in union for stage in stages for name, quantized in stage.items()):
        raise SourceError(
            "pipeline stages would differ in which of their layers are quantised",
            why="layers are numbered from 0 on every stage, and one config.json stands for all of them",
            hint="use tensor parallelism alone",
            code="MIXED_STAGES",
        )
    routers = ["*router"] if spec.experts is not None else []
    return ["lm_head", *routers, *union]


def _mixed(name: str) -> SourceError:
    return SourceError(
        f"some of the linears that make {name} are quantised, and others aren't",
        why="TensorRT-LLM treats all of them alike",
        hint="use the pytorch flow, which keeps them apart",
        code="MIXED_FUSION",
    )


@dataclass(frozen=True)
class _Rank:
    spec: ModelSpec
    split: Split
    rank: int

    @property
    def stage(self) -> int:
        return self.rank // self.split.tp

    @property
    def tensor_rank(self) -> int:
        return self.rank % self.split.tp

    @property
    def dtype(self) -> str:
        return self.spec.stored_dtype

    @cached_property
    def prefix(self) -> str:
        return families()[self.spec.model_type].prefix

    @cached_property
    def exclusions(self) -> Exclusions:
        found = self.spec.quantization
        return Exclusions(found.excluded if found else ())

    def tensors(self) -> Iterator[RankTensor]:
        spec, last = self.spec, self.split.pp - 1
        if self.stage == 0:
            yield self._embedding()
        for number, layer in self._layers():
            yield from self._layer(f"transformer.layers.{number}.", f"{self.prefix}layers.{layer}.", spec.layers[layer])
        if self.stage == last:
            yield self._norm("transformer.ln_f.weight", f"{self.prefix}norm.weight", spec.hidden_size)
            yield self._head()

    def modules(self) -> dict[str, bool]:
        """Every module of the layers that TensorRT-LLM quantises as a whole, and whether it is quantised.

        That is a linear, or the attention or MLP that has it: for experts, and with FP8 scaled by rows
        (fp8_rowwise_quantize in tensorrt_llm/quantization/quantize.py). SourceError where parts of one disagree.
        """
        found: dict[str, bool] = {}
        rowwise = self.spec.quantization is not None and self.spec.quantization.precision == "fp8-rowwise"
        for number, layer in self._layers():
            target, source = f"transformer.layers.{number}.", f"{self.prefix}layers.{layer}."
            for name, parts, lead in self._linears(target, source, self.spec.layers[layer]):
                module = name.rpartition(".")[0] if rowwise or lead else name
                quantized = self._quantized(name, parts)
                if found.setdefault(module, quantized) != quantized:
                    raise _mixed(module)
        return found

    def _layers(self) -> Iterator[tuple[int, int]]:
        return enumerate(stage_layers(self.spec.num_hidden_layers, self.split.pp, self.stage))

    def _layer(self, target: str, source: str, layer: Layer) -> Iterator[RankTensor]:
        spec, hidden = self.spec, self.spec.hidden_size
        for norm in families()[spec.model_type].layer_norms:
            yield self._norm(f"{target}{_NORMS[norm]}.weight", f"{source}{norm}.weight", hidden)
        if spec.qk_norm:
            for kind in ("q", "k"):
                name = f"{target}attention.{kind}_layernorm.weight"
                yield self._norm(name, f"{source}self_attn.{kind}_norm.weight", spec.head_dim)
        if layer.experts is not None:
            router = Slice.whole(f"{source}{self._experts_module}.gate.weight", (layer.experts.count, hidden))
            yield RankTensor(f"{target}mlp.router.weight", router.shape, "F32", (router,))
        for name, parts, lead in self._linears(target, source, layer):
            quantized = self._quantized(name, parts)
            yield from self._format(quantized).tensors(name, parts, lead)
        yield from self._biases(target, source)
        found = spec.quantization
        if found is not None and found.kv_cache is not None:
            scales = tuple(Slice.whole(f"{source}self_attn.{name}", (), "float") for name in _KV_SCALES[found.method])
            yield RankTensor(f"{target}attention.kv_cache_scaling_factor", (1,), "F32", scales, rule="maximum")

    def _linears(self, target: str, source: str, layer: Layer) -> Iterator[_Linear]:
        """The linears of a layer: name, parts, and the number of experts before its shape."""
        spec, hidden = self.spec, self.spec.hidden_size
        attention = f"{source}self_attn."
        width = spec.num_attention_heads * spec.head_dim
        yield f"{target}attention.qkv", self._qkv(attention), ()
        yield f"{target}attention.dense", (self._in(f"{attention}o_proj", (hidden, width)),), ()
        if layer.experts is not None:
            yield from self._experts(f"{target}mlp.", f"{source}{self._experts_module}.experts.", layer)
        elif layer.intermediate_size is not None and spec.model_type == "phi3":
            inner = layer.intermediate_size
            fused, share = f"{source}mlp.gate_up_proj", inner // self.split.tp
            first = self.tensor_rank * share
            halves = (inner + first, first)  # up_proj first: swiglu activates the second half
            parts = tuple(Part(fused, (2 * inner, hidden), 0, start, start + share) for start in halves)
            yield f"{target}mlp.fc", parts, ()
            yield f"{target}mlp.proj", (self._in(f"{source}mlp.down_proj", (hidden, inner)),), ()
        elif layer.intermediate_size is not None:
            inner = layer.intermediate_size
            yield f"{target}mlp.fc", (self._out(f"{source}mlp.gate_proj", (inner, hidden)),), ()
            yield f"{target}mlp.gate", (self._out(f"{source}mlp.up_proj", (inner, hidden)),), ()
            yield f"{target}mlp.proj", (self._in(f"{source}mlp.down_proj", (hidden, inner)),), ()

    def _qkv(self, module: str) -> tuple[Part, ...]:
        """Q, K and V fused. Of each a rank gets its share of the heads, or, if there are fewer heads than ranks, the
        one that its query heads belong to; neighbours then hold the same one."""
        spec, tp, size = self.spec, self.split.tp, self.spec.head_dim
        parts, before = [], 0
        total = (spec.num_attention_heads + 2 * spec.num_key_value_heads) * size
        for name, heads in (
            ("q_proj", spec.num_attention_heads),
            ("k_proj", spec.num_key_value_heads),
            ("v_proj", spec.num_key_value_heads),
        ):
            start = self.tensor_rank * heads // tp * size
            stop = start + max(1, heads // tp) * size
            if spec.model_type == "phi3":
                parts.append(Part(f"{module}qkv_proj", (total, spec.hidden_size), 0, before + start, before + stop))
                before += heads * size
            else:
                parts.append(Part(f"{module}{name}", (heads * size, spec.hidden_size), 0, start, stop))
        return tuple(parts)

    def _experts(self, target: str, source: str, layer: Layer) -> Iterator[_Linear]:
        if layer.experts is None:
            return
        names, hidden, inner = families()[self.spec.model_type], self.spec.hidden_size, layer.experts.intermediate_size
        count, share = layer.experts.count // self.split.moe_ep, inner // self.split.moe_tp
        first = self.tensor_rank % self.split.moe_ep * count
        start = self.tensor_rank // self.split.moe_ep * share
        up_and_gate, down = [], []
        for expert in range(first, first + count):
            for name in ("expert_up", "expert_gate"):
                module = f"{source}{expert}.{names.name(name)}"
                up_and_gate.append(Part(module, (inner, hidden), 0, start, start + share))
            down.append(Part(f"{source}{expert}.{names.name('expert_down')}", (hidden, inner), 1, start, start + share))
        yield f"{target}fc", tuple(up_and_gate), (count,)
        yield f"{target}proj", tuple(down), (count,)

    @cached_property
    def _experts_module(self) -> str:
        return families()[self.spec.model_type].name("experts")

    def _biases(self, target: str, source: str) -> Iterator[RankTensor]:
        spec, family = self.spec, families()[self.spec.model_type]
        hidden = spec.hidden_size
        if spec.attention_bias:
            parts = self._qkv(f"{source}self_attn.")
            yield self._bias(f"{target}attention.qkv", parts)
            if family.output_bias == "same":
                yield self._bias(
                    f"{target}attention.dense", (Part(f"{source}self_attn.o_proj", (hidden, 0), 0, 0, hidden),)
                )
        if spec.mlp_bias:
            inner = spec.intermediate_size
            yield self._bias(f"{target}mlp.fc", (self._out(f"{source}mlp.gate_proj", (inner, hidden)),))
            yield self._bias(f"{target}mlp.gate", (self._out(f"{source}mlp.up_proj", (inner, hidden)),))
            yield self._bias(f"{target}mlp.proj", (Part(f"{source}mlp.down_proj", (hidden, 0), 0, 0, hidden),))

    def _bias(self, name: str, parts: tuple[Part, ...]) -> RankTensor:
        slices = tuple(Slice(f"{part.module}.bias", part.shape[:1], 0, part.start, part.stop) for part in parts)
        return RankTensor(f"{name}.bias", (sum(part.rows for part in parts),), self.dtype, slices)

    def _norm(self, name: str, source: str, size: int) -> RankTensor:
        """Gemma's norms multiply by 1 + weight; TensorRT-LLM's checkpoints store the sum."""
        rule: Rule = "plus_one" if self.spec.model_type in _GEMMA else "copy"
        return RankTensor(name, (size,), self.dtype, (Slice.whole(source, (size,)),), rule=rule)

    def _embedding(self) -> RankTensor:
        spec, name, source = self.spec, "transformer.vocab_embedding.weight", f"{self.prefix}embed_tokens.weight"
        vocab, hidden = spec.vocab_size, spec.hidden_size
        if not self.split.use_parallel_embedding:
            return RankTensor(name, (vocab, hidden), self.dtype, (Slice.whole(source, (vocab, hidden)),))
        if self.split.embedding_sharding_dim == 0:
            return self._vocabulary_rows(name, source)
        share = hidden // self.split.tp
        part = Slice(source, (vocab, hidden), 1, self.tensor_rank * share, (self.tensor_rank + 1) * share)
        return RankTensor(name, (vocab, share), self.dtype, (part,))

    def _head(self) -> RankTensor:
        """The output head, always stored, as TensorRT-LLM's converter does for tied models too: its rows are split and
        the embedding's need not be, so that one can't stand for the other."""
        tied = self.spec.tie_word_embeddings
        return self._vocabulary_rows(
            "lm_head.weight", f"{self.prefix}embed_tokens.weight" if tied else "lm_head.weight"
        )

    def _vocabulary_rows(self, name: str, source: str) -> RankTensor:
        """A share of the vocabulary, padded with zeros so that all are equal; the logits of the padding are cut off."""
        vocab, hidden = self.spec.vocab_size, self.spec.hidden_size
        share = -(-vocab // self.split.tp)
        start = min(self.tensor_rank * share, vocab)
        stop = min(start + share, vocab)
        part = Slice(source, (vocab, hidden), 0, start, stop)
        return RankTensor(name, (share, hidden), self.dtype, (part,), padding_rows=share - (stop - start))

    def _out(self, module: str, shape: tuple[int, int]) -> Part:
        """Column parallel: a rank gets some of the outputs."""
        share = shape[0] // self.split.tp
        return Part(module, shape, 0, self.tensor_rank * share, (self.tensor_rank + 1) * share)

    def _in(self, module: str, shape: tuple[int, int]) -> Part:
        """Row parallel: a rank gets some of the inputs."""
        share = shape[1] // self.split.tp
        return Part(module, shape, 1, self.tensor_rank * share, (self.tensor_rank + 1) * share)

    def _quantized(self, name: str, parts: tuple[Part, ...]) -> bool:
        if self.spec.quantization is None:
            return False
        excluded = {part.module in self.exclusions for part in parts}
        if len(excluded) > 1:
            raise _mixed(name)
        return not excluded.pop()

    def _format(self, quantized: bool) -> Linears:
        found = self.spec.quantization
        if found is None or not quantized:
            return Linears("float", self.dtype, 0)
        return Linears(found.precision or "", self.dtype, found.group_size or 0)
