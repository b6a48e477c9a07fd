"""How a model is split over ranks, in the terms of TensorRT-LLM's Mapping (tensorrt_llm/mapping.py)."""

from __future__ import annotations

from dataclasses import dataclass

from builder.errors import PlanRefused
from builder.model.parallelism import check_parallelism
from builder.model.spec import ModelSpec


@dataclass(frozen=True)
class Split:
    """tp · pp · cp ranks. Context-parallel ranks hold the same weights and share a file, so there are tp · pp files.

    The tp ranks of a stage are moe_ep groups of whole experts, each cut into moe_tp parts; `moe_tp` 0 stands for
    tp / moe_ep. With `use_parallel_embedding` the embedding is split as well: its rows (dim 0) or its columns (dim 1).
    """

    tp: int = 1
    pp: int = 1
    cp: int = 1
    moe_tp: int = 0
    moe_ep: int = 1
    use_parallel_embedding: bool = False
    embedding_sharding_dim: int = 0

    def __post_init__(self) -> None:
        if self.moe_tp == 0:
            object.__setattr__(self, "moe_tp", max(1, self.tp // self.moe_ep))

    @property
    def files(self) -> int:
        return self.tp * self.pp

    @property
    def world_size(self) -> int:
        return self.tp * self.pp * self.cp

    def check(self, spec: ModelSpec) -> None:
        """PlanRefused if the model can't be split like this."""
        found = spec.quantization
        check_parallelism(spec, self.tp, self.pp, self.moe_tp, found.group_size if found else None)
        if self.moe_tp * self.moe_ep != self.tp:
            raise PlanRefused(
                f"moe_tp_size {self.moe_tp} times moe_ep_size {self.moe_ep} isn't tp_size {self.tp}",
                why="every tensor rank holds one part of one group of experts",
                code="MOE_SPLIT",
            )
        counts = {layer.experts.count for layer in spec.layers if layer.experts}
        if bad := sorted(count for count in counts if count % self.moe_ep):
            raise PlanRefused(
                f"{bad[0]} experts can't be shared by {self.moe_ep} expert-parallel groups evenly",
                hint="use an expert-parallel size that divides the number of experts",
                code="MOE_SPLIT",
            )
        if self.use_parallel_embedding and self.embedding_sharding_dim == 1 and spec.hidden_size % self.tp:
            raise PlanRefused(
                f"hidden_size {spec.hidden_size} is not a multiple of {self.tp}",
                why="embedding_sharding_dim 1 cuts the embedding into columns",
                hint="use embedding_sharding_dim 0",
                code="EMBEDDING_SPLIT",
            )
        if spec.model_type == "phi3" and self.pp > 1:
            raise PlanRefused(
                "Phi-3 can't be split into pipeline stages",
                why="TensorRT-LLM's Phi3Model has none (tensorrt_llm/models/phi3/model.py)",
                hint="use tensor parallelism",
                code="PP_UNSUPPORTED",
            )
