"""SmolLM2-135M-Instruct as a served tree, made once per session by the product's own stages."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from builder.checkpoint.convert import convert
from builder.model.sources import open_source
from builder.model.spec import ModelSpec
from builder.reference.engine import write_engine
from builder.store import LocalStore, Workspace
from builder.store.digests import ignore_progress
from builder.triton.configs import ServingSettings
from builder.triton.repository import write_repository
from tests.integration.smollm2 import SOURCE

MODEL = "smollm2-135m-instruct"
QUESTION = "What is the capital of France?"
CHAT = f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="session")
def smollm2_bundle(test_cache: Path) -> Path:
    """The folder with serving.json; of the SKU `cpu`, batch 8, sequences of up to 2048 tokens."""
    return _make(test_cache)[1]


@cache
def _make(test_cache: Path) -> tuple[TemporaryDirectory[str], Path]:
    temporary = TemporaryDirectory(prefix="bundle-")  # removed when the session ends
    folder, root = Path(temporary.name), Path(temporary.name) / "bundle"
    store = LocalStore(test_cache / "store")
    source = open_source(SOURCE, None, base=store.root, cache=store.root / "sources", digests=store.digest_cache)
    snapshot = source.resolve(ignore_progress)
    model = source.materialise(snapshot, ignore_progress)
    spec = ModelSpec.from_config(json.loads((model / "config.json").read_text()), model / "config.json")
    (folder / "checkpoint").mkdir()
    convert(model, spec, Workspace(folder / "checkpoint"))
    limits = {"max_batch_size": 8, "max_input_len": 1024, "max_seq_len": 2048, "max_num_tokens": 2048}
    write_engine(folder / "checkpoint", root / "engine", limits | {"max_beam_width": 1}, ignore_progress)
    settings = ServingSettings(
        unit=f"{MODEL}/bf16-tp1/cpu",
        served_model_name=MODEL,
        family="bls",
        backend="reference",
        max_batch_size=8,
        max_input_len=1024,
        max_seq_len=2048,
        max_beam_width=1,
        vocab_size=spec.vocab_size,
        bos_token_id=spec.bos_token_id,
        eos_token_ids=spec.eos_token_ids,
        pad_token_id=spec.pad_token_id,
        kv_cache_free_gpu_mem_fraction=0.9,
        enable_kv_cache_reuse=False,
        max_queue_size=0,
    )
    files = [file.path for file in snapshot.of_kind("tokenizer", "config") if file.path != "config.json"]
    write_repository(settings, model, files, root)
    return temporary, root
