"""`python -m builder.runtime` as a user or a container starts it, with the real model and OpenAI's own client."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.integration.bundle import MAX_INPUT_LEN, MODEL, QUESTION

MESSAGES: Any = [{"role": "user", "content": QUESTION}]
LONG: Any = [{"role": "user", "content": "Count from 1 to 1000, one number per line."}]


@dataclass
class Server:
    process: subprocess.Popen[bytes]
    port: int
    log: Path
    cache: Path

    @property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key="none", max_retries=0, timeout=120)

    def get(self, path: str) -> tuple[int, str]:
        return self._call("GET", path, None)

    def post(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        status, text = self._call("POST", path, json.dumps(body))
        return status, json.loads(text)

    def is_ready(self) -> bool:
        return self.get("/v1/health/ready")[0] == 200

    def wait_until_ready(self) -> None:
        while not self.is_ready():
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            time.sleep(0.05)

    def children(self, name: str) -> list[int]:
        """Process ids below this server whose command line contains `name`."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                environment = (folder / "environ").read_bytes()
            except OSError:
                continue
            if name in command and f"RUNTIME_TEST={self.port}".encode() in environment.split(b"\0"):
                found.append(int(folder.name))
        return found

    def _call(self, method: str, path: str, body: str | None) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, path, body)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()


@contextmanager
def running(root: Path, folder: Path, *options: str) -> Iterator[Server]:
    """A server process; its port is open when this is entered, and it is ended afterwards if it still runs."""
    folder.mkdir(parents=True, exist_ok=True)
    log, cache = folder / "log", folder / "cache"
    port = _free_port()
    command = [sys.executable, "-m", "builder.runtime", "--root", str(root), "--cache", str(cache)]
    command += ["--host", "127.0.0.1", "--port", str(port), *options]
    with open(log, "wb") as output:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", *command],
            env=os.environ | {"RUNTIME_TEST": str(port)},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    server = Server(process, port, log, cache)
    try:
        while f":{port} is open" not in log.read_text() and process.poll() is None:
            time.sleep(0.02)
        yield server
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def _free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture(scope="module")
def server(smollm2_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(smollm2_bundle, tmp_path_factory.mktemp("server")) as server:
        server.wait_until_ready()
        yield server


def test_the_openai_client_gets_an_answer(server: Server) -> None:
    answer = server.client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=0, max_tokens=30)
    assert answer.choices[0].message.content == "The capital of France is Paris."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 7


def test_the_openai_client_gets_a_streamed_answer(server: Server) -> None:
    stream = server.client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        temperature=0,
        max_tokens=30,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == "The capital of France is Paris."
    assert len([piece for piece in pieces if piece]) > 3
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 7


def test_the_openai_client_gets_a_plain_completion(server: Server) -> None:
    answer = server.client.completions.create(
        model=MODEL, prompt="The capital of France is", temperature=0, max_tokens=10, stop=["."]
    )
    assert "Paris" in answer.choices[0].text
    assert "." not in answer.choices[0].text
    assert answer.choices[0].finish_reason == "stop"


def test_the_openai_client_understands_refusals(server: Server) -> None:
    client = server.client
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=5000)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=MESSAGES, n=2)
    assert caught.value.param == "n"
    assert [model.id for model in client.models.list().data] == [MODEL]


def test_the_longest_answer_that_fits_is_counted_to_the_token(server: Server) -> None:
    status, body = server.post("/v1/completions", {"model": MODEL, "prompt": [1] * MAX_INPUT_LEN, "max_tokens": 1})
    assert (status, body["usage"]["prompt_tokens"]) == (200, MAX_INPUT_LEN)
    assert (
        server.post("/v1/completions", {"model": MODEL, "prompt": [1] * (MAX_INPUT_LEN + 1), "max_tokens": 1})[0] == 400
    )


def test_a_seed_makes_sampling_repeatable_and_the_default_is_to_sample(server: Server) -> None:
    def sample(seed: int | None) -> str:
        body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 10, "seed": seed}
        text: str = server.post("/v1/completions", body)[1]["choices"][0]["text"]
        return text

    assert sample(1) == sample(1)
    assert len({sample(seed) for seed in range(4)}) > 1
    assert len({sample(None) for _ in range(4)}) > 1


