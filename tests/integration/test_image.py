"""The runnable image: published to a registry, pulled and run by Docker as a NIM would be, asked by OpenAI's client."""

import json
import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from docker.models.containers import Container

from tests.command import engine_builder
from tests.integration.services import Dockerd, Registry

SMOLLM2 = Path(__file__).parents[2] / "recipes" / "smollm2-135m-instruct.yaml"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def recipe(base_image: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's recipe, with images that stand on a base."""
    file = tmp_path_factory.mktemp("recipes") / SMOLLM2.name
    file.write_text(SMOLLM2.read_text() + f"package: {{base: '{base_image}'}}\n")
    return file


@pytest.fixture(scope="module")
def published(smollm2_store: Path, recipe: Path, docker_registry: Registry) -> str:
    """The reference of its release."""
    for command in (["build"], ["publish", "--registry", docker_registry.reference("smollm2")]):
        done = engine_builder(*command, "--recipe", recipe, "--unit", "*/cpu", store=smollm2_store)
        assert done.returncode == 0, done.stderr
    return docker_registry.reference("smollm2:1.0.0")


@contextmanager
def running(dockerd: Dockerd, reference: str) -> Iterator[tuple[Container, str]]:
    """A container as UID 1000 with a read-only root and a writable cache volume; its address."""
    dockerd.client.images.pull(reference)
    cache = dockerd.client.volumes.create()
    container = dockerd.client.containers.run(
        reference,
        detach=True,
        user="1000:1000",
        read_only=True,
        cap_drop=["ALL"],
        security_opt=["no-new-privileges"],
        volumes={cache.name: {"bind": "/opt/nim/.cache", "mode": "rw"}},
        ports={"8000/tcp": ("127.0.0.1", None)},
    )
    try:
        container.reload()
        port = container.ports["8000/tcp"][0]["HostPort"]
        yield container, f"http://127.0.0.1:{port}"
    finally:
        container.remove(force=True, v=True)
        cache.remove()


def status(url: str) -> int:
    """The HTTP status, or 0 where nobody listens."""
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (OSError, urllib.error.URLError):
        return 0


def wait_until_ready(container: Container, url: str) -> list[int]:
    """The statuses of /v1/health/ready up to the first 200."""
    seen: list[int] = []
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        seen.append(status(f"{url}/v1/health/ready"))
        if seen[-1] == 200:
            return seen
        container.reload()
        assert container.status == "running", container.logs(tail=50).decode()
        time.sleep(0.05)
    raise AssertionError(container.logs(tail=50).decode())


@pytest.fixture(scope="module")
def served(dockerd: Dockerd, published: str) -> Iterator[str]:
    with running(dockerd, published) as (container, url):
        wait_until_ready(container, url)
        yield url


def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120)


def test_the_openai_client_gets_a_whole_answer(served: str) -> None:
    answer = client(served).chat.completions.create(model="smollm2-135m-instruct", messages=QUESTION, temperature=0)
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0


def test_the_openai_client_gets_a_streamed_answer(served: str) -> None:
    chunks = client(served).chat.completions.create(
        model="smollm2-135m-instruct", messages=QUESTION, temperature=0, stream=True
    )
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "Paris" in "".join(pieces)
    assert sum(bool(piece) for piece in pieces) > 3


def test_the_model_list_and_the_metrics_are_served(served: str) -> None:
    assert [model.id for model in client(served).models.list()] == ["smollm2-135m-instruct"]
    with urllib.request.urlopen(f"{served}/v1/metrics") as response:
        assert b"generation_tokens_total" in response.read()


def test_ready_comes_after_live_and_only_when_it_can_answer(dockerd: Dockerd, published: str) -> None:
    with running(dockerd, published) as (container, url):
        while not status(f"{url}/v1/health/live"):
            time.sleep(0.02)
        before = wait_until_ready(container, url)
        assert before[0] == 503
        assert set(before[:-1]) <= {503}
        answer = client(url).chat.completions.create(model="smollm2-135m-instruct", messages=QUESTION, max_tokens=1)
        assert answer.usage is not None


