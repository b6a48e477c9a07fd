"""A TensorRT-LLM checkpoint put together again to the Hugging Face tensors that it was made of.

By what NVIDIA documents about its checkpoints, with torch, and without a line of the converter's: the oracle of its
tests. Everything that a rank holds has to be used, or it is an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

Rank = dict[str, torch.Tensor]

_NORMS = {
    "input_layernorm": "input_layernorm",
    "post_layernorm": "post_attention_layernorm",
    "pre_feedforward_layernorm": "pre_feedforward_layernorm",
    "post_feedforward_layernorm": "post_feedforward_layernorm",
    "attention.q_layernorm": "self_attn.q_norm",
    "attention.k_layernorm": "self_attn.k_norm",
}
_GATE_UP_DOWN = {"MixtralForCausalLM": ("w1", "w3", "w2")}
_EXPERTS = {"MixtralForCausalLM": "block_sparse_moe"}


@dataclass(frozen=True)
class Checkpoint:
    """config.json and the tensors of all ranks."""

    config: dict[str, Any]
    ranks: list[Rank]

    @classmethod
    def load(cls, folder: Path) -> Checkpoint:
        config = json.loads((folder / "config.json").read_text())
        count = config["mapping"]["tp_size"] * config["mapping"]["pp_size"]
        files = {f"rank{rank}.safetensors" for rank in range(count)}
        assert {path.name for path in folder.iterdir()} == files | {"config.json"}
        return cls(config, [load_file(folder / f"rank{rank}.safetensors") for rank in range(count)])

    def reassembled(self) -> dict[str, torch.Tensor]:
        """The tensors under Hugging Face's names. Gemma's norms still have 1 added, routers are float32."""
        tp, pp = self.config["mapping"]["tp_size"], self.config["mapping"]["pp_size"]
        stages = [[dict(rank) for rank in self.ranks[stage * tp : (stage + 1) * tp]] for stage in range(pp)]
        found = dict(self._outside(stages[0], stages[-1]))
        number = 0
        for stage in stages:
            for local in range(_layers(stage[0])):
                start = f"transformer.layers.{local}."
                shards = [
                    {name.removeprefix(start): rank.pop(name) for name in list(rank) if name.startswith(start)}
                    for rank in stage
                ]
                for name, tensor in self._layer(shards):
                    found[f"model.layers.{number}.{name}"] = tensor
                assert not any(shards), f"a layer holds what nobody knows: {sorted(shards[0])}"
                number += 1
        assert number == self.config["num_hidden_layers"]
        assert not any(rank for stage in stages for rank in stage), "a rank holds tensors that nobody knows"
        return found

    def _outside(self, first: list[Rank], last: list[Rank]) -> Iterator[tuple[str, torch.Tensor]]:
        vocab = self.config["vocab_size"]
        embedding = [rank.pop("transformer.vocab_embedding.weight") for rank in first]
        if not self.config["use_parallel_embedding"]:
            yield "model.embed_tokens.weight", _same(embedding)
        elif self.config["embedding_sharding_dim"] == 0:
            yield "model.embed_tokens.weight", _cut(torch.cat(embedding), vocab, len(first))
        else:
            yield "model.embed_tokens.weight", torch.cat(embedding, dim=1)
        yield "model.norm.weight", _same([rank.pop("transformer.ln_f.weight") for rank in last])
        yield "lm_head.weight", _cut(torch.cat([rank.pop("lm_head.weight") for rank in last]), vocab, len(last))

    def _layer(self, shards: list[Rank]) -> Iterator[tuple[str, torch.Tensor]]:
        for ours, theirs in _NORMS.items():
            if f"{ours}.weight" in shards[0]:
                yield f"{theirs}.weight", _same(_popped(shards, f"{ours}.weight"))
        kinds = [kind for kind in ("weight", "bias") if f"attention.qkv.{kind}" in shards[0]]
        for kind in kinds:
            query, key, value = self._query_key_value(_popped(shards, f"attention.qkv.{kind}"))
            if self._fused:
                yield f"self_attn.qkv_proj.{kind}", torch.cat([query, key, value])
            else:
                yield f"self_attn.q_proj.{kind}", query
                yield f"self_attn.k_proj.{kind}", key
                yield f"self_attn.v_proj.{kind}", value
        yield from _row_parallel(shards, "attention.dense", "self_attn.o_proj")
        if "mlp.router.weight" in shards[0]:
            yield from self._experts(shards)
            return
        if self._fused:
            up, gate = _halves(_popped(shards, "mlp.fc.weight"), dim=0)
            yield "mlp.gate_up_proj.weight", torch.cat([gate, up])
        else:
            for ours, theirs in (("fc", "gate_proj"), ("gate", "up_proj")):
                for kind in ("weight", "bias"):
                    if f"mlp.{ours}.{kind}" in shards[0]:
                        yield f"mlp.{theirs}.{kind}", torch.cat(_popped(shards, f"mlp.{ours}.{kind}"))
        yield from _row_parallel(shards, "mlp.proj", "mlp.down_proj")

    @property
    def _fused(self) -> bool:
        return bool(self.config["architecture"] == "Phi3ForCausalLM")

    def _query_key_value(self, shards: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Every rank has its query heads, then key heads, then value heads; a head may be on neighbours."""
        tp, size = len(shards), self.config["head_size"]
        heads, key_value_heads = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        rows = [heads // tp * size, *[max(1, key_value_heads // tp) * size] * 2]
        parts = list(zip(*(torch.split(shard, rows) for shard in shards), strict=True))
        copies = max(1, tp // key_value_heads)
        once = [[_same(part[start : start + copies]) for start in range(0, tp, copies)] for part in parts[1:]]
        return torch.cat(parts[0]), torch.cat(once[0]), torch.cat(once[1])

    def _experts(self, shards: list[Rank]) -> Iterator[tuple[str, torch.Tensor]]:
        """Tensor rank r has the experts of group r % moe_ep, and of each of them part r // moe_ep."""
        module = _EXPERTS.get(self.config["architecture"], "mlp")
        names = _GATE_UP_DOWN.get(self.config["architecture"], ("gate_proj", "up_proj", "down_proj"))
        parts, groups = self.config["mapping"]["moe_tp_size"], self.config["mapping"]["moe_ep_size"]
        assert parts * groups == len(shards)
        yield f"{module}.gate.weight", _same(_popped(shards, "mlp.router.weight"))
        fused, down = _popped(shards, "mlp.fc.weight"), _popped(shards, "mlp.proj.weight")
        per_rank = self.config["moe"]["num_experts"] // groups
        for group in range(groups):
            ranks = [part * groups + group for part in range(parts)]
            up, gate = _halves([fused[rank] for rank in ranks], dim=1)
            whole = torch.cat([down[rank] for rank in ranks], dim=2)
            assert len(up) == len(whole) == per_rank
            for local in range(per_rank):
                expert = f"{module}.experts.{group * per_rank + local}"
                for name, tensor in zip(names, (gate[local], up[local], whole[local]), strict=True):
                    yield f"{expert}.{name}.weight", tensor


def assert_same_tensors(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    """The same names, shapes, dtypes and bits."""
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert (ours[name].dtype, ours[name].shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(_bits(ours[name]), _bits(tensor)), name


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _layers(rank: Rank) -> int:
    return 1 + max(int(name.split(".")[2]) for name in rank if name.startswith("transformer.layers."))


def _popped(shards: list[Rank], name: str) -> list[torch.Tensor]:
    return [shard.pop(name) for shard in shards]


def _same(shards: Sequence[torch.Tensor]) -> torch.Tensor:
    first = _bits(shards[0])
    assert all(torch.equal(_bits(shard), first) for shard in shards[1:])
    return shards[0]


def _cut(padded: torch.Tensor, rows: int, ranks: int) -> torch.Tensor:
    """The rows, without the zeros that make them equally many on all ranks."""
    assert len(padded) == -(-rows // ranks) * ranks
    assert not padded[rows:].any()
    return padded[:rows]


def _halves(shards: list[torch.Tensor], dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What the first halves of all shards hold together, and the second halves."""
    halves = [shard.chunk(2, dim=dim) for shard in shards]
    return torch.cat([half[0] for half in halves], dim=dim), torch.cat([half[1] for half in halves], dim=dim)


def _row_parallel(shards: list[Rank], ours: str, theirs: str) -> Iterator[tuple[str, torch.Tensor]]:
    yield f"{theirs}.weight", torch.cat(_popped(shards, f"{ours}.weight"), dim=1)
    if f"{ours}.bias" in shards[0]:
        yield f"{theirs}.bias", _same(_popped(shards, f"{ours}.bias"))
