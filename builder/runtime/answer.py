"""From the engine's tokens to text: detokenised, cut at stop strings, with the reason why it ended."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

from builder.runtime.engine import Engine, Sampling
from builder.runtime.stop import StopStrings
from builder.runtime.tokenizer import IncrementalDetokenizer, Tokenizer

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class Piece:
    """A piece of an answer; `tokens` new ones are behind it, and the last piece says why it ended."""

    text: str
    tokens: int
    finish_reason: FinishReason | None = None


async def answer(
    engine: Engine,
    tokenizer: Tokenizer,
    end_ids: Collection[int],
    prompt: Sequence[int],
    max_tokens: int,
    sampling: Sampling,
    stops: Sequence[str],
) -> AsyncGenerator[Piece, None]:
    """Generate an answer piece by piece. Closing it cancels the request. Raises EngineError.

    An engine that leaves the end token out shows it by stopping early.
    """
    text = IncrementalDetokenizer(tokenizer)
    stop = StopStrings(stops)
    count = 0
    async with aclosing(engine.generate(prompt, max_tokens, sampling)) as pieces:
        async for ids in pieces:
            new = list(ids)
            ended = next((index for index, token in enumerate(new) if token in end_ids), None)
            new = new[:ended]
            count += len(new)
            shown = stop.push(text.push(new))
            if stop.stopped:
                yield Piece(shown, len(new), "stop")
                return
            yield Piece(shown, len(new))
            if ended is not None:
                max_tokens = count + 1
                break
    rest = stop.push(text.flush())
    rest += stop.flush()
    yield Piece(rest, 0, "stop" if stop.stopped or count < max_tokens else "length")
