"""The console blocks of the README that show output: `python -m tests.readme` writes them anew."""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
SHOWN = re.compile(r"(```console\n\$ engine-builder ((?:plan|explain) [^\n#]*)\n)(.*?)(```)", re.DOTALL)


def output(command: str) -> str:
    """What a command prints when it is run in the project's folder, with nothing built yet."""
    with tempfile.TemporaryDirectory() as store:
        arguments = [part.strip("'") for part in command.split()]
        process = [sys.executable, "-m", "builder", *arguments, "--frozen", "--store", store]
        done = subprocess.run(process, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def renewed(text: str) -> str:
    return SHOWN.sub(lambda found: f"{found[1]}{output(found[2])}{found[4]}", text)


if __name__ == "__main__":
    README.write_text(renewed(README.read_text()))
