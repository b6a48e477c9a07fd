"""What `TritonEngine` would send: the tensors of a request, read back from the message."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from builder.runtime.engine import Guide, Sampling, TritonEngine


def sent(sampling: Sampling | None = None, **options: Any) -> dict[str, Any]:
    """Type and content of every tensor by name; text without its length."""

    async def inputs() -> dict[str, Any]:
        engine = TritonEngine("127.0.0.1:1", (2, 7), None, **options)
        try:
            tensors = engine._inputs([5, 6], 3, sampling or Sampling())
        finally:
            await engine.close()
        return {tensor.name(): (tensor.datatype(), tensor._raw_content) for tensor in tensors}

    return asyncio.run(inputs())


def test_answers_are_streamed_unless_the_models_do_not() -> None:
    assert sent()["streaming"] == ("BOOL", b"\x01")
    assert sent(streaming=False)["streaming"] == ("BOOL", b"\x00")


def test_one_beam_is_not_worth_a_word() -> None:
    assert "beam_width" not in sent()


def test_several_beams_are_asked_for_as_the_engine_demands_and_never_streamed() -> None:
    tensors = sent(beam_width=4)
    assert tensors["beam_width"] == ("INT32", (4).to_bytes(4, "little"))
    assert tensors["streaming"] == ("BOOL", b"\x00")


@pytest.mark.parametrize(
    ("guide", "expected"),
    [
        (None, {}),
        (Guide("json"), {"guided_decoding_guide_type": b"json"}),
        (Guide("regex", "[äb]+"), {"guided_decoding_guide_type": b"regex", "guided_decoding_guide": "[äb]+".encode()}),
    ],
)
def test_a_guide_is_sent_as_text_after_its_length(guide: Guide | None, expected: dict[str, bytes]) -> None:
    tensors = {name: value for name, value in sent(Sampling(guide=guide)).items() if name.startswith("guided")}
    assert tensors == {name: ("BYTES", len(text).to_bytes(4, "little") + text) for name, text in expected.items()}


def test_further_end_tokens_are_stop_words() -> None:
    assert sent()["end_id"] == ("INT32", (2).to_bytes(4, "little"))
    assert (7).to_bytes(4, "little") in sent()["stop_words_list"][1]
