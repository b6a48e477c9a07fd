"""The generated repository in a real Triton: all five models, through each of its protocols."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import queue
import shutil
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc

from builder.plan.serving import ServingSettings
from builder.runtime.bundle import Bundle
from builder.runtime.engine import Guide, Sampling, TritonEngine
from builder.runtime.launcher import Triton, find_triton
from builder.runtime.models.words import pack_words
from builder.runtime.tokenizer import Tokenizer
from builder.triton.configs import MODELS
from builder.triton.repository import write_repository
from tests.integration.bundle import CHAT

PROMPT = "The capital of France is"
TYPES = {"int32": "INT32", "float32": "FP32", "uint64": "UINT64", "bool": "BOOL", "object": "BYTES", "float16": "FP16"}


@contextmanager
def running(root: Path, cache: Path) -> Iterator[Triton]:
    server = Triton(Bundle.open(root), cache, find_triton())
    try:
        while not server.is_ready():
            assert server.poll() is None, server.failure("Triton did not start").render()
            time.sleep(0.05)
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def triton(smollm2_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    with running(smollm2_bundle, tmp_path_factory.mktemp("cache")) as server:
        yield server


@pytest.fixture(scope="module")
def tokenizer(smollm2_bundle: Path) -> Tokenizer:
    return Tokenizer(smollm2_bundle / "tokenizer")


def rewritten(bundle: Path, root: Path, **changes: Any) -> Path:
    """A served tree with the engine and tokenizer of another one, and a model repository with other settings."""
    known = json.loads((bundle / "serving.json").read_text())
    names = ("unit", "served_model_name", "family", "backend", "max_batch_size", "max_input_len", "max_seq_len")
    names += ("max_beam_width", "streaming", "guided_decoding", "vocab_size", "bos_token_id", "pad_token_id")
    settings: dict[str, Any] = {name: known[name] for name in names} | {
        "eos_token_ids": tuple(known["eos_token_ids"]),
        "kv_cache_free_gpu_mem_fraction": 0.9,
        "max_tokens_in_paged_kv_cache": None,
        "kv_cache_host_memory_bytes": 0,
        "enable_kv_cache_reuse": False,
        "enable_chunked_context": False,
        "batch_scheduler_policy": "guaranteed_no_evict",
        "max_queue_size": 0,
        "max_queue_delay_microseconds": 0,
        "decoding_mode": None,
        "lookahead": None,
        "lora_cache": None,
    }
    tokenizer = bundle / "tokenizer"
    files = [path.relative_to(tokenizer).as_posix() for path in tokenizer.rglob("*") if path.is_file()]
    write_repository(ServingSettings(**settings | changes), tokenizer, files, root)
    shutil.copytree(bundle / "engine", root / "engine", copy_function=os.link)
    return root


def generate(triton: Triton, model: str, **inputs: Any) -> tuple[int, dict[str, Any]]:
    """POST …/generate: the status and the body."""
    status, text = post(triton, f"/v2/models/{model}/generate", inputs)
    return status, json.loads(text)


def generate_stream(triton: Triton, model: str, **inputs: Any) -> list[dict[str, Any]]:
    """POST …/generate_stream: the bodies of its events."""
    _, text = post(triton, f"/v2/models/{model}/generate_stream", inputs)
    return [json.loads(line.removeprefix("data:")) for line in text.splitlines() if line.startswith("data:")]


def post(triton: Triton, path: str, body: dict[str, Any]) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", triton.http_port, timeout=120)
    try:
        connection.request("POST", path, json.dumps(body))
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


class Stream:
    """One gRPC stream; `responses` yields the outputs of each response until the final one."""

    def __init__(self, triton: Triton) -> None:
        self._client = grpc.InferenceServerClient(triton.grpc_url)
        self._heard: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self._client.start_stream(callback=lambda result, error: self._heard.put((result, error)))

    def send(self, model: str, request_id: str = "", **inputs: Any) -> None:
        tensors = []
        for name, value in inputs.items():
            tensor = grpc.InferInput(name, list(value.shape), TYPES[value.dtype.name])
            tensor.set_data_from_numpy(value)
            tensors.append(tensor)
        self._client.async_stream_infer(model, tensors, request_id=request_id, enable_empty_final_response=True)

    def responses(self) -> Iterator[dict[str, Any]]:
        """Raises RuntimeError with the model's message."""
        while True:
            result, error = self._heard.get(timeout=120)
            if error is not None:
                raise RuntimeError(error.message())
            response = result.get_response()
            if response.outputs:
                yield {output.name: result.as_numpy(output.name) for output in response.outputs}
            if response.parameters["triton_final_response"].bool_param:
                return

    def close(self) -> None:
        self._client.stop_stream()
        self._client.close()


