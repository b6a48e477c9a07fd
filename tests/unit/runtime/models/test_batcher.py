"""The batcher on a model that counts: after token t comes t + 1."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from builder.runtime.models.batcher import Batcher, Cancelled, Generation, Logits

VOCABULARY = 1000


class CountingModel:
    def __init__(self) -> None:
        self.batches: list[int] = []
        self.go = threading.Event()
        self.go.set()
        self.fail: set[int] = set()

    def new_cache(self, capacity: int) -> list[int]:
        return [capacity]

    def prefill(self, tokens: Sequence[int], cache: Any) -> Logits:
        if tokens[-1] in self.fail:
            raise ValueError("no")
        return self._after(tokens[-1])

    def decode(self, tokens: Sequence[int], caches: Sequence[Any]) -> Logits:
        self.go.wait(10)
        self.batches.append(len(tokens))
        if self.fail & set(tokens):
            raise ValueError("no")
        return np.stack([self._after(token) for token in tokens])

    def _after(self, token: int) -> Logits:
        logits = np.zeros(VOCABULARY, np.float32)
        logits[token + 1], logits[token + 2] = 2, 1
        return logits


class Greedy:
    def sample(self, logits: Logits) -> int:
        return int(logits.argmax())


class Client:
    """Keeps what it hears; `done` is set by the last word."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.log_probs: list[float] = []
        self.error: Exception | None = None
        self.cancelled = False
        self.started = threading.Event()
        self.done = threading.Event()

    def on_tokens(self, tokens: list[int], log_probs: list[float], *, final: bool) -> None:
        self.tokens += tokens
        self.log_probs += log_probs
        self.started.set()
        if final:
            self.done.set()

    def on_error(self, error: Exception) -> None:
        self.error = error
        self.done.set()

    def is_cancelled(self) -> bool:
        return self.cancelled


@pytest.fixture
def model() -> CountingModel:
    return CountingModel()


def request(client: Client, start: int, count: int = 5, **options: Any) -> Generation:
    return Generation(prompt=[start], max_new_tokens=count, sampler=Greedy(), listener=client, **options)


def answer(model: CountingModel, start: int, count: int = 5, **options: Any) -> Client:
    client = Client()
    batcher = Batcher(model, 4)
    batcher.submit(request(client, start, count, **options))
    assert client.done.wait(10)
    batcher.close()
    return client


def test_an_answer_has_as_many_tokens_as_asked_for(model: CountingModel) -> None:
    assert answer(model, 10, 3).tokens == [11, 12, 13]
    assert answer(model, 10, 1).tokens == [11]


def test_the_end_token_ends_the_answer_and_is_no_part_of_it(model: CountingModel) -> None:
    assert answer(model, 10, end_id=13).tokens == [11, 12]
    assert answer(model, 10, end_id=11).tokens == []


def test_a_stop_word_ends_the_answer_and_is_part_of_it(model: CountingModel) -> None:
    assert answer(model, 10, stop_words=((12, 13), (99,))).tokens == [11, 12, 13]


def test_a_bad_word_is_never_completed(model: CountingModel) -> None:
    assert answer(model, 10, bad_words=((12,),)).tokens == [11, 13, 14, 15, 16]
    assert answer(model, 10, bad_words=((11, 12),)).tokens == [11, 13, 14, 15, 16]


def test_log_probabilities_are_those_of_the_model(model: CountingModel) -> None:
    client = answer(model, 10, 2, log_probs=True)
    expected = 2 - np.log(np.exp(2) + np.exp(1) + VOCABULARY - 2)
    assert client.log_probs == pytest.approx([expected, expected], abs=1e-5)
    assert answer(model, 10, 2).log_probs == []


def test_requests_join_a_running_batch_up_to_its_size(model: CountingModel) -> None:
    model.go.clear()
    batcher = Batcher(model, 2)
    clients = [Client() for _ in range(3)]
    for start, client in enumerate(clients):
        batcher.submit(request(client, 100 * start))
    assert clients[0].started.wait(10)
    model.go.set()
    assert all(client.done.wait(10) for client in clients)
    assert [client.tokens[-1] for client in clients] == [5, 105, 205]
    assert max(model.batches) == 2
    batcher.close()


def test_a_cancelled_request_frees_its_place(model: CountingModel) -> None:
    model.go.clear()
    batcher = Batcher(model, 1)
    first, second = Client(), Client()
    batcher.submit(request(first, 0, 900))
    assert first.started.wait(10)
    batcher.submit(request(second, 100))
    first.cancelled = True
    model.go.set()
    assert second.done.wait(10)
    assert isinstance(first.error, Cancelled)
    assert second.tokens == [101, 102, 103, 104, 105]
    batcher.close()


def test_a_request_cancelled_while_it_waits_never_starts(model: CountingModel) -> None:
    client = Client()
    client.cancelled = True
    batcher = Batcher(model, 1)
    batcher.submit(request(client, 0))
    assert client.done.wait(10)
    assert client.tokens == []
    batcher.close()


def test_a_failing_prefill_fails_its_request_alone(model: CountingModel) -> None:
    model.fail = {50}
    batcher = Batcher(model, 2)
    bad, good = Client(), Client()
    batcher.submit(request(bad, 50))
    batcher.submit(request(good, 0))
    assert bad.done.wait(10)
    assert good.done.wait(10)
    assert str(bad.error) == "no"
    assert good.tokens == [1, 2, 3, 4, 5]
    batcher.close()


def test_after_a_failed_step_later_requests_are_served(model: CountingModel) -> None:
    model.fail = {52}
    batcher = Batcher(model, 2)
    bad, good = Client(), Client()
    batcher.submit(request(bad, 50))
    assert bad.done.wait(10)
    batcher.submit(request(good, 0))
    assert good.done.wait(10)
    assert bad.tokens == [51, 52]
    assert str(bad.error) == "no"
    assert good.tokens == [1, 2, 3, 4, 5]
    batcher.close()


def test_a_client_that_cannot_be_told_disturbs_nobody(model: CountingModel) -> None:
    class Broken(Client):
        def on_tokens(self, tokens: list[int], log_probs: list[float], *, final: bool) -> None:
            raise OSError("gone")

        def on_error(self, error: Exception) -> None:
            raise OSError("gone")

    batcher = Batcher(model, 2)
    good = Client()
    batcher.submit(request(Broken(), 10))
    batcher.submit(request(good, 0))
    assert good.done.wait(10)
    batcher.close()


def test_closing_fails_what_is_left_and_refuses_more(model: CountingModel) -> None:
    model.go.clear()
    batcher = Batcher(model, 1)
    running, waiting = Client(), Client()
    batcher.submit(request(running, 0, 900))
    assert running.started.wait(10)
    batcher.submit(request(waiting, 0))
    threading.Timer(0.05, model.go.set).start()
    batcher.close()
    assert "stopping" in str(running.error)
    assert "stopping" in str(waiting.error)
    with pytest.raises(RuntimeError, match="stopping"):
        batcher.submit(request(Client(), 0))
