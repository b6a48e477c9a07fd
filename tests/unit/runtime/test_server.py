"""The HTTP API on an engine that says what the test wants."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest
from starlette.testclient import TestClient

from builder.runtime.bundle import Bundle
from builder.runtime.engine import EngineError, Guide, Sampling
from builder.runtime.health import Phase
from builder.runtime.server import MAX_BODY_BYTES, Service, create_app

QUESTION = {"model": "tiny", "messages": [{"role": "user", "content": "What is the capital of France?"}]}


class FakeEngine:
    """Yields `tokens` one by one, up to max_tokens, then raises `error` if there is one."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = list(tokens)
        self.error: EngineError | None = None
        self.requests: list[tuple[list[int], int, Sampling]] = []
        self.closed = 0

    async def generate(
        self, prompt: Sequence[int], max_tokens: int, sampling: Sampling
    ) -> AsyncGenerator[list[int], None]:
        self.requests.append((list(prompt), max_tokens, sampling))
        try:
            for token in self.tokens[:max_tokens]:
                yield [token]
            if self.error:
                raise self.error
        finally:
            self.closed += 1


@pytest.fixture
def service(bundle: Bundle) -> Service:
    service = Service(bundle)
    service.engine = FakeEngine(service.tokenizer.encode_plain("It is Paris. Really."))
    service.health.phase = Phase.SERVING
    return service


@pytest.fixture
def engine(service: Service) -> FakeEngine:
    assert isinstance(service.engine, FakeEngine)
    return service.engine


@pytest.fixture
def client(service: Service) -> TestClient:
    return TestClient(create_app(service), raise_server_exceptions=False)


