"""How a model is split over ranks: TensorRT-LLM's Mapping (tensorrt_llm/mapping.py)."""

from __future__ import annotations

from dataclasses import dataclass

from builder.reference.fields import Fields

_WITHOUT_EFFECT = {"world_size", "gpus_per_node", "rank", "attn_tp_size"}


@dataclass(frozen=True)
class RankMapping:
    """tp · pp · cp ranks; those of context parallelism share a file, so there are tp · pp files.

    The tensor ranks of a stage are moe_ep groups of whole experts, each cut into moe_tp parts.
    """

    tp: int
    pp: int
    cp: int
    moe_tp: int
    moe_ep: int

    @property
    def files(self) -> int:
        return self.tp * self.pp

    def first_expert(self, tensor_rank: int, experts: int) -> int:
        """The lowest number of the `experts` that a rank holds."""
        return tensor_rank % self.moe_ep * experts

    @classmethod
    def from_fields(cls, fields: Fields) -> RankMapping:
        tp, pp, cp = (fields.integer(f"{kind}_size", 1) for kind in ("tp", "pp", "cp"))
        world_size = fields.integer("world_size", tp * pp * cp)
        if world_size != tp * pp * cp:
            raise fields.error(f"world_size {world_size} is not tp_size {tp} times pp_size {pp} times cp_size {cp}")
        moe_tp, moe_ep = (_or_absent(fields, f"moe_{kind}_size") for kind in ("tp", "ep"))
        moe_ep = moe_ep or (tp // moe_tp if moe_tp else 1)
        moe_tp = moe_tp or tp // moe_ep
        if moe_tp * moe_ep != tp:
            raise fields.error(f"moe_tp_size {moe_tp} times moe_ep_size {moe_ep} is not tp_size {tp}")
        for key in ("moe_cluster_size", "attn_cp_size"):
            if fields.table.get(key, 1) not in (1, -1):
                raise fields.error(f"{key} {fields.table[key]!r} is not implemented; implemented: 1")
        sizes = {f"{kind}_size" for kind in ("tp", "pp", "cp", "moe_tp", "moe_ep", "moe_cluster", "attn_cp")}
        fields.refuse_unknown(sizes | _WITHOUT_EFFECT)
        return cls(tp, pp, cp, moe_tp, moe_ep)


def _or_absent(fields: Fields, key: str) -> int | None:
    """None, too, for -1, by which TensorRT-LLM says that it decides itself."""
    return None if fields.table.get(key) in (None, -1) else fields.integer(key)
