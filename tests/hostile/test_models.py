"""Hostile models in folders: whatever lies in one is refused clearly, or planned, within bounds."""

import shutil
from pathlib import Path

import pytest

from tests.hostile.conftest import Inside
from tests.hostile.endings import assert_planned, assert_refused, assert_whole, strict_json
from tests.hostile.models import CONFIGS, FIELDS, FILES, QUANT_FIELDS, spoil
from tests.hostile.runner import Runner, cold

RECIPE = """\
schema: 1
name: hostile
version: 1.0.0
model: {source: ./model}
toolchain: trtllm-1.2.1
precision: {weights: as-published}
limits: {max_batch_size: 4, max_seq_len: 128}
targets:
"""
CPU = "  - {sku: cpu}\n"
GPUS = """\
  - {sku: h100-sxm-80gb, parallelism: {tensor: 3}}
  - {sku: b200-180gb, flow: pytorch, serving: {family: llmapi}, parallelism: {pipeline: 2}}
"""

HARMLESS = frozenset(
    {
        "a window of 1",
        "quantised with 30,000 names",
        "model.safetensors is a pipe",
        "model.safetensors is a folder",
        "tokenizer.json is a pipe",
        "tokenizer.json is a folder",
        "chat_template.jinja is a pipe",
        "chat_template.jinja is a folder",
        "a decoder of 5000 digits",
        "a template that is a number",
        "pieces without end",
        "a piece of 2^63 bytes",
        "a varint without end",
        "hf_quant_config is empty",
    }
)
"""What is odd, or as if it weren't there: the rest is a model that can be planned."""

AS_A_USER = (
    "100 MB of lists",
    "a header of a million tensors",
    "an index of a million names",
    "a tokenizer of 30 MB of lists",
    "quantised with slow expressions",
)


def write(tmp_path: Path, good_model: Path, name: str, targets: str) -> Path:
    folder = tmp_path / "in"
    shutil.copytree(good_model, folder / "model")
    spoil(folder / "model", name)
    (folder / "hostile.yaml").write_text(RECIPE + targets)
    return folder / "hostile.yaml"


@pytest.mark.parametrize("name", [*CONFIGS, *FILES])
def test_a_hostile_model_is_refused_or_planned(
    tmp_path: Path, store: Path, good_model: Path, builder_process: Runner, name: str
) -> None:
    recipe = write(tmp_path, good_model, name, CPU)
    before = set(recipe.parent.rglob("*"))
    ended = builder_process("plan", "--recipe", recipe, "--store", store, "--format", "json")
    if name in HARMLESS:
        assert_planned(ended)
    else:
        assert_refused(ended, 4)
    assert_whole(recipe.parent, before)


@pytest.mark.parametrize("name", AS_A_USER)
def test_locking_from_its_start_takes_no_more(tmp_path: Path, store: Path, good_model: Path, name: str) -> None:
    recipe = write(tmp_path, good_model, name, CPU)
    assert_refused(cold("plan", "--recipe", recipe, "--store", store), 4)


@pytest.mark.parametrize("group", sorted({name.partition(":")[0] for name in (*FIELDS, *QUANT_FIELDS)}))
def test_any_value_in_any_field_ends_well(
    tmp_path: Path, store: Path, good_model: Path, inside: Inside, group: str
) -> None:
    names = [name for name in (*FIELDS, *QUANT_FIELDS) if name.partition(":")[0] == group]
    recipe = write(tmp_path, good_model, names[0], GPUS)
    for name in names:
        spoil(recipe.parent / "model", name)
        recipe.with_suffix(".lock.json").unlink(missing_ok=True)
        code, out, err = inside("plan", "--recipe", recipe, "--store", store, "--format", "json")
        assert code in (0, 3, 4), (name, err)
        if code != 4:
            assert strict_json(out)["units"]