def test_sigterm_during_a_stream_lets_it_finish_and_then_stops(dockerd: Dockerd, published: str) -> None:
    with running(dockerd, published) as (container, url):
        wait_until_ready(container, url)
        stream = client(url).chat.completions.create(
            model="smollm2-135m-instruct",
            messages=[{"role": "user", "content": "Tell me a long story about a ship."}],
            max_tokens=60,
            temperature=0,
            stream=True,
        )
        finish_reasons: list[str | None] = []
        chunks = iter(stream)
        for _ in range(3):
            next(chunks)
        stopping = threading.Thread(target=container.kill, kwargs={"signal": "SIGTERM"})
        stopping.start()
        saw_draining = False
        tokens = 0
        for chunk in chunks:
            tokens += bool(chunk.choices and chunk.choices[0].delta.content)
            saw_draining |= status(f"{url}/v1/health/ready") in (0, 503)
            finish_reasons += [chunk.choices[0].finish_reason] if chunk.choices else []
        stopping.join()
        assert finish_reasons[-1] in ("stop", "length")
        assert tokens > 20
        assert saw_draining
        assert container.wait(timeout=60)["StatusCode"] == 0


def test_an_arbitrary_user_id_works_with_a_mounted_cache(dockerd: Dockerd, published: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    shutil.chown(cache, 4711, 0)
    container = dockerd.client.containers.run(
        published,
        detach=True,
        user="4711:0",
        read_only=True,
        volumes={str(cache): {"bind": "/opt/nim/.cache", "mode": "rw"}},
        ports={"8000/tcp": ("127.0.0.1", None)},
    )
    try:
        container.reload()
        wait_until_ready(container, f"http://127.0.0.1:{container.ports['8000/tcp'][0]['HostPort']}")
    finally:
        container.remove(force=True)


def skopeo(*arguments: str) -> str:
    done = subprocess.run(["skopeo", "--insecure-policy", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_skopeo_reads_the_image_and_copies_it_without_a_change(published: str, tmp_path: Path) -> None:
    seen: dict[str, Any] = json.loads(skopeo("inspect", "--tls-verify=false", f"docker://{published}"))
    assert (seen["Os"], seen["Architecture"]) == ("linux", "amd64")
    assert len(seen["Layers"]) == 4
    layout = f"oci:{tmp_path}/copy:1.0.0"
    skopeo("copy", "--all", "--preserve-digests", "--src-tls-verify=false", f"docker://{published}", layout)
    assert json.loads(skopeo("inspect", layout))["Layers"] == seen["Layers"]


def test_the_layers_are_base_runtime_repository_and_engine(published: str, smollm2_store: Path) -> None:
    done = engine_builder("inspect", published, "--format", "json", store=smollm2_store)
    (image,) = json.loads(done.stdout)["images"]
    assert [layer["role"] for layer in image["layers"]] == ["base", "runtime", "repository", "engine"]
    assert image["config"]["Entrypoint"][:3] == ["python3.11", "-m", "builder.runtime"]
    assert image["config"]["User"] == "1000:1000"


def test_the_image_on_a_base_is_the_same_from_another_store(
    published: str, recipe: Path, smollm2_store: Path, tmp_path: Path
) -> None:
    digests = set()
    for store in (smollm2_store, tmp_path / "store"):
        done = engine_builder("build", "--recipe", recipe, "--unit", "*/cpu", "--format", "json", store=store)
        digests.add(json.loads(done.stdout)["units"][0]["image"])
    assert len(digests) == 1


def test_pull_takes_the_served_tree_alone(published: str, smollm2_store: Path, tmp_path: Path) -> None:
    done = engine_builder("pull", published, tmp_path / "pulled", store=smollm2_store)
    assert done.returncode == 0, done.stderr
    names = sorted(path.name for path in (tmp_path / "pulled").iterdir() if not path.name.startswith("."))
    assert names == ["engine", "models", "serving.json", "tokenizer"]
