import numpy as np
import pytest

from builder.runtime.models.words import pack_words, unpack_words


def test_words_are_packed_as_tensorrt_llm_wants_them() -> None:
    """The example of TensorRT-LLM's `to_word_list_format`: all ids, then where each word ends, padded with -1."""
    assert pack_words([[5, 6], [7]]).tolist() == [[[5, 6, 7], [2, 3, -1]]]


@pytest.mark.parametrize("words", [(), ((1,),), ((1, 2, 3), (4,), (5, 6))])
def test_words_survive_a_round_trip(words: tuple[tuple[int, ...], ...]) -> None:
    assert unpack_words(pack_words(words)) == words


@pytest.mark.parametrize("ends", [[3, -1], [2, 1], [0, 2], [1, 1]])
def test_ends_that_do_not_rise_within_the_tokens_are_refused(ends: list[int]) -> None:
    with pytest.raises(ValueError, match="rising ends"):
        unpack_words(np.array([[[5, 6], ends]], np.int32))
