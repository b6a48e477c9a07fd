"""Models, tokenizers and numbers that can't be quantised."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from builder.checkpoint.modelopt.failure import Failure, failure_of
from builder.checkpoint.modelopt.loading import load_model, load_tokenizer
from builder.errors import SourceError, ToolchainError
from builder.store import Workspace
from tests.integration.quantization.support import (
    run,
)
from tests.tiny_model import tiny_tokenizer
from tests.unit.checkpoint.families import edit_config, edit_weights

DOWN = "model.layers.1.mlp.down_proj.weight"


def _as_pickle(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def _with_code(folder: Path) -> None:
    edit_config(folder, auto_map={"AutoModelForCausalLM": "modeling_own.Own", "AutoConfig": "modeling_own.OwnConfig"})
    (folder / "modeling_own.py").write_text("open('/tmp/engine-builder-was-here', 'w')\n")


@pytest.mark.parametrize(
    ("spoil", "kind", "words"),
    [
        (_as_pickle, "MODEL", "no file named model.safetensors"),
        (lambda folder: edit_weights(folder, lambda tensors: tensors.pop(DOWN)), "MODEL", f"don't have {DOWN}"),
        (
            lambda folder: edit_weights(folder, lambda tensors: tensors.update({DOWN: tensors[DOWN][1:].clone()})),
            "MODEL",
            f"have other shapes of {DOWN}",
        ),
        (
            lambda folder: edit_weights(folder, lambda tensors: tensors[DOWN][0].fill_(float("nan"))),
            "WEIGHTS",
            f"{DOWN} holds NaN",
        ),
        (lambda folder: edit_config(folder, model_type="surprise"), "MODEL", "surprise"),
    ],
    ids=["pickle", "missing", "misshapen", "nan", "unknown"],
)
def test_a_model_that_isnt_all_there_is_refused(
    tiny: Path, tmp_path: Path, spoil: Callable[[Path], object], kind: str, words: str
) -> None:
    """transformers would fill what is missing with random numbers."""
    source = tmp_path / "source"
    shutil.copytree(tiny, source)
    spoil(source)
    with pytest.raises(Exception, match=words) as error:
        load_model(str(source), "bfloat16", "cpu")
    assert failure_of(error.value, "load").kind == kind


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: (folder / "tokenizer.json").unlink(), "there is none of tokenizer.json"),
        (lambda folder: (folder / "tokenizer.json").write_text("{"), "JSONDecodeError"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "KeyError|Exception|missing"),
    ],
    ids=["none", "broken", "empty"],
)
def test_a_tokenizer_that_cant_be_used_is_refused(
    tiny: Path, tmp_path: Path, spoil: Callable[[Path], object], words: str
) -> None:
    source = tmp_path / "source"
    shutil.copytree(tiny, source)
    spoil(source)
    with pytest.raises(Failure, match=words) as error:
        load_tokenizer(str(source))
    assert error.value.kind == "TOKENIZER"


def test_a_tokenizer_of_another_model_is_told(tiny: Path, tmp_path: Path, out: Workspace) -> None:
    source, tokenizer = tmp_path / "source", tiny_tokenizer()
    shutil.copytree(tiny, source)
    tokenizer["model"]["vocab"]["<large>"] = 700
    tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], "id": 700, "content": "<large>"})
    (source / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(SourceError) as error:
        run(source, out, texts=["a <large> text"])
    assert error.value.code == "TOKENIZER_UNUSABLE"
    assert error.value.why == "it makes token 700, and the model has 260"
    assert error.value.where == str(source)


def test_code_of_the_model_is_never_run(tiny: Path, tmp_path: Path, out: Workspace) -> None:
    """A llama has a class of its own in transformers, which is taken instead."""
    source, trace = tmp_path / "source", Path("/tmp/engine-builder-was-here")
    trace.unlink(missing_ok=True)
    shutil.copytree(tiny, source)
    _with_code(source)
    run(source, out)
    assert not trace.exists()


def test_a_linear_of_zeros_has_no_scale(tiny: Path, tmp_path: Path, out: Workspace) -> None:
    """The library divides by it and writes NaN."""
    source = tmp_path / "source"
    shutil.copytree(tiny, source)
    edit_weights(source, lambda tensors: tensors[DOWN].zero_())
    with pytest.raises(ToolchainError) as error:
        run(source, out, "nvfp4")
    assert error.value.code == "CALIBRATION_NOT_FINITE"
    assert "transformer.layers.1.mlp.proj.weights_scaling_factor" in (error.value.why or "")


def test_float16_that_overflows_is_told(make_tiny: Callable[..., Path], out: Workspace) -> None:
    source = make_tiny()
    edit_weights(source, lambda tensors: [tensors[name].mul_(3000) for name in tensors if ".mlp." in name])
    with pytest.raises(ToolchainError) as error:
        run(source, out, dtype="float16")
    assert error.value.code == "CALIBRATION_NOT_FINITE"
    assert "bf16" in (error.value.hint or "")