def engine_inputs(ids: list[int], length: int, *, streaming: bool = False, **more: Any) -> dict[str, Any]:
    return {
        "input_ids": np.array([ids], np.int32),
        "input_lengths": np.array([[len(ids)]], np.int32),
        "request_output_len": np.array([[length]], np.int32),
        "end_id": np.array([[2]], np.int32),
        "streaming": np.array([[streaming]]),
        **more,
    }


def ask_engine(triton: Triton, ids: list[int], length: int, **more: Any) -> list[dict[str, Any]]:
    stream = Stream(triton)
    stream.send("tensorrt_llm", **engine_inputs(ids, length, **more))
    try:
        return list(stream.responses())
    finally:
        stream.close()


def tokens_of(responses: list[dict[str, Any]]) -> list[int]:
    return [token for response in responses for token in response["output_ids"].flatten().tolist()]


def test_all_five_models_load_as_they_were_written(triton: Triton) -> None:
    client = grpc.InferenceServerClient(triton.grpc_url)
    assert [client.is_model_ready(name) for name in MODELS] == [True] * 5
    engine = client.get_model_config("tensorrt_llm").config
    assert engine.model_transaction_policy.decoupled
    ragged = {tensor.name for tensor in engine.input if tensor.allow_ragged_batch}
    assert {"input_ids", "stop_words_list"} <= ragged
    client.close()


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_text_in_gives_text_out(model: str, triton: Triton) -> None:
    status, body = generate(triton, model, text_input=PROMPT, max_tokens=6)
    assert status == 200
    assert "Paris" in body["text_output"]


def test_a_chat_prompt_is_answered(triton: Triton) -> None:
    _, body = generate(triton, "tensorrt_llm_bls", text_input=CHAT, max_tokens=20)
    assert body["text_output"] == "The capital of France is Paris."


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_streamed_pieces_join_to_the_whole_text(model: str, triton: Triton) -> None:
    _, whole = generate(triton, model, text_input=CHAT, max_tokens=20)
    pieces = [
        event["text_output"] for event in generate_stream(triton, model, text_input=CHAT, max_tokens=20, stream=True)
    ]
    assert len(pieces) > 5
    assert "".join(pieces) == whole["text_output"]


def test_bls_streams_whole_characters_only(triton: Triton) -> None:
    """Emoji and Chinese characters have several tokens each; a piece never ends inside one."""
    text = "Repeat after me: 🌍🚀🎉 世界 🌍🚀🎉 世界 🌍🚀🎉 世界 🌍🚀🎉"
    events = generate_stream(triton, "tensorrt_llm_bls", text_input=text, max_tokens=24, stream=True)
    _, whole = generate(triton, "tensorrt_llm_bls", text_input=text, max_tokens=24)
    pieces = [event["text_output"] for event in events]
    assert "".join(pieces) == whole["text_output"]
    assert any(ord(character) > 0x2000 for character in whole["text_output"])
    assert not any("\ufffd" in piece for piece in pieces[:-1])


def test_the_ensemble_answers_over_grpc_too(triton: Triton) -> None:
    stream = Stream(triton)
    stream.send(
        "ensemble",
        text_input=np.array([[PROMPT.encode()]], np.object_),
        max_tokens=np.array([[6]], np.int32),
        stream=np.array([[True]]),
    )
    text = b"".join(response["text_output"].flat[0] for response in stream.responses())
    stream.close()
    assert b"Paris" in text


