"""In-flight batching: requests join and leave a running batch between two tokens.

One worker thread owns the model. It admits requests while the batch has room, prefills each, then decodes one token
for all of them at a time. A request that fails or is cancelled leaves without disturbing the others.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from builder.runtime.models.words import Word

Logits = npt.NDArray[np.float32]


class Cancelled(Exception):
    """The client went away before its answer was complete."""


class Model(Protocol):
    """What the batcher needs of a language model; V is the vocabulary, B the number of requests."""

    def new_cache(self, capacity: int) -> Any: ...

    def prefill(self, tokens: Sequence[int], cache: Any) -> Logits:
        """Logits [V] of the token that follows."""

    def decode(self, tokens: Sequence[int], caches: Sequence[Any]) -> Logits:
        """Logits [B, V] of the tokens that follow one more token each."""


class Sampler(Protocol):
    def sample(self, logits: Logits) -> int:
        """Choose a token from logits [V]; the sampler remembers what it chose."""


class Listener(Protocol):
    """Hears of one request, from the worker thread."""

    def on_tokens(self, tokens: list[int], log_probs: list[float], *, final: bool) -> None:
        """New tokens, at most one; none where the end token came. `log_probs` only where they were asked for."""

    def on_error(self, error: Exception) -> None:
        """The request ended otherwise; nothing follows."""

    def is_cancelled(self) -> bool: ...


@dataclass
class Generation:
    """One request. The end token itself is not part of the answer; a stop word is, as in TensorRT-LLM."""

    prompt: list[int]
    max_new_tokens: int
    sampler: Sampler
    listener: Listener
    end_id: int | None = None
    stop_words: tuple[Word, ...] = ()
    bad_words: tuple[Word, ...] = ()
    log_probs: bool = False
    generated: list[int] = field(default_factory=list)
    cache: Any = None

    def advance(self, logits: Logits) -> bool:
        """Take the next token from logits [V] and tell the listener; True if more are to come."""
        forbidden = [word[-1] for word in self.bad_words if self._ends_with(word[:-1])]
        if forbidden:
            logits = logits.copy()
            logits[forbidden] = -np.inf
        token = self.sampler.sample(logits)
        if token == self.end_id:
            self.listener.on_tokens([], [], final=True)
            return False
        self.generated.append(token)
        full = len(self.generated) >= self.max_new_tokens
        final = full or any(self._ends_with(word) for word in self.stop_words)
        self.listener.on_tokens([token], [_log_prob(logits, token)] if self.log_probs else [], final=final)
        return not final

    def _ends_with(self, word: Word) -> bool:
        return not word or tuple(self.generated[-len(word) :]) == word


class Batcher:
    def __init__(self, model: Model, max_batch_size: int) -> None:
        self._model = model
        self._max_batch_size = max_batch_size
        self._waiting: deque[Generation] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="batcher", daemon=True)
        self._thread.start()

    def submit(self, generation: Generation) -> None:
        """Queue a request; its listener hears of it from the worker thread. Raises RuntimeError once closed."""
        with self._changed:
            if self._closed:
                raise RuntimeError("the engine is stopping")
            self._waiting.append(generation)
            self._changed.notify()

    def close(self) -> None:
        """Fail what is left and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        running: list[Generation] = []
        while (admitted := self._admit(len(running))) is not None:
            running = [generation for generation in running if not _dropped(generation)]
            running += [generation for generation in admitted if self._start(generation)]
            running = self._step(running)
        for generation in [*running, *self._waiting]:
            _fail(generation, RuntimeError("the engine is stopping"))

    def _admit(self, running: int) -> list[Generation] | None:
        """What may join now; waits while there is nothing at all to do. None once closed."""
        with self._changed:
            self._changed.wait_for(lambda: running or self._waiting or self._closed)
            if self._closed:
                return None
            room = self._max_batch_size - running
            return [self._waiting.popleft() for _ in range(min(room, len(self._waiting)))]

    def _start(self, generation: Generation) -> bool:
        """Prefill and choose the first token; True if more are to come."""
        if _dropped(generation):
            return False
        try:
            generation.cache = self._model.new_cache(len(generation.prompt) + generation.max_new_tokens)
            logits = self._model.prefill(generation.prompt, generation.cache)
        except Exception as error:
            _fail(generation, error)
            return False
        return _advance(generation, logits)

    def _step(self, running: list[Generation]) -> list[Generation]:
        """One more token for all; what is left of them."""
        if not running:
            return []
        try:
            logits = self._model.decode(
                [generation.generated[-1] for generation in running], [generation.cache for generation in running]
            )
        except Exception as error:
            for generation in running:
                _fail(generation, error)
            return []
        return [generation for generation, row in zip(running, logits, strict=True) if _advance(generation, row)]


def _advance(generation: Generation, logits: Logits) -> bool:
    """Take one token; True if more are to come."""
    try:
        return generation.advance(logits)
    except Exception as error:
        _fail(generation, error)
        return False


def _dropped(generation: Generation) -> bool:
    """True if the client went away; it is told so."""
    try:
        cancelled = generation.listener.is_cancelled()
    except Exception as error:
        _fail(generation, error)
        return True
    if cancelled:
        _fail(generation, Cancelled("the request was cancelled"))
    return cancelled


def _fail(generation: Generation, error: Exception) -> None:
    """Tell the listener; one that can't even hear this must not take the others down."""
    with suppress(Exception):
        generation.listener.on_error(error)


def _log_prob(logits: Logits, token: int) -> float:
    highest = logits.max()
    return float(logits[token] - highest - np.log(np.exp(logits - highest).sum()))
