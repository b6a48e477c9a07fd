from pathlib import Path

import pytest

from builder.lock import Lock
from builder.lock.making import make_lock
from builder.recipe import load_recipe
from builder.store import LocalStore
from tests.tiny_model import write_tiny_recipe


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def lock(tmp_path: Path, store: LocalStore) -> Lock:
    """Of a tiny model in a folder."""
    return make_lock(load_recipe(write_tiny_recipe(tmp_path)), store)
