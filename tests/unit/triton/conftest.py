from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.plan.serving import ServingSettings
from tests.tiny_model import tiny_tokenizer


@pytest.fixture
def settings() -> ServingSettings:
    return ServingSettings(
        unit="tiny/bf16-tp1/l40s-48gb",
        served_model_name="tiny",
        family="bls",
        backend="tensorrtllm",
        max_batch_size=16,
        max_input_len=1024,
        max_seq_len=2048,
        max_beam_width=1,
        vocab_size=32000,
        bos_token_id=1,
        eos_token_ids=(2, 7),
        pad_token_id=None,
        streaming=True,
        kv_cache_free_gpu_mem_fraction=0.85,
        max_tokens_in_paged_kv_cache=None,
        kv_cache_host_memory_bytes=0,
        enable_kv_cache_reuse=True,
        enable_chunked_context=False,
        batch_scheduler_policy="guaranteed_no_evict",
        max_queue_size=100,
        max_queue_delay_microseconds=0,
        guided_decoding="none",
        decoding_mode=None,
        lookahead=None,
        lora_cache=None,
    )


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / name).write_text(f"{name}\n")
    (folder / "tokenizer.json").write_text(json.dumps(tiny_tokenizer()))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "the model's"}))
    return folder
