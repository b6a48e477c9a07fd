"""GPTQ's packed weights in the form of AWQ's: the same numbers, stored along the outputs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from builder.checkpoint.floats import Array
from builder.checkpoint.source import SourceWeights, part_of
from builder.errors import SourceError
from builder.model.layout import Slice

_PER_WORD = 8
_OUTPUTS = 256
"""Outputs that are repacked at once."""

_SYMMETRIC = (0x77777777, 0x88888888)
"""Eight zero points of 8, as the first version of the format stores them (one less), and as the second does."""


def repacked(weights: SourceWeights, part: Slice) -> Iterator[Array]:
    """Blocks of I8 [outputs / 2, inputs], one after another: what a rank has of one linear's `qweight`.

    SourceError for zero points other than 8, and for inputs that aren't in their order.
    """
    _check(weights, part)
    words = part_of(weights.array(part.source), part)
    for first in range(0, words.shape[1], _OUTPUTS):
        block = np.ascontiguousarray(words[:, first : first + _OUTPUTS].T).view(np.uint8)
        values = np.empty((len(block), block.shape[1] * 2), dtype=np.uint8)
        values[:, 0::2] = block & 15  # little-endian: the first value of a word is the lower half of its first byte
        values[:, 1::2] = block >> 4
        values ^= 8  # q - 8 in two's complement of 4 bits
        yield values[0::2] | values[1::2] << 4


def _check(weights: SourceWeights, part: Slice) -> None:
    zeros, order = part.beside
    if not np.isin(weights.array(zeros.source), _SYMMETRIC).all():
        raise _refused(weights, zeros.source, "zero points other than 8", "a checkpoint with sym: true")
    (inputs,), groups = order.shape, zeros.shape[0]
    if not np.array_equal(weights.array(order.source), np.arange(inputs) // (inputs // groups)):
        raise _refused(weights, order.source, "inputs that aren't in their order", "a checkpoint with desc_act: false")


def _refused(weights: SourceWeights, name: str, what: str, instead: str) -> SourceError:
    return SourceError(
        f"{name} has {what}",
        where=weights.tensors[name].file,
        why="the quantisation config says otherwise, and this form of the weights has no place for them",
        hint=f"use {instead}, or the unquantised model",
        code="GPTQ_LAYOUT",
    )
