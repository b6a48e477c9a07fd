"""Recipes of ModelOpt: they make what the precision says, or are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from builder.checkpoint.modelopt.failure import Failure
from builder.checkpoint.modelopt.recipes import recipe_config
from builder.errors import RecipeError
from builder.store import Workspace
from tests.integration.quantization.support import (
    UNSEEN,
    by_transformers,
    divergence,
    library_recipe,
    loss_in_modelopt,
    run,
    run_apart,
)


def test_a_recipe_of_the_library_makes_what_the_precision_makes(tiny: Path, tmp_path: Path) -> None:
    digests = []
    for recipe in (None, library_recipe("fp8_default-kv_fp8")):
        out = Workspace(tmp_path / str(bool(recipe)))
        out.path.mkdir()
        run_apart(tiny, out, "fp8", kv_cache="fp8", modelopt_recipe=recipe)
        digests.append(out.digests)
    assert digests[0] == digests[1]


def test_a_recipe_may_leave_linears_out(tiny: Path, out: Workspace) -> None:
    """With a name for each on its own stage, where the library's patterns count over all stages."""
    run(tiny, out, "nvfp4", kv_cache="fp8", modelopt_recipe=library_recipe("nvfp4_mlp_only-kv_fp8"), pp=3)
    excluded = json.loads((out.path / "config.json").read_text())["quantization"]["exclude_modules"]
    assert excluded == ["lm_head", "transformer.layers.0.attention.dense", "transformer.layers.0.attention.qkv"]
    for rank in range(3):
        dtypes = {name: tensor.dtype for name, tensor in load_file(out.path / f"rank{rank}.safetensors").items()}
        assert dtypes["transformer.layers.0.attention.qkv.weight"] == torch.bfloat16
        assert dtypes["transformer.layers.0.mlp.fc.weight"] == torch.uint8


def test_int4_without_smoothing_is_read_as_awq_of_ones(tiny: Path, out: Workspace) -> None:
    recipe = library_recipe("int4_blockwise_weight_only")
    run(tiny, out, "int4-awq", modelopt_recipe=recipe)
    scales = {name: tensor for name, tensor in load_file(out.path / "rank0.safetensors").items() if "prequant" in name}
    assert len(scales) == 3 * 5
    assert all(bool((tensor == 1).all()) for tensor in scales.values())
    ids = list(UNSEEN.encode()[:100])
    expected = by_transformers(tiny, ids)
    assert divergence(expected, out.path, ids) < 1.1 * loss_in_modelopt(tiny, recipe_config(recipe), expected, ids)


QUANTIZE = "metadata: {recipe_type: ptq}\nquantize: {algorithm: max, quant_cfg: [%s]}"
FP8_WEIGHTS = (
    "{quantizer_name: '*weight_quantizer', cfg: {num_bits: e4m3}}, "
    "{quantizer_name: '*input_quantizer', cfg: {num_bits: e4m3}}"
)
FIRST_LAYER = (
    "{quantizer_name: '*', enable: false}, "
    "{quantizer_name: '*layers.0.*_proj.weight_quantizer', cfg: {num_bits: e4m3}}, "
    "{quantizer_name: '*layers.0.*_proj.input_quantizer', cfg: {num_bits: e4m3}}"
)


OFF = "{quantizer_name: '*', enable: false}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "ParserError"),
        ("metadata: {recipe_type: ptq}", "must contain 'quantize'"),
        ("metadata: {recipe_type: speculative_eagle}\neagle: {}", "only ptq"),
        ("imports: {x: /etc/passwd}\n" + QUANTIZE % "{$import: x}", "isn't one of the library's"),
        ("imports: {x: ../x}\n" + QUANTIZE % "{$import: x}", "isn't one of the library's"),
        ("imports: {x: beside}\n" + QUANTIZE % "{$import: x}", "isn't one of the library's"),
        ("imports: [beside]\n" + QUANTIZE % OFF, "no mapping"),
        (QUANTIZE % "!!python/object/apply:os.system [touch /tmp/engine-builder-was-here]", "constructor"),
        (QUANTIZE % "{quantizer_name: '*', surprise: true}", "surprise"),
        ("#" * (2 << 20), "more than 1048576 bytes"),
    ],
    ids=["syntax", "empty", "eagle", "absolute", "above", "beside", "list", "code", "unknown", "large"],
)
def test_what_is_no_recipe_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str) -> None:
    """As is one that imports files, which no lock has pinned: the library would look in this folder first."""
    monkeypatch.chdir(tmp_path)
    recipe, trace = tmp_path / "recipe.yaml", Path("/tmp/engine-builder-was-here")
    trace.unlink(missing_ok=True)
    recipe.write_text(text)
    (tmp_path / "beside.yaml").write_text("quantizer_name: '*'\nenable: false\n")
    with pytest.raises(Failure, match=words) as error:
        recipe_config(recipe)
    assert error.value.kind == "RECIPE"
    assert not trace.exists()


@pytest.mark.parametrize(
    ("quantizers", "code", "words"),
    [
        (OFF, "MODELOPT_RECIPE_DIFFERENT", "floats"),
        (
            f"{OFF}, {{quantizer_name: '*weight_quantizer', cfg: {{num_bits: 8, axis: 0}}}}",
            "MODELOPT_RECIPE_DIFFERENT",
            "int8",
        ),
        (f"{OFF}, {FP8_WEIGHTS}", "MODELOPT_RECIPE_DIFFERENT", "the head is quantised"),
        (FIRST_LAYER, "MIXED_STAGES", "tensor parallelism alone"),
    ],
    ids=["off", "int8", "head", "stages"],
)
def test_a_recipe_that_makes_something_else_than_the_precision_is_refused(
    tiny: Path, out: Workspace, tmp_path: Path, quantizers: str, code: str, words: str
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(QUANTIZE % quantizers)
    with pytest.raises(RecipeError) as error:
        run(tiny, out, modelopt_recipe=recipe, pp=3)
    assert error.value.code == code
    assert words in (error.value.why or "") + (error.value.hint or "")
    assert error.value.where == str(recipe)