def test_eight_at_a_time_give_what_one_after_another_gives(server: Server) -> None:
    places = ["France", "Italy", "Spain", "Japan", "Egypt", "Peru", "Cuba", "Iran"]

    def ask(place: str) -> str:
        messages: Any = [{"role": "user", "content": f"What is the capital of {place}?"}]
        answer = server.client.chat.completions.create(model=MODEL, messages=messages, temperature=0, max_tokens=12)
        return answer.choices[0].message.content or ""

    alone = [ask(place) for place in places]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(ask, places)) == alone


@pytest.mark.parametrize("stream", [True, False])
def test_clients_that_go_away_free_their_places(server: Server, stream: bool) -> None:
    """Eight answers of two thousand tokens would keep the batch full for minutes."""
    body = json.dumps({"model": MODEL, "messages": LONG, "max_tokens": 1900, "stream": stream, "temperature": 0})
    connections = []
    for _ in range(8):
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        connection.request("POST", "/v1/chat/completions", body)
        connections.append(connection)
    while 'num_requests_running{model_name="smollm2-135m-instruct"} 8.0' not in server.get("/v1/metrics")[1]:
        time.sleep(0.05)
    for connection in connections:
        connection.close()
    short = {"model": MODEL, "prompt": "The capital of", "max_tokens": 3, "temperature": 0}
    status, answer = server.post("/v1/completions", short)
    assert (status, answer["usage"]["completion_tokens"]) == (200, 3)
    assert 'finished_reason="abort",model_name="smollm2-135m-instruct"} ' in server.get("/v1/metrics")[1]


def test_metrics_hold_our_names_and_triton_s(server: Server) -> None:
    status, text = server.get("/v1/metrics")
    assert status == 200
    assert re.search(r'^generation_tokens_total\{model_name="smollm2-135m-instruct"\} [1-9]', text, re.MULTILINE)
    assert re.search(r'^nv_inference_request_success\{model="tensorrt_llm",version="1"\} [1-9]', text, re.MULTILINE)
    assert server.get("/metrics")[0] == 200


def test_the_served_tree_stays_as_it_was(server: Server, smollm2_bundle: Path) -> None:
    assert not list(smollm2_bundle.rglob("__pycache__"))
    assert "Traceback" not in server.log.read_text()


def test_it_is_live_at_once_and_ready_only_when_it_can_answer(smollm2_bundle: Path, tmp_path: Path) -> None:
    with running(smollm2_bundle, tmp_path) as server:
        assert server.get("/v1/health/live")[0] == 200
        assert server.get("/v1/health/ready")[0] == 503
        body = {"model": MODEL, "prompt": "The capital of France is", "max_tokens": 3, "temperature": 0}
        assert server.post("/v1/completions", body)[0] == 503
        server.wait_until_ready()
        status, answer = server.post("/v1/completions", body)
        assert status == 200
        assert "Paris" in answer["choices"][0]["text"]


