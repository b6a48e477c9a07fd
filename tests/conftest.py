"""What several folders of tests share: the real model, built once."""

import json
import os
from pathlib import Path

import pytest

from tests.command import engine_builder

SMOLLM2 = Path(__file__).parents[1] / "recipes" / "smollm2-135m-instruct.yaml"


@pytest.fixture(scope="session")
def test_cache() -> Path:
    """Kept between test runs: what takes long to fetch or make. $ENGINE_BUILDER_TEST_CACHE moves it."""
    cache = Path(os.environ.get("ENGINE_BUILDER_TEST_CACHE", "~/.cache/engine-builder-tests")).expanduser()
    cache.mkdir(parents=True, exist_ok=True)
    return cache


@pytest.fixture(scope="session")
def smollm2_store(test_cache: Path) -> Path:
    """A store in which the recipe of SmolLM2-135M-Instruct is built for the SKU `cpu`."""
    store = test_cache / "store"
    done = engine_builder("build", "--recipe", SMOLLM2, "--unit", "*/cpu", store=store)
    assert done.returncode == 0, done.stderr
    return store


@pytest.fixture(scope="session")
def smollm2_image(smollm2_store: Path) -> str:
    """The digest of that unit's image."""
    done = engine_builder("build", "--recipe", SMOLLM2, "--unit", "*/cpu", "--format", "json", store=smollm2_store)
    digest: str = json.loads(done.stdout)["units"][0]["image"]
    return digest