def events(response: Any) -> list[dict[str, Any]]:
    """The JSON documents of a stream that ends properly."""
    lines = [line for line in response.text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_a_chat_answer_has_openai_s_shape(client: TestClient, engine: FakeEngine) -> None:
    body = client.post("/v1/chat/completions", json=QUESTION).json()
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert body["model"] == "tiny"
    [choice] = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": "It is Paris. Really."}
    assert choice["finish_reason"] == "stop"
    prompt = len(engine.requests[0][0])
    tokens = len(engine.tokens)
    assert body["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": tokens,
        "total_tokens": prompt + tokens,
    }


def test_an_answer_cut_by_max_tokens_says_length(client: TestClient) -> None:
    body = client.post("/v1/chat/completions", json=QUESTION | {"max_tokens": 3}).json()
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 3


def test_an_end_token_in_the_answer_is_not_shown_and_says_stop(client: TestClient, engine: FakeEngine) -> None:
    engine.tokens = [*engine.tokens[:3], 2]
    body = client.post("/v1/chat/completions", json=QUESTION | {"max_tokens": 4}).json()
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == 3


def test_a_stop_string_cuts_the_answer_and_ends_the_work(client: TestClient, engine: FakeEngine) -> None:
    body = client.post("/v1/chat/completions", json=QUESTION | {"stop": ["Paris."]}).json()
    assert body["choices"][0]["message"]["content"] == "It is "
    assert body["choices"][0]["finish_reason"] == "stop"
    assert engine.closed == 1


def test_a_streamed_chat_answer_has_openai_s_shape(client: TestClient) -> None:
    response = client.post("/v1/chat/completions", json=QUESTION | {"stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    chunks = events(response)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == "It is Paris. Really."
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]
    assert "usage" not in chunks[0]


def test_usage_comes_last_where_it_is_asked_for(client: TestClient, engine: FakeEngine) -> None:
    body = QUESTION | {"stream": True, "stream_options": {"include_usage": True}}
    chunks = events(client.post("/v1/chat/completions", json=body))
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == len(engine.tokens)
    assert all(chunk["usage"] is None for chunk in chunks[:-1])


def test_plain_completions_are_answered_whole_and_streamed(client: TestClient) -> None:
    body = {"model": "tiny", "prompt": "The capital of France", "max_tokens": 50}
    whole = client.post("/v1/completions", json=body).json()
    assert whole["object"] == "text_completion"
    assert whole["choices"][0]["text"] == "It is Paris. Really."
    chunks = events(client.post("/v1/completions", json=body | {"stream": True}))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "It is Paris. Really."
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_token_ids_are_taken_as_they_are(client: TestClient, engine: FakeEngine) -> None:
    client.post("/v1/completions", json={"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 2})
    assert engine.requests[0][:2] == ([5, 6, 7], 2)
    refused = client.post("/v1/completions", json={"model": "tiny", "prompt": [401]})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "prompt"


def test_sampling_reaches_the_engine(client: TestClient, engine: FakeEngine) -> None:
    client.post("/v1/chat/completions", json=QUESTION | {"temperature": 0.5, "top_p": 0.9, "seed": 4})
    assert engine.requests[0][2] == Sampling(temperature=0.5, top_p=0.9, seed=4)


def test_an_unknown_model_is_404(client: TestClient) -> None:
    response = client.post("/v1/chat/completions", json=QUESTION | {"model": "other"})
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
    assert "tiny" in response.json()["error"]["message"]


@pytest.mark.parametrize("body", [b"{", b"\xff\xfe", b""])
def test_bad_json_is_400(client: TestClient, body: bytes) -> None:
    response = client.post("/v1/chat/completions", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_json"


def test_a_prompt_longer_than_the_context_is_400_and_never_reaches_the_engine(
    client: TestClient, engine: FakeEngine
) -> None:
    messages = [{"role": "user", "content": "xyz " * 100}]
    response = client.post("/v1/chat/completions", json={"model": "tiny", "messages": messages})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert engine.requests == []


def test_a_model_without_chat_template_points_to_completions(service: Service, client: TestClient) -> None:
    service.chat_template = None
    error = client.post("/v1/chat/completions", json=QUESTION).json()["error"]
    assert error["code"] == "no_chat_template"
    assert "/v1/completions" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_refuses_gives_an_http_error(client: TestClient, engine: FakeEngine, stream: bool) -> None:
    engine.tokens, engine.error = [], EngineError("queue is full")
    response = client.post("/v1/chat/completions", json=QUESTION | {"stream": stream})
    assert response.status_code == 500
    assert response.json()["error"]["message"] == "queue is full"


def test_an_engine_that_fails_midway_is_told_in_the_stream(client: TestClient, engine: FakeEngine) -> None:
    engine.error = EngineError("it died")
    chunks = events(client.post("/v1/chat/completions", json=QUESTION | {"stream": True}))
    assert chunks[-1]["error"]["message"] == "it died"


def test_other_paths_and_methods_are_refused_in_openai_s_shape(client: TestClient) -> None:
    assert client.get("/v1/nothing").json()["error"]["message"] == "Not Found: GET /v1/nothing"
    assert client.get("/v1/chat/completions").status_code == 405
    assert "error" in client.get("/v1/chat/completions").json()


def test_models_are_listed(client: TestClient) -> None:
    body = client.get("/v1/models").json()
    assert [(model["id"], model["max_model_len"]) for model in body["data"]] == [("tiny", 96)]


def test_a_model_may_be_served_under_several_names(bundle: Bundle) -> None:
    service = Service(bundle, ["one", "two"])
    service.engine = FakeEngine([5])
    client = TestClient(create_app(service))
    assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["one", "two"]
    assert client.post("/v1/completions", json={"model": "two", "prompt": "x"}).json()["model"] == "two"


def test_before_the_engine_runs_it_is_live_but_not_ready(service: Service, client: TestClient) -> None:
    service.engine, service.health.phase = None, Phase.STARTING
    assert client.get("/v1/health/live").status_code == 200
    assert client.get("/v1/health/ready").status_code == 503
    response = client.post("/v1/chat/completions", json=QUESTION)
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "not_ready"


def test_it_is_ready_only_if_a_token_can_be_generated(client: TestClient, engine: FakeEngine) -> None:
    tokens, engine.tokens, engine.error = engine.tokens, [], EngineError("the worker died")
    assert client.get("/v1/health/ready").status_code == 503
    engine.tokens, engine.error = tokens, None
    assert client.get("/v1/health/ready").status_code == 200
    assert engine.requests[-1][1] == 1


def test_while_draining_it_is_not_ready_and_takes_no_more(service: Service, client: TestClient) -> None:
    service.health.phase = Phase.DRAINING
    assert client.get("/v1/health/ready").json()["status"] == "draining"
    assert client.get("/v1/health/live").status_code == 200
    assert client.post("/v1/chat/completions", json=QUESTION).status_code == 503


def test_requests_in_flight_are_counted_until_they_are_answered(
    service: Service, client: TestClient, engine: FakeEngine
) -> None:
    counted: list[int] = []
    generate = engine.generate

    def spy(prompt: Sequence[int], max_tokens: int, sampling: Sampling) -> AsyncGenerator[list[int], None]:
        counted.append(service.in_flight)
        return generate(prompt, max_tokens, sampling)

    engine.generate = spy  # type: ignore[method-assign]
    client.post("/v1/chat/completions", json=QUESTION)
    client.post("/v1/chat/completions", json=QUESTION | {"stream": True})
    client.post("/v1/chat/completions", content=b"{")
    assert counted == [1, 1]
    assert service.in_flight == 0


@pytest.mark.parametrize("path", ["/metrics", "/v1/metrics"])
def test_metrics_are_nim_s_and_triton_s(path: str, service: Service, client: TestClient, engine: FakeEngine) -> None:
    service.engine_metrics = lambda: 'nv_inference_count{model="tensorrt_llm"} 3\n'
    client.post("/v1/chat/completions", json=QUESTION)
    text = client.get(path).text
    assert f'generation_tokens_total{{model_name="tiny"}} {len(engine.tokens)}.0' in text
    assert f'prompt_tokens_total{{model_name="tiny"}} {len(engine.requests[0][0])}.0' in text
    assert 'request_finish_total{finished_reason="stop",model_name="tiny"} 1.0' in text
    assert 'num_requests_running{model_name="tiny"} 0.0' in text
    assert 'num_request_max{model_name="tiny"} 4.0' in text
    assert 'nv_inference_count{model="tensorrt_llm"} 3' in text
    for name in ("time_to_first_token", "time_per_output_token", "e2e_request_latency"):
        assert f"{name}_seconds_count" in text
    for name in ("request_prompt_tokens", "request_generation_tokens"):
        assert f'{name}_count{{model_name="tiny"}} 1.0' in text


def test_metadata_and_version_are_served(client: TestClient) -> None:
    assert client.get("/v1/metadata").json()["modelInfo"][0]["shortName"] == "tiny"
    assert client.get("/v1/version").json()["release"]


def test_half_a_character_is_400(client: TestClient) -> None:
    body = b'{"model": "tiny", "prompt": "\\ud800"}'
    response = client.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_json")


def test_json_that_is_nested_without_end_is_400(client: TestClient) -> None:
    response = client.post("/v1/completions", content=b"[" * 100_000)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_json")


def test_a_body_without_end_is_413(client: TestClient) -> None:
    response = client.post("/v1/completions", content=b" " * (MAX_BODY_BYTES + 1))
    assert (response.status_code, response.json()["error"]["code"]) == (413, "body_too_large")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "word " * 100_000}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * 100_000}]}),
    ],
)
def test_what_cannot_fit_is_refused_before_it_is_tokenised(
    client: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    monkeypatch.setattr(service.tokenizer, "_library", None)
    monkeypatch.setattr(service.tokenizer, "_plain", None)
    response = client.post(path, json={"model": "tiny", **body})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_one_model_can_be_asked_for(client: TestClient) -> None:
    assert client.get("/v1/models/tiny").json()["id"] == "tiny"
    assert client.get("/v1/models/other").status_code == 404


GUIDED = QUESTION | {"response_format": {"type": "json_object"}}


def test_a_guide_is_refused_where_the_model_is_served_without(client: TestClient, engine: FakeEngine) -> None:
    refused = client.post("/v1/chat/completions", json=GUIDED)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "response_format"
    assert refused.json()["error"]["code"] == "unsupported_parameter"
    assert not engine.requests


def test_a_guide_reaches_the_engine_where_the_model_is_served_with_it(service: Service, engine: FakeEngine) -> None:
    service.bundle = dataclasses.replace(service.bundle, guided_decoding="xgrammar")
    client = TestClient(create_app(service))
    assert client.post("/v1/chat/completions", json=GUIDED).status_code == 200
    [(_, _, sampling)] = engine.requests
    assert sampling.guide == Guide("json")
