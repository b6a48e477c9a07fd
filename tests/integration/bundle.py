"""SmolLM2-135M-Instruct as a served tree: built, published and pulled by the product."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command import engine_builder
from tests.conftest import SMOLLM2

MODEL = "smollm2-135m-instruct"
QUESTION = "What is the capital of France?"
CHAT = f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"
MAX_INPUT_LEN = 2048


@pytest.fixture(scope="session")
def smollm2_bundle(smollm2_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with serving.json; of the SKU `cpu`."""
    folder = tmp_path_factory.mktemp("smollm2")
    registry, bundle = f"oci:{folder / 'registry'}", folder / "bundle"
    for command in (["publish", "--recipe", SMOLLM2, "--registry", registry], ["pull", registry, bundle]):
        done = engine_builder(*command, store=smollm2_store)
        assert done.returncode == 0, done.stderr
    return bundle
