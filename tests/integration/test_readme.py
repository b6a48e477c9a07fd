"""What the README shows is true: its recipes are read, its commands are run."""

import json
import re
import shlex
import socket
import subprocess
import urllib.request
from pathlib import Path

import pytest
import yaml

from tests.command import COMMAND, engine_builder, environment
from tests.readme import renewed

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_recipe_that_it_shows_is_the_one_that_the_demo_builds() -> None:
    file = ROOT / "recipes" / "smollm2-135m-instruct.yaml"
    assert yaml.safe_load(blocks("yaml")[0]) == yaml.safe_load(file.read_text())


def test_its_recipe_for_real_gpus_is_the_one_in_the_folder() -> None:
    file = ROOT / "recipes" / "llama-3.1-8b-instruct.yaml"
    assert yaml.safe_load(blocks("yaml")[1]) == yaml.safe_load(file.read_text())


def test_the_output_that_it_shows_is_what_its_commands_print() -> None:
    assert renewed(README) == README, "run `python -m tests.readme`"


def commands(block: str) -> list[list[str]]:
    """The commands of a console block, as argument lists."""
    return [shlex.split(part.replace("\\\n", " "), comments=True) for part in block.split("$ ")[1:]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A place to run them, with the project's recipes."""
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    return tmp_path


def test_its_commands_work_in_the_order_that_it_shows(smollm2_store: Path, folder: Path) -> None:
    *before, serve = commands(blocks("console")[0])
    for program, *arguments in before:
        assert program == "engine-builder"
        done = engine_builder(*arguments, store=smollm2_store, cwd=folder)
        assert done.returncode == 0, done.stderr
    (curl,) = commands(blocks("console")[1])
    url, body = curl[2], json.loads(curl[curl.index("-d") + 1])
    process = subprocess.Popen(
        [*COMMAND, *serve[1:]], cwd=folder, env=environment(smollm2_store), stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready: http://127.0.0.1:8000/v1 serves smollm2-135m-instruct\n"
        request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as response:
            answer = json.load(response)
        assert "Paris" in answer["choices"][0]["message"]["content"]
    finally:
        process.terminate()
    assert process.wait(60) == 0


def test_serving_on_a_port_in_use_says_so(smollm2_store: Path, folder: Path) -> None:
    engine_builder("publish", "--registry", "oci:registry", store=smollm2_store, cwd=folder)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = engine_builder("serve", "oci:registry", "--port", port, store=smollm2_store, cwd=folder)
    assert done.returncode == 8
    assert f"port {port} is in use" in done.stderr
    assert "Traceback" not in done.stderr
