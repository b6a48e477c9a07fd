"""The tensors of a TensorRT-LLM checkpoint: what each rank holds, and which parts of the source make it.

One table for all who need it: the converter executes it and the plan sums it up. (The reference model has a table of
its own, written from TensorRT-LLM's side, so that each checks the other.)

    split.py      Split: tensor, pipeline, context and expert parallelism, and which file is whose
    tensors.py    RankTensor, made of Slices of the source by a rule
    linears.py    a linear in each of the formats in which weights are published
    table.py      rank_tensors: embedding, layers, head
    coverage.py   which models the table is for
"""

from builder.model.layout.coverage import not_covered, require_covered
from builder.model.layout.split import Split
from builder.model.layout.table import checkpoint_bytes, excluded_modules, rank_tensors, source_tensors
from builder.model.layout.tensors import RankTensor, Rule, Slice

__all__ = [
    "RankTensor",
    "Rule",
    "Slice",
    "Split",
    "checkpoint_bytes",
    "excluded_modules",
    "not_covered",
    "rank_tensors",
    "require_covered",
    "source_tensors",
]