def test_the_engine_streams_the_tokens_that_it_gives_at_once(triton: Triton, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(CHAT, add_special_tokens=False)
    [whole] = ask_engine(triton, ids, 20)
    streamed = ask_engine(triton, ids, 20, streaming=True)
    assert tokens_of(streamed) == tokens_of([whole])
    assert tokenizer.decode(tokens_of([whole])) == "The capital of France is Paris."
    assert whole["sequence_length"].flat[0] == len(tokens_of([whole]))
    assert [response["sequence_length"].flat[0] for response in streamed] == [1] * (len(streamed) - 1) + [0]


def test_the_prompt_comes_along_where_it_is_asked_for(triton: Triton, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(PROMPT, add_special_tokens=False)
    [response] = ask_engine(triton, ids, 3, exclude_input_in_output=np.array([[False]]))
    assert tokens_of([response])[: len(ids)] == ids
    _, body = generate(triton, "ensemble", text_input=PROMPT, max_tokens=3, exclude_input_in_output=False)
    assert body["text_output"].startswith(PROMPT)


def test_stop_and_bad_words_are_obeyed(triton: Triton, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(PROMPT, add_special_tokens=False)
    paris = tokenizer.encode(" Paris", add_special_tokens=False)
    [stopped] = ask_engine(triton, ids, 20, stop_words_list=pack_words([paris]))
    assert tokens_of([stopped])[-len(paris) :] == paris
    [without] = ask_engine(triton, ids, 20, bad_words_list=pack_words([paris]))
    assert " Paris" not in tokenizer.decode(tokens_of([without]))
    _, body = generate(triton, "tensorrt_llm_bls", text_input=PROMPT, max_tokens=20, stop_words=[" Paris"])
    assert body["text_output"].endswith(" Paris")


def test_log_probabilities_and_counts_come_where_they_are_asked_for(triton: Triton) -> None:
    wanted = {"return_log_probs": True, "return_num_input_tokens": True, "return_num_output_tokens": True}
    _, engine = generate(triton, "ensemble", text_input=PROMPT, max_tokens=4, **wanted)
    _, bls = generate(triton, "tensorrt_llm_bls", text_input=PROMPT, max_tokens=4, **wanted)
    for body in (engine, bls):
        assert body["num_output_tokens"] == len(body["output_log_probs"]) == 4
        assert body["cum_log_probs"] == pytest.approx(sum(body["output_log_probs"]), abs=1e-4)
        assert all(value <= 0 for value in body["output_log_probs"])


def test_a_seed_makes_sampling_repeatable(triton: Triton) -> None:
    def sample(seed: int) -> str:
        options = {"temperature": 1.0, "top_p": 0.95, "top_k": 50, "seed": seed}
        _, body = generate(triton, "ensemble", text_input="Once upon a time", max_tokens=12, **options)
        text: str = body["text_output"]
        return text

    assert sample(1) == sample(1)
    assert len({sample(seed) for seed in range(4)}) > 1


def test_eight_at_a_time_give_what_one_after_another_gives(triton: Triton, tokenizer: Tokenizer) -> None:
    places = ["France", "Italy", "Spain", "Japan", "Egypt", "Peru", "Cuba", "Iran"]
    texts = [f"The capital of {place} is" for place in places]
    prompts = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    alone = [tokens_of(ask_engine(triton, ids, 12)) for ids in prompts]
    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(lambda ids: tokens_of(ask_engine(triton, ids, 12, streaming=True)), prompts))
    assert together == alone


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"max_tokens": 5000}, "max_seq_len"),
        ({"max_tokens": 0}, "request_output_len"),
        ({"text_input": ""}, "empty"),
        ({"text_input": "a b " * 1200}, "max_input_len"),
        ({"beam_width": 2}, "beam_width"),
        ({"temperature": -1.0}, "temperature"),
        ({"embedding_bias_words": ["a"], "embedding_bias_weights": [1.0]}, "not supported"),
    ],
)
@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_bad_requests_are_answered_with_the_reason(
    model: str, inputs: dict[str, Any], message: str, triton: Triton
) -> None:
    body = {"text_input": PROMPT, "max_tokens": 5} | inputs
    status, answer = generate(triton, model, **body)
    assert status == 400
    assert message in answer["error"]
    events = generate_stream(triton, model, **body, stream=True)
    assert "error" in events[-1]


