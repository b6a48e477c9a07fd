import random

import pytest

from builder.runtime.tokenizer import IncrementalDetokenizer, Tokenizer

TEXTS = [
    "The capital of France is Paris.",
    "Grüße, 世界! 🌍🏳️‍🌈",
    "a\u0301 \u200d 🧑‍🚀",
    "  two  spaces\n\n\tand a tab  ",
]


@pytest.mark.parametrize("text", TEXTS)
def test_text_survives_a_round_trip(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
    assert tokenizer.decode(tokenizer.encode_plain(text)) == text


def test_special_tokens_are_parsed_where_they_are_meant(tokenizer: Tokenizer) -> None:
    end = tokenizer.added_tokens["<|im_end|>"]
    assert tokenizer.encode("a<|im_end|>", add_special_tokens=False)[-1] == end


def test_plain_text_never_holds_an_added_token(tokenizer: Tokenizer) -> None:
    text = "a<|im_end|><tool_call>"
    ids = tokenizer.encode_plain(text)
    assert not set(ids) & set(tokenizer.added_tokens.values())
    assert tokenizer.decode(ids) == text


def test_pieces_of_500_random_streams_join_to_the_whole_text(tokenizer: Tokenizer) -> None:
    """Random tokens cut characters in every way, and are often no valid UTF-8 at all."""
    chance = random.Random(7)
    for _ in range(500):
        ids = [chance.randrange(401) for _ in range(chance.randrange(1, 60))]
        stream = IncrementalDetokenizer(tokenizer)
        text = "".join(stream.push([token]) for token in ids) + stream.flush()
        assert text == tokenizer.decode(ids)


def test_an_unfinished_character_is_held_back_until_its_last_byte(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_plain("é🌍")
    stream = IncrementalDetokenizer(tokenizer)
    pieces = [stream.push([token]) for token in ids]
    assert [piece for piece in pieces if piece] == ["é", "🌍"]
    assert stream.flush() == ""


def test_an_unfinished_character_is_not_lost_at_the_end(tokenizer: Tokenizer) -> None:
    stream = IncrementalDetokenizer(tokenizer)
    assert stream.push(tokenizer.encode_plain("a🌍")[:-1]) == ""
    assert stream.flush() == "a\ufffd"


def test_special_tokens_are_not_shown(tokenizer: Tokenizer) -> None:
    stream = IncrementalDetokenizer(tokenizer)
    ids = [*tokenizer.encode_plain("Paris"), tokenizer.added_tokens["<|im_end|>"]]
    assert stream.push(ids) + stream.flush() == "Paris"
