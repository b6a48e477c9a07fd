import os
import sys
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from builder.errors import HostError
from builder.runtime.bundle import Bundle
from builder.runtime.launcher import Installation, Triton, copy_models, find_triton


@pytest.fixture
def model(bundle: Bundle) -> Path:
    """One model whose parameters name the place in an image, and something that only looks like it."""
    folder = bundle.models / "preprocessing"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text("pass\n")
    config = ModelConfig(name="preprocessing", backend="python")
    config.parameters["tokenizer_dir"].string_value = "/opt/engine-builder/tokenizer"
    config.parameters["other"].string_value = "/opt/engine-builder-2/x"
    (folder / "config.pbtxt").write_text(text_format.MessageToString(config))
    return folder


def test_paths_of_the_image_become_paths_of_the_bundle_in_a_copy(bundle: Bundle, model: Path, tmp_path: Path) -> None:
    before = (model / "config.pbtxt").read_bytes()
    copy_models(bundle, tmp_path / "copy")
    text = (tmp_path / "copy/preprocessing/config.pbtxt").read_text()
    parameters = text_format.Parse(text, ModelConfig()).parameters
    assert parameters["tokenizer_dir"].string_value == str(bundle.tokenizer)
    assert parameters["other"].string_value == "/opt/engine-builder-2/x"
    assert (tmp_path / "copy/preprocessing/1/model.py").read_text() == "pass\n"
    assert (model / "config.pbtxt").read_bytes() == before


def test_the_wheel_s_triton_is_found_with_the_stub_of_this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    installation = find_triton()
    assert installation.binary.name == "tritonserver"
    assert installation.stub is not None
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in installation.stub.parts


def test_a_triton_on_path_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "tritonserver"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    assert find_triton() == Installation(program, tmp_path / "backends")


def test_a_cache_that_cannot_be_made_is_explained(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HostError) as caught:
        Triton(bundle, tmp_path / "file" / "cache", find_triton())
    assert caught.value.code == "CACHE_NOT_WRITABLE"
    assert str(os.getuid()) in caught.value.message
    assert str(tmp_path / "file" / "cache") in caught.value.message
    assert "mode" in str(caught.value.why)
    assert "NIM_CACHE_PATH" in str(caught.value.hint)