def test_words_that_are_no_words_are_refused_by_the_engine(triton: Triton) -> None:
    bad = np.array([[[5, 6], [2, 1]]], np.int32)
    with pytest.raises(RuntimeError, match="rising ends"):
        ask_engine(triton, [5], 3, stop_words_list=bad)


def test_a_stopped_request_frees_its_place(triton: Triton) -> None:
    """Eight requests of two thousand tokens would keep the batch full for minutes."""
    stream = Stream(triton)
    ids = [uuid.uuid4().hex for _ in range(8)]
    for request_id in ids:
        stream.send("tensorrt_llm", request_id, **engine_inputs([5, 6], 2000, streaming=True))
    next(stream.responses())
    for request_id in ids:
        stream.send("tensorrt_llm", request_id, **engine_inputs([5], 1, stop=np.array([[True]])))
    assert len(tokens_of(ask_engine(triton, [5, 6], 4))) == 4
    stream.close()


def test_clients_of_bls_that_go_away_free_their_places_and_threads(triton: Triton) -> None:
    """Five times eight answers of two thousand tokens, where the engine takes eight at a time and BLS 32."""
    body = json.dumps({"text_input": PROMPT, "max_tokens": 2000, "stream": True})
    for _ in range(5):
        connections = [http.client.HTTPConnection("127.0.0.1", triton.http_port) for _ in range(8)]
        for connection in connections:
            connection.request("POST", "/v2/models/tensorrt_llm_bls/generate_stream", body)
        responses = [connection.getresponse() for connection in connections]
        for response, connection in zip(responses, connections, strict=True):
            response.readline()
            response.close()
            connection.close()
    _, answer = generate(triton, "tensorrt_llm_bls", text_input=PROMPT, max_tokens=6)
    assert "Paris" in answer["text_output"]


BREAKS_MIDWAY = """
from builder.reference.model import ReferenceModel

decode = ReferenceModel.decode


def breaks(self, tokens, caches):
    if any(cache.capacity > 20 and cache.length > 9 for cache in caches):
        raise MemoryError("no memory for another token")
    return decode(self, tokens, caches)


ReferenceModel.decode = breaks
"""


