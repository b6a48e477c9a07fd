"""A tensor of a rank, and the parts of the source that it is made of."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from builder.model.safetensors import DTYPE_BITS

Rule = Literal["copy", "plus_one", "maximum", "same", "same_or_ones", "rescaled", "transposed", "gptq"]
"""How slices become a tensor:

    copy          one after another along dimension 0, in the tensor's dtype
    plus_one      the same with 1 added to each value in float32, as transformers does when it runs (norms of Gemma)
    maximum       one number, the largest of each group: the scale of what is fused
    same          what all slices must hold alike: a scale that can't be brought to another
    same_or_ones  the same, or ones where the source has no such tensor
    rescaled      FP8 weights, each slice brought from its own scale to the largest of its group; unchanged where equal
    transposed    columns become rows
    gptq          eight 4-bit values along the inputs, offset by 8, become two's complement, two along the outputs
"""


@dataclass(frozen=True)
class Slice:
    """`source[start:stop]` along dimension `dim` of a Hugging Face tensor that has `shape` as a whole.

    `dtype` is what it must be stored in: None for the model's own, "float" for whichever float (scales). `scale` names
    the tensor with the scale of FP8 weights that have to be rescaled. `beside` are tensors of the same linear that must
    hold what the format implies: of GPTQ the zero points and the order of the inputs.
    """

    source: str
    shape: tuple[int, ...]
    dim: int
    start: int
    stop: int
    dtype: str | None = None
    scale: str | None = None
    beside: tuple[Slice, ...] = ()

    @classmethod
    def whole(cls, source: str, shape: tuple[int, ...], dtype: str | None = None) -> Slice:
        return cls(source, shape, 0, 0, shape[0] if shape else 1, dtype)


@dataclass(frozen=True)
class RankTensor:
    """A tensor of one rank: what `rule` makes of `slices`, then `padding_rows` rows of zeros.

    `dtype` is spelt as safetensors does ("BF16"). `groups`: into how many groups of neighbours the slices fall, each of
    which has a scale of its own (experts).
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    slices: tuple[Slice, ...]
    padding_rows: int = 0
    rule: Rule = "copy"
    groups: int = 1

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * DTYPE_BITS[self.dtype] // 8
