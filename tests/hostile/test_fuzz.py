"""Recipes and configs that are changed at random: every command ends with one of its own exit codes."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from builder.errors import SourceError
from builder.model.safetensors import parse_header
from tests.hostile.conftest import Inside
from tests.hostile.endings import strict_json
from tests.hostile.strategies import configs, headers, published, recipes

FUZZ = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)

START = """\
schema: 1
name: fuzz
version: 1.0.0
model: {source: ./model}
toolchain: trtllm-1.2.1
precision: {weights: as-published}
limits: {max_batch_size: 8, max_seq_len: 4096}
targets:
"""
TARGETS = [
    "  - {sku: cpu}",
    "  - {sku: h100-sxm-80gb, name: a}",
    "  - {sku: h100-sxm-80gb, name: b, parallelism: {tensor: 2}}",
    "  - {sku: h200-sxm-141gb, name: c, flow: pytorch, serving: {family: llmapi}, parallelism: {tensor: 8, expert: 4}}",
    "  - {sku: b200-180gb, name: d, precision: {weights: nvfp4, kv_cache: fp8}, parallelism: {pipeline: 2}}",
    "  - {sku: a100-sxm-80gb, name: e, precision: {weights: int4-awq}, parallelism: {tensor: 4, context: 2}}",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(published()["meta-llama--Llama-3.1-8B"]))
    (tmp_path / "texts.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "template.jinja").write_text("{{ messages }}")
    return tmp_path


def assert_ends_well(folder: Path, inside: Inside, recipe: str, *codes: int) -> None:
    file = folder / "fuzz.yaml"
    file.write_text(recipe)
    (folder / "fuzz.lock.json").unlink(missing_ok=True)
    code, out, err = inside("plan", "--recipe", file, "--store", folder / "store", "--format", "json")
    event(f"exit code {code}")
    assert code in codes, err
    assert err.count("error[") == (code in (2, 4))
    if code in (0, 3):
        assert strict_json(out)["units"]
        explained, out, _ = inside("explain", "*", "--recipe", file, "--store", folder / "store", "--format", "json")
        assert explained == code
        assert strict_json(out)["units"]


@settings(FUZZ, max_examples=300)
@given(recipe=recipes())
def test_any_recipe_ends_well(folder: Path, inside: Inside, recipe: str) -> None:
    assert_ends_well(folder, inside, recipe, 0, 2, 3, 4)


@settings(FUZZ, max_examples=300)
@given(config=configs(), targets=st.lists(st.sampled_from(TARGETS), min_size=1, max_size=3, unique=True))
def test_any_config_ends_well(folder: Path, inside: Inside, config: str, targets: list[str]) -> None:
    (folder / "model" / "config.json").write_text(config)
    assert_ends_well(folder, inside, START + "\n".join(targets) + "\n", 0, 3, 4)


@settings(FUZZ, max_examples=500)
@given(file=headers())
def test_any_header_is_read_or_refused(file: tuple[bytes, int]) -> None:
    """Tensors that are read fill the file, one after the other."""
    header, size = file
    try:
        tensors = parse_header(header, size, Path("model.safetensors"))
    except SourceError as error:
        refused = error.code
    else:
        refused = None
        assert sum(tensor.nbytes for tensor in tensors.values()) == size - 8 - len(header)
    assert refused in (None, "SAFETENSORS_HEADER")
