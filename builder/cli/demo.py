"""`make demo`: build the smallest recipe, publish it, serve it, ask it a question, stop.

It runs the same commands as a user would, and ends by printing them. A second run finds everything up to date.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import httpx

RECIPE = Path("recipes/smollm2-135m-instruct.yaml")
FOLDER = Path(".demo")
REGISTRY = f"oci:{FOLDER}/registry"
QUESTION = "What is the capital of France?"
START_SECONDS = 120


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    click.echo(f"1. build {RECIPE} for this machine", err=True)
    (unit,) = _json("build", "--recipe", str(RECIPE), "--unit", "*/cpu")["units"]
    click.echo(f"2. publish to {REGISTRY}", err=True)
    (release,) = _json("publish", "--recipe", str(RECIPE), "--unit", "*/cpu", "--registry", REGISTRY)["releases"]
    answered = FOLDER / f"answer-{release['digest'].removeprefix('sha256:')[:16]}.txt"
    if answered.exists():
        click.echo("everything is up to date", err=True)
    else:
        click.echo(f"3. serve {release['reference']}", err=True)
        answer = _ask(release["reference"])
        answered.write_text(answer + "\n")
    click.echo(f"\nQ: {QUESTION}\nA: {answered.read_text().strip()}\n")
    program = os.path.relpath(Path(sys.executable).with_name("engine-builder"))
    click.echo(f"image  {unit['image']}\n\nGo on with:")
    for command in (
        f"build --recipe {RECIPE}",
        f"publish --recipe {RECIPE} --registry {REGISTRY}",
        f"serve {release['reference']}",
    ):
        click.echo(f"  {program} {command}")
    return 0


def _json(*arguments: str) -> dict[str, list[dict[str, str]]]:
    """Run a command that must succeed; its progress goes to the terminal, its result comes back."""
    done = subprocess.run(
        [sys.executable, "-m", "builder", *arguments, "--format", "json"], stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        sys.exit(done.returncode)
    result: dict[str, list[dict[str, str]]] = json.loads(done.stdout)
    return result


def _ask(reference: str) -> str:
    with _serving(reference) as url:
        click.echo(f"4. ask: {QUESTION}", err=True)
        body = {"model": RECIPE.stem, "messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
        response = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
        response.raise_for_status()
        answer: str = response.json()["choices"][0]["message"]["content"]
    return answer


@contextmanager
def _serving(reference: str) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with (FOLDER / "serve.log").open("w") as log:
        command = [sys.executable, "-m", "builder", "serve", reference, "--port", str(port)]
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait(process, url, Path(log.name))
        yield url
    finally:
        process.terminate()
        process.wait(60)


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            sys.exit(f"the server stopped with exit code {process.returncode}:\n{log.read_text()[-2000:]}")
        try:
            if httpx.get(f"{url}/v1/health/ready").status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    sys.exit(f"the server wasn't ready after {START_SECONDS} s, see {log}")


if __name__ == "__main__":
    sys.exit(main())