@pytest.fixture(scope="module")
def breaking_triton(smollm2_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    """Its engine breaks in the middle of answers of 20 tokens."""
    root = tmp_path_factory.mktemp("breaking") / "bundle"
    shutil.copytree(smollm2_bundle, root, copy_function=os.link)
    code = root / "models/tensorrt_llm/1/model.py"
    text = code.read_text()
    code.unlink()
    code.write_text(text + BREAKS_MIDWAY)
    with running(root, tmp_path_factory.mktemp("cache")) as server:
        yield server


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_an_engine_that_breaks_midway_ends_the_stream_with_an_error(model: str, breaking_triton: Triton) -> None:
    for _ in range(2):
        events = generate_stream(breaking_triton, model, text_input=PROMPT, max_tokens=20, stream=True)
        assert len(events) > 3
        assert "error" in events[-1]
        status, body = generate(breaking_triton, model, text_input=PROMPT, max_tokens=20)
        assert status != 200 or "error" in body
        _, body = generate(breaking_triton, model, text_input=PROMPT, max_tokens=5)
        assert "Paris" in body["text_output"]


def test_an_engine_that_breaks_midway_tells_its_own_client_why(breaking_triton: Triton, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(PROMPT, add_special_tokens=False)
    for streaming in (True, False):
        with pytest.raises(RuntimeError, match="no memory for another token"):
            ask_engine(breaking_triton, ids, 20, streaming=streaming)
    assert len(tokens_of(ask_engine(breaking_triton, ids, 4))) == 4


@pytest.fixture(scope="module")
def whole_triton(smollm2_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    """Of a recipe with `streaming: false`: no model is decoupled."""
    root = rewritten(smollm2_bundle, tmp_path_factory.mktemp("whole") / "bundle", streaming=False)
    with running(root, tmp_path_factory.mktemp("cache")) as server:
        yield server


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_without_streaming_a_request_has_one_answer_and_plain_calls_suffice(model: str, whole_triton: Triton) -> None:
    client = grpc.InferenceServerClient(whole_triton.grpc_url)
    text, most = grpc.InferInput("text_input", [1, 1], "BYTES"), grpc.InferInput("max_tokens", [1, 1], "INT32")
    text.set_data_from_numpy(np.array([[PROMPT.encode()]], np.object_))
    most.set_data_from_numpy(np.array([[6]], np.int32))
    answer = client.infer(model, [text, most])  # a call that decoupled models refuse
    assert b"Paris" in answer.as_numpy("text_output").flat[0]
    assert not client.get_model_config("tensorrt_llm").config.model_transaction_policy.decoupled
    client.close()


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_without_streaming_a_client_that_wants_it_is_told(model: str, whole_triton: Triton) -> None:
    status, body = generate(whole_triton, model, text_input=PROMPT, max_tokens=6, stream=True)
    assert status == 400
    assert "decoupled" in body["error"]
    _, body = generate(whole_triton, model, text_input=PROMPT, max_tokens=6)
    assert "Paris" in body["text_output"]


def test_without_streaming_requests_still_share_the_batch(whole_triton: Triton) -> None:
    def ask(_: int) -> str:
        _, body = generate(whole_triton, "tensorrt_llm_bls", text_input=CHAT, max_tokens=20)
        text: str = body["text_output"]
        return text

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(ask, range(8))) == {"The capital of France is Paris."}


def test_without_streaming_a_stopped_request_frees_its_place_and_hears_of_it(whole_triton: Triton) -> None:
    stream = Stream(whole_triton)
    ids = [uuid.uuid4().hex for _ in range(8)]
    endless = {"min_tokens": np.array([[2000]], np.int32)}
    for request_id in ids:
        stream.send("tensorrt_llm", request_id, **engine_inputs([5, 6], 2000, **endless))
    for request_id in ids:
        stream.send("tensorrt_llm", request_id, **engine_inputs([5], 1, stop=np.array([[True]])))
    heard = [next_or_error(stream) for _ in range(16)]
    assert sorted(heard) == [""] * 8 + ["the request was cancelled"] * 8
    assert len(tokens_of(ask_engine(whole_triton, [5, 6], 4))) == 4
    stream.close()


def next_or_error(stream: Stream) -> str:
    """What one more answer has to complain about."""
    try:
        list(stream.responses())
    except RuntimeError as error:
        return str(error)
    return ""


def ask_as_server(triton: Triton, bundle: Path, prompt: list[int], most: int, sampling: Sampling) -> list[list[int]]:
    """The pieces of an answer, as the HTTP server gets them."""
    opened = Bundle.open(bundle)

    async def pieces() -> list[list[int]]:
        engine = TritonEngine(
            triton.grpc_url,
            opened.eos_token_ids,
            opened.pad_token_id,
            streaming=opened.streaming,
            beam_width=opened.max_beam_width,
        )
        try:
            return [piece async for piece in engine.generate(prompt, most, sampling)]
        finally:
            await engine.close()

    return asyncio.run(pieces())


def test_without_streaming_the_http_server_gets_its_answer_in_one_piece(
    whole_triton: Triton, smollm2_bundle: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    bundle = rewritten(smollm2_bundle, tmp_path / "bundle", streaming=False)
    prompt = tokenizer.encode(CHAT, add_special_tokens=False)
    [piece] = ask_as_server(whole_triton, bundle, prompt, 20, Sampling(temperature=0))
    assert tokenizer.decode(piece) == "The capital of France is Paris."


REPEATS_ITS_REQUEST = """
import numpy as np
import triton_python_backend_utils as pb_utils

from builder.runtime.models.tensors import optional_input, parameter
from builder.runtime.tokenizer import Tokenizer

WORDS = ("guided_decoding_guide_type", "guided_decoding_guide")
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def initialize(self, args):
        import json
        from pathlib import Path

        engine = parameter(json.loads(args["model_config"]), "gpt_model_path")
        self._tokenizer = Tokenizer(Path(engine).parent / "tokenizer")

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            said = [optional_input(request, name, np.array([[b"-"]])).flat[0].decode() for name in WORDS]
            said += [str(optional_input(request, "beam_width", np.array([[1]])).item())]
            said += [str(optional_input(request, "streaming", np.array([[False]])).item())]
            said += [str(optional_input(request, name, np.zeros(0)).shape) for name in ("lora_weights", "lora_config")]
            beams = [self._tokenizer.encode_plain(f"{beam}: {' '.join(said)}") for beam in ("best", "next")]
            longest = max(map(len, beams))
            ids = np.array([[beam + [0] * (longest - len(beam)) for beam in beams]], np.int32)
            lengths = np.array([[len(beam) for beam in beams]], np.int32)
            outputs = [pb_utils.Tensor("output_ids", ids), pb_utils.Tensor("sequence_length", lengths)]
            sender.send(pb_utils.InferenceResponse(outputs), flags=FINAL)
"""


@pytest.fixture(scope="module")
def repeating_bundle(smollm2_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In place of the engine, a model that answers with two beams, each of which says what it was asked."""
    root = tmp_path_factory.mktemp("repeating") / "bundle"
    rewritten(smollm2_bundle, root, max_beam_width=2, guided_decoding="xgrammar")
    code, engine = root / "models/tensorrt_llm/1/model.py", root / "engine/config.json"
    code.write_text(code.read_text().partition("from builder.runtime")[0] + REPEATS_ITS_REQUEST)
    config = json.loads(engine.read_text())
    config["build_config"]["max_beam_width"] = 2
    engine.unlink()  # a hard link
    engine.write_text(json.dumps(config))
    return root


@pytest.fixture(scope="module")
def repeating_triton(repeating_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    with running(repeating_bundle, tmp_path_factory.mktemp("cache")) as server:
        yield server


def test_bls_asks_for_the_engine_s_beams_and_answers_with_the_text_of_each(repeating_triton: Triton) -> None:
    _, body = generate(repeating_triton, "tensorrt_llm_bls", text_input=PROMPT, max_tokens=6)
    assert body["text_output"] == ["best: - - 2 False (0,) (0,)", "next: - - 2 False (0,) (0,)"]


def test_beams_are_never_accumulated_while_streaming(repeating_triton: Triton) -> None:
    [event] = generate_stream(repeating_triton, "tensorrt_llm_bls", text_input=PROMPT, max_tokens=6, stream=True)
    assert event["text_output"] == ["best: - - 2 True (0,) (0,)", "next: - - 2 True (0,) (0,)"]


def test_a_guide_and_lora_tensors_pass_through_bls(repeating_triton: Triton) -> None:
    stream = Stream(repeating_triton)
    stream.send(
        "tensorrt_llm_bls",
        text_input=np.array([[PROMPT.encode()]], np.object_),
        max_tokens=np.array([[6]], np.int32),
        guided_decoding_guide_type=np.array([[b"regex"]], np.object_),
        guided_decoding_guide=np.array([[b"[0-9]+"]], np.object_),
        lora_task_id=np.array([[1]], np.uint64),
        lora_weights=np.zeros((1, 2, 8), np.float16),
        lora_config=np.zeros((1, 2, 3), np.int32),
    )
    [response] = list(stream.responses())
    stream.close()
    assert response["text_output"].flat[0] == b"best: regex [0-9]+ 2 False (1, 2, 8) (1, 2, 3)"


def test_the_http_server_asks_for_beams_and_guides_and_takes_the_best(
    repeating_triton: Triton, repeating_bundle: Path, tokenizer: Tokenizer
) -> None:
    sampling = Sampling(guide=Guide("json_schema", '{"type": "object"}'))
    [piece] = ask_as_server(repeating_triton, repeating_bundle, [5, 6], 8, sampling)
    assert tokenizer.decode(piece) == 'best: json_schema {"type": "object"} 2 False (0,) (0,)'
