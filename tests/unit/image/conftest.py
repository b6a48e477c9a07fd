from __future__ import annotations

from pathlib import Path

import pytest

from builder.store import Artifact, LocalStore


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def artifact(store: LocalStore) -> Artifact:
    """A sealed engine of two files, one in a folder."""
    with store.building("engine", "k1") as workspace:
        (workspace.path / "engine").mkdir()
        (workspace.path / "engine/rank0.engine").write_bytes(b"weights" * 100_000)
        (workspace.path / "engine/config.json").write_text("{}")
        return store.seal("engine", "k1", workspace, {})
