"""The converted checkpoint of the real model, read as TensorRT-LLM would, computes what transformers computes.

Both sides compute in float32 on the same bf16 weights; they differ only in the order in which sums are taken. Over
200 positions of 49,152 logits, which reach 41, the differences stay near 1e-4 (float32 has 24 bits: 41 · 2^-24 is
2.4e-6 for one rounding, and each logit is the end of some 30 layers of sums). The tolerance is 1e-3; a swapped pair of
tensors, a missing permutation or a wrong slice moves logits by more than 1.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from builder.checkpoint.convert import convert
from builder.model.config import load_config
from builder.model.layout import Split
from builder.model.spec import ModelSpec
from builder.reference.model import ReferenceModel
from builder.store import Workspace
from tests.integration.smollm2 import SmolLM2

TOLERANCE = 1e-3

TEXT = (
    "The quick brown fox jumps over the lazy dog. In 1969, two astronauts walked on the Moon while a third stayed in "
    "orbit. Water boils at 100 degrees Celsius at sea level, but at lower temperatures on high mountains. A recipe for "
    "bread needs flour, water, salt and yeast; patience helps. def add(a, b): return a + b. Once upon a time there was "
    "a ship that crossed the ocean with a cargo of tea, silk and stories, and its captain kept a diary in which she "
    "wrote down every storm, every island and every whale that they met on the way, until the paper ran out and she "
    "began to write on the sails. When they came home the sails were hung in the town hall, and people still read them "
    "on Sundays, slowly, because the ink has faded and the letters are as large as a hand."
)


@pytest.fixture(scope="module")
def tokens(smollm2: SmolLM2) -> list[int]:
    from tokenizers import Tokenizer

    ids = Tokenizer.from_file(str(smollm2.folder / "tokenizer.json")).encode(TEXT).ids[:200]
    assert len(ids) >= 150
    return ids


@pytest.fixture(scope="module")
def expected(smollm2: SmolLM2, tokens: list[int]) -> np.ndarray:
    """Logits [tokens, vocabulary] of transformers in float32."""
    model = AutoModelForCausalLM.from_pretrained(smollm2.folder, dtype=torch.float32)
    with torch.no_grad():
        ids = torch.tensor([tokens])
        return model(ids, attention_mask=torch.ones_like(ids)).logits[0].numpy()


@pytest.fixture(scope="module", params=[(1, 1), (3, 1), (3, 2)], ids=["tp1", "tp3", "tp3-pp2"])
def model(
    request: pytest.FixtureRequest, smollm2: SmolLM2, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ReferenceModel]:
    """Our conversion, every rank computed apart and summed."""
    tp, pp = request.param
    folder: Path = tmp_path_factory.mktemp(f"tp{tp}-pp{pp}")
    spec = ModelSpec.from_config(load_config(smollm2.folder), smollm2.folder)
    convert(smollm2.folder, spec, Workspace(folder), Split(tp, pp))
    assert len(list(folder.glob("rank*.safetensors"))) == tp * pp
    yield ReferenceModel.load(folder)
    shutil.rmtree(folder)


def test_the_logits_of_a_prompt_are_those_of_transformers(
    model: ReferenceModel, tokens: list[int], expected: np.ndarray
) -> None:
    logits = model.prefill(tokens, model.new_cache(len(tokens)), all_positions=True)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=TOLERANCE)
    assert (logits.argmax(axis=1) == expected.argmax(axis=1)).all()


def test_decoding_with_the_kv_cache_gives_the_same_logits(
    model: ReferenceModel, tokens: list[int], expected: np.ndarray
) -> None:
    cache = model.new_cache(len(tokens))
    model.prefill(tokens[:100], cache)
    for position in range(100, len(tokens)):
        logits = model.decode([tokens[position]], [cache])[0]
        np.testing.assert_allclose(logits, expected[position], rtol=0, atol=TOLERANCE)
