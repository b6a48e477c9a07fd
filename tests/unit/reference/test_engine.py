from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from numpy.testing import assert_array_equal
from safetensors import safe_open
from safetensors.torch import load_file

from builder.reference.engine import write_engine
from builder.reference.errors import ReferenceModelError
from builder.reference.limits import Limits
from builder.reference.model import ReferenceModel
from tests.unit.reference.sharding import write_checkpoint
from tests.unit.reference.tiny import tiny_llama

BUILD_CONFIG: dict[str, Any] = {
    "max_batch_size": 2,
    "max_input_len": 24,
    "max_seq_len": 32,
    "max_num_tokens": 64,
    "max_beam_width": 1,
    "opt_batch_size": 1,
    "plugin_config": {},
}


def ignore_progress(_: int) -> None:
    pass


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tiny_llama(), tmp_path / "checkpoint", tp=3, dtype=torch.bfloat16)


@pytest.fixture
def engine(checkpoint: Path, tmp_path: Path) -> Path:
    write_engine(checkpoint, tmp_path / "engine", BUILD_CONFIG, ignore_progress)
    return tmp_path / "engine"


def test_an_engine_computes_what_its_checkpoint_does(checkpoint: Path, engine: Path) -> None:
    tokens = list(range(20))
    of_checkpoint, of_engine = (ReferenceModel.load(folder) for folder in (checkpoint, engine))
    assert_array_equal(
        of_engine.prefill(tokens, of_engine.new_cache(20)), of_checkpoint.prefill(tokens, of_checkpoint.new_cache(20))
    )


def test_an_engine_is_marked_as_one_of_the_reference_model(checkpoint: Path, engine: Path) -> None:
    config = json.loads((engine / "config.json").read_text())
    assert config == {
        "version": "reference-1",
        "engine_kind": "reference",
        "pretrained_config": json.loads((checkpoint / "config.json").read_text()),
        "build_config": BUILD_CONFIG,
    }
    with safe_open(engine / "rank2.engine", framework="pt") as file:
        assert file.metadata() == {"format": "engine-builder-reference", "rank": "2"}


def test_an_engine_holds_the_tensors_of_its_checkpoint_bit_for_bit(checkpoint: Path, engine: Path) -> None:
    for rank in range(3):
        before = load_file(checkpoint / f"rank{rank}.safetensors")
        after = load_file(engine / f"rank{rank}.engine")
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_mapping_of_an_engine_names_no_rank(checkpoint: Path, tmp_path: Path) -> None:
    path = checkpoint / "config.json"
    config = json.loads(path.read_text())
    config["mapping"]["rank"] = 2
    path.write_text(json.dumps(config))
    write_engine(checkpoint, tmp_path / "engine", BUILD_CONFIG, ignore_progress)
    written = json.loads((tmp_path / "engine" / "config.json").read_text())
    assert written["pretrained_config"]["mapping"] == {"world_size": 3, "tp_size": 3, "pp_size": 1}


def test_digests_sizes_and_progress_are_those_of_the_files(checkpoint: Path, tmp_path: Path) -> None:
    steps: list[int] = []
    out = tmp_path / "engine"
    written = write_engine(checkpoint, out, BUILD_CONFIG, steps.append)
    contents = {path.name: path.read_bytes() for path in out.iterdir()}
    assert written == {name: (hashlib.sha256(data).hexdigest(), len(data)) for name, data in contents.items()}
    assert sorted(written) == ["config.json", "rank0.engine", "rank1.engine", "rank2.engine"]
    tensors = [load_file(checkpoint / f"rank{rank}.safetensors") for rank in range(3)]
    assert sum(steps) == sum(tensor.nbytes for rank in tensors for tensor in rank.values())


def test_the_same_checkpoint_gives_the_same_bytes(checkpoint: Path, tmp_path: Path) -> None:
    reordered = dict(reversed(BUILD_CONFIG.items()))
    first = write_engine(checkpoint, tmp_path / "first", BUILD_CONFIG, ignore_progress)
    second = write_engine(checkpoint, tmp_path / "second", reordered, ignore_progress)
    assert first == second


def test_the_model_keeps_to_the_limits_that_it_was_built_for(engine: Path, checkpoint: Path) -> None:
    model = ReferenceModel.load(engine)
    assert model.limits == Limits(
        max_batch_size=2, max_input_len=24, max_seq_len=32, max_num_tokens=64, max_beam_width=1
    )
    with pytest.raises(ReferenceModelError, match="33 tokens exceeds max_seq_len 32"):
        model.new_cache(33)
    with pytest.raises(ReferenceModelError, match="25 tokens exceed max_input_len 24"):
        model.prefill(range(25), model.new_cache(32))
    with pytest.raises(ReferenceModelError, match="3 sequences exceed max_batch_size 2"):
        model.decode([1, 2, 3], [model.new_cache(32) for _ in range(3)])
    assert ReferenceModel.load(checkpoint).limits is None


@pytest.mark.parametrize("changes", [{"max_seq_len": None}, {"max_batch_size": 0}, {"max_num_tokens": "8192"}])
def test_limits_must_be_positive_integers(checkpoint: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ReferenceModelError, match=f"build_config: {next(iter(changes))}"):
        write_engine(checkpoint, tmp_path / "engine", BUILD_CONFIG | changes, ignore_progress)
    assert not (tmp_path / "engine").exists()


def test_a_checkpoint_that_cannot_run_makes_no_engine(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / "rank1.safetensors").unlink()
    with pytest.raises(ReferenceModelError, match=r"rank1\.safetensors missing"):
        write_engine(checkpoint, tmp_path / "engine", BUILD_CONFIG, ignore_progress)
    assert not (tmp_path / "engine").exists()


def test_an_engine_is_no_checkpoint(engine: Path, tmp_path: Path) -> None:
    with pytest.raises(ReferenceModelError, match="an engine, not a checkpoint"):
        write_engine(engine, tmp_path / "second", BUILD_CONFIG, ignore_progress)


@pytest.mark.parametrize("changes", [{"version": "1.2.1"}, {"engine_kind": None}])
def test_an_engine_of_tensorrt_llm_is_refused(engine: Path, changes: dict[str, Any]) -> None:
    path = engine / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ReferenceModelError, match="not an engine of the reference model"):
        ReferenceModel.load(engine)


def test_engine_files_that_changed_places_are_refused(engine: Path) -> None:
    (engine / "rank0.engine").rename(engine / "spare")
    (engine / "rank1.engine").rename(engine / "rank0.engine")
    (engine / "spare").rename(engine / "rank1.engine")
    with pytest.raises(ReferenceModelError, match=r"rank0\.engine: not rank 0"):
        ReferenceModel.load(engine)