@contextmanager
def open_stream(server: Server, max_tokens: int) -> Iterator[http.client.HTTPResponse]:
    """A streamed answer of which the first event has come."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    body = {"model": MODEL, "messages": LONG, "max_tokens": max_tokens, "stream": True, "temperature": 0}
    connection.request("POST", "/v1/chat/completions", json.dumps(body))
    response = connection.getresponse()
    response.readline()
    try:
        yield response
    finally:
        connection.close()


def leftovers(server: Server) -> list[Path]:
    return [*server.cache.iterdir(), *Path("/dev/shm").glob(f"engine-builder-{server.process.pid}-*")]


def test_sigterm_lets_a_stream_finish_and_then_ends_cleanly(smollm2_bundle: Path, tmp_path: Path) -> None:
    with running(smollm2_bundle, tmp_path) as server:
        server.wait_until_ready()
        with open_stream(server, 60) as response:
            server.process.send_signal(signal.SIGTERM)
            while server.is_ready():
                time.sleep(0.01)
            assert server.get("/v1/health/live")[0] == 200
            status, refusal = server.post("/v1/completions", {"model": MODEL, "prompt": "x"})
            assert (status, refusal["error"]["code"]) == (503, "not_ready")
            rest = response.read().decode()
        assert rest.endswith("data: [DONE]\n\n")
        assert '"finish_reason": "length"' in rest
        assert server.process.wait(60) == 0
        assert leftovers(server) == []
        assert server.children("triton") == []


def test_an_answer_that_takes_longer_than_the_grace_time_is_cut_off(smollm2_bundle: Path, tmp_path: Path) -> None:
    with running(smollm2_bundle, tmp_path, "--grace-seconds", "0.2") as server:
        server.wait_until_ready()
        with open_stream(server, 1900):
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(60) == 0
        assert leftovers(server) == []


def test_a_second_signal_does_not_wait(smollm2_bundle: Path, tmp_path: Path) -> None:
    with running(smollm2_bundle, tmp_path, "--grace-seconds", "600") as server:
        server.wait_until_ready()
        with open_stream(server, 1900):
            server.process.send_signal(signal.SIGINT)
            while server.is_ready():
                time.sleep(0.01)
            server.process.send_signal(signal.SIGINT)
            assert server.process.wait(60) == 0


def test_sigterm_while_loading_ends_at_once(smollm2_bundle: Path, tmp_path: Path) -> None:
    with running(smollm2_bundle, tmp_path) as server:
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
        assert leftovers(server) == []


def test_triton_does_not_outlive_a_server_that_is_killed(smollm2_bundle: Path, tmp_path: Path) -> None:
    with running(smollm2_bundle, tmp_path) as server:
        server.wait_until_ready()
        server.process.kill()
        server.process.wait(60)
        while server.children("triton"):
            time.sleep(0.05)


def test_when_triton_dies_the_server_ends_with_its_exit_code(smollm2_bundle: Path, tmp_path: Path) -> None:
    with running(smollm2_bundle, tmp_path) as server:
        server.wait_until_ready()
        [triton] = server.children("bin/tritonserver")
        os.kill(triton, signal.SIGKILL)
        assert server.process.wait(60) == 5
        log = server.log.read_text()
        assert "error[TRITON_FAILED]: Triton died" in log
        assert "exit status -9" in log
        assert leftovers(server) == []
        assert server.children("triton") == []


def test_when_the_engine_s_process_dies_under_triton_the_server_notices_and_ends(
    smollm2_bundle: Path, tmp_path: Path
) -> None:
    """Triton goes on and calls itself ready; only a container that ends is started anew."""
    with running(smollm2_bundle, tmp_path) as server:
        server.wait_until_ready()
        for stub in server.children("models/tensorrt_llm/1/model.py"):
            os.kill(stub, signal.SIGKILL)
        assert server.post("/v1/completions", {"model": MODEL, "prompt": "x"})[0] == 500
        assert not server.is_ready()
        assert server.process.wait(60) == 5
        assert "error[TRITON_FAILED]: the engine no longer answers" in server.log.read_text()
        assert leftovers(server) == []


def test_an_engine_that_cannot_be_loaded_is_explained_in_the_model_s_words(
    smollm2_bundle: Path, tmp_path: Path
) -> None:
    root = tmp_path / "bundle"
    shutil.copytree(smollm2_bundle, root)
    engine = root / "engine" / "rank0.engine"
    engine.chmod(0o644)
    os.truncate(engine, engine.stat().st_size // 2)
    with running(root, tmp_path) as server:
        assert server.process.wait(60) == 5
        _, _, report = server.log.read_text().partition("error[TRITON_FAILED]")
        assert "failed to load 'tensorrt_llm'" in report
        assert "rank0.engine" in report
        assert "Traceback" not in report
        assert leftovers(server) == []


def test_names_and_port_come_from_nim_s_variables(
    smollm2_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIM_SERVED_MODEL_NAME", "one, two")
    with running(smollm2_bundle, tmp_path) as server:
        server.wait_until_ready()
        assert [model.id for model in server.client.models.list().data] == ["one", "two"]


def test_requests_during_a_long_prompt_are_answered_in_turn(server: Server) -> None:
    """A prompt of a thousand tokens is taken in between the tokens of other answers; nobody is forgotten."""
    results: list[int] = []

    def long_prompt() -> None:
        body = {"model": MODEL, "prompt": [1] * 1000, "max_tokens": 2}
        results.append(server.post("/v1/completions", body)[0])

    thread = threading.Thread(target=long_prompt)
    thread.start()
    short = {"model": MODEL, "prompt": "The capital of France is", "max_tokens": 5, "temperature": 0}
    statuses = [server.post("/v1/completions", short)[0] for _ in range(3)]
    thread.join()
    assert (statuses, results) == ([200] * 3, [200])
