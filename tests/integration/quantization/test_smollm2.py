"""SmolLM2, quantised by ModelOpt: the reference model finds nearly the same next tokens as transformers in the
source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from builder.checkpoint.convert import convert
from builder.model.layout import Split
from builder.store import Workspace
from tests.integration.quantization.support import (
    BLOCK,
    TEXTS,
    UNSEEN,
    by_transformers,
    divergence,
    run,
    run_apart,
    spec_of,
)
from tests.integration.smollm2 import SmolLM2


@pytest.fixture(scope="module")
def unseen(smollm2: SmolLM2) -> list[int]:
    ids: list[int] = Tokenizer.from_file(str(smollm2.folder / "tokenizer.json")).encode(UNSEEN).ids
    assert len(ids) > 90
    return ids


@pytest.fixture(scope="module")
def expected(smollm2: SmolLM2, unseen: list[int]) -> np.ndarray:
    return by_transformers(smollm2.folder, unseen)


@pytest.mark.parametrize(
    ("precision", "settings", "limit"),
    [
        ("fp8", {"kv_cache": "fp8"}, 0.05),
        ("fp8", {"tp": 3, "pp": 4}, 0.05),
        ("fp8-rowwise", {}, 0.05),
        ("nvfp4", {}, 0.4),
        ("int4-awq", {"group_size": BLOCK, "batch_size": 6}, 0.4),
        ("int8-sq", {"kv_cache": "int8"}, 0.3),
    ],
    ids=["fp8-kv", "fp8-tp3-pp4", "fp8-rowwise", "nvfp4", "int4-awq", "int8-sq-kv"],
)
def test_smollm2_predicts_nearly_the_same_when_quantised_for_engines(
    smollm2: SmolLM2,
    out: Workspace,
    unseen: list[int],
    expected: np.ndarray,
    precision: str,
    settings: dict[str, Any],
    limit: float,
) -> None:
    """Limits are about twice what was measured; other weights, or scales of another layer, give several nats."""
    facts = run_apart(smollm2.folder, out, precision, **settings)
    assert (facts["modelopt"], facts["device"]) == ("0.47.0", "cpu")
    assert facts["texts"] == (len(TEXTS) if precision != "fp8-rowwise" else 0)
    assert 270e6 < facts["peak_memory_bytes"] < 8e9  # 135 million weights of two bytes, and the library
    ranks = settings.get("tp", 1) * settings.get("pp", 1)
    assert out.digests.keys() == {"config.json", *(f"rank{rank}.safetensors" for rank in range(ranks))}
    assert divergence(expected, out.path, unseen) < limit


@pytest.mark.parametrize(
    ("precision", "settings", "limit"),
    [("fp8", {}, 0.05), ("nvfp4", {}, 0.4)],
    ids=["fp8", "nvfp4"],
)
def test_smollm2_predicts_nearly_the_same_when_quantised_for_the_pytorch_flow(
    smollm2: SmolLM2,
    out: Workspace,
    tmp_path: Path,
    unseen: list[int],
    expected: np.ndarray,
    precision: str,
    settings: dict[str, Any],
    limit: float,
) -> None:
    """Read as published weights are: by our own converter."""
    run(smollm2.folder, out, precision, export_format="hf", **settings)
    converted = tmp_path / "converted"
    converted.mkdir()
    convert(out.path, spec_of(out.path), Workspace(converted), Split(3))
    assert divergence(expected, converted, unseen) < limit
