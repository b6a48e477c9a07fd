"""TensorRT-LLM's tensor for stop and bad words: INT32 [1, 2, n].

Row 0 holds the token ids of all words one after another, row 1 where each word ends, padded with -1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Word = tuple[int, ...]


def pack_words(words: Sequence[Sequence[int]]) -> npt.NDArray[np.int32]:
    """Words as token ids → [1, 2, n]."""
    tokens = [token for word in words for token in word]
    ends = np.cumsum([len(word) for word in words], dtype=np.int32)
    packed = np.full((1, 2, len(tokens)), -1, dtype=np.int32)
    packed[0, 0] = tokens
    packed[0, 1, : len(ends)] = ends
    return packed


def unpack_words(packed: npt.NDArray[np.int32]) -> tuple[Word, ...]:
    """[1, 2, n] → words. Raises ValueError where the ends do not rise within the tokens."""
    tokens, ends = packed.reshape(2, -1).tolist()
    ends = [end for end in ends if end >= 0]
    if ends != sorted(set(ends)) or any(not 0 < end <= len(tokens) for end in ends):
        raise ValueError("the second row of a words list must hold rising ends of words, padded with -1")
    return tuple(tuple(tokens[start:end]) for start, end in zip([0, *ends], ends, strict=False))
