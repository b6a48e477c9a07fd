"""What is settled before ModelOpt is started: jobs, refusals, versions."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest

from builder.checkpoint import quantize as module
from builder.checkpoint.quantize import Quantization, quantize, require_modelopt
from builder.errors import BuilderError, HostError
from builder.model.spec import ModelSpec
from builder.store import Workspace
from tests.unit.checkpoint.families import save_model


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The jobs that would have been started, as the worker would read them; it would write a config.json."""
    jobs: list[dict[str, Any]] = []

    def run(job: dict[str, Any], advance: Callable[[int], None]) -> dict[str, Any]:
        jobs.append(json.loads(json.dumps(job)))
        (Path(job["out"]) / "config.json").write_text('{"quantization": {"quant_algo": "FP8"}}')
        advance(len(job["texts"]))
        return {"device": "cpu"}

    monkeypatch.setattr(module, "run", run)
    monkeypatch.setattr(module, "require_modelopt", lambda: "0.47.0")
    return jobs


@pytest.fixture
def make(
    tmp_path: Path, spec_of: Callable[[Path], ModelSpec], started: list[dict[str, Any]]
) -> Callable[..., dict[str, Any]]:
    """Quantise a small model of a family; returns the job."""

    def run(
        family: str = "llama", texts: tuple[str, ...] = ("a text",), sizes: Any = None, **job: Any
    ) -> dict[str, Any]:
        source = save_model(tmp_path / "source", family, **(sizes or {}))
        out = Workspace(tmp_path / "out")
        out.path.mkdir()
        settings = Quantization(**{"precision": "fp8", "dtype": "bfloat16", **job})
        quantize(source, spec_of(source), texts, settings, out)
        [started_job] = started
        return started_job

    return run


def test_a_job_carries_every_setting(make: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    settings = {"kv_cache": "fp8", "tp": 3, "max_length": 77, "batch_size": 5, "seed": 9}
    job = make(texts=("one", "two"), **settings)
    expected = asdict(Quantization("fp8", "bfloat16", **settings))
    assert {name: job[name] for name in expected} == expected
    assert {field.name for field in fields(Quantization)} <= job.keys()
    assert job["texts"] == ["one", "two"]
    assert (job["source"], job["out"]) == (str(tmp_path / "source"), str(tmp_path / "out"))
    assert (job["architecture"], job["model_type"], job["vocab_size"]) == ("LlamaForCausalLM", "llama", 97)


def test_uneven_pipeline_stages_are_those_of_tensorrt_llm(make: Callable[..., dict[str, Any]]) -> None:
    """torch.tensor_split gives the first stages the rest."""
    assert make(pp=3)["stages"] == [[0, 2], [2, 3], [3, 4]]


def test_a_recipe_is_named_by_its_absolute_path(make: Callable[..., dict[str, Any]]) -> None:
    assert make(modelopt_recipe=Path("recipe.yaml"))["modelopt_recipe"] == str(Path("recipe.yaml").absolute())


def test_row_wise_fp8_measures_nothing(make: Callable[..., dict[str, Any]]) -> None:
    assert make(precision="fp8-rowwise", texts=())["texts"] == []


def test_the_config_is_finished_and_every_file_has_its_digest(
    tmp_path: Path, spec_of: Callable[[Path], ModelSpec], started: list[dict[str, Any]]
) -> None:
    source, out, told = save_model(tmp_path / "source", "llama"), Workspace(tmp_path / "out"), []
    out.path.mkdir()
    facts = quantize(
        source,
        spec_of(source),
        ["a text"],
        Quantization("fp8", "bfloat16"),
        out,
        finish=lambda made: {"ours": made["quantization"]},
        advance=told.append,
    )
    assert json.loads((out.path / "config.json").read_text()) == {"ours": {"quant_algo": "FP8"}}
    assert out.digests.keys() == {"config.json"}
    assert out.digests["config.json"].size == (out.path / "config.json").stat().st_size
    assert (facts, told) == ({"device": "cpu"}, [1])


@pytest.mark.parametrize(
    ("code", "words", "case"),
    [
        ("TEXT_EMPTY", "none", {"texts": ()}),
        ("TEXT_EMPTY", "blank", {"texts": ("", " \n")}),
        ("TEXT_EMPTY", "none", {"texts": (), "precision": "fp8-rowwise", "kv_cache": "fp8"}),
        ("EXPORT_UNSUPPORTED", "it knows llama", {"family": "gemma-2"}),
        ("EXPORT_UNSUPPORTED", "it knows llama", {"family": "gemma-3"}),
        ("EXPORT_UNSUPPORTED", "it knows llama", {"family": "phi-4"}),
        ("EXPORT_UNSUPPORTED", "it knows llama", {"family": "qwen3-moe"}),
        ("EXPORT_UNSUPPORTED", "experts that are one tensor", {"family": "mixtral"}),
        ("EXPORT_UNSUPPORTED", "float32 was asked for", {"dtype": "float32"}),
        ("EXPORT_UNSUPPORTED", "3 KV heads", {"precision": "int8-sq", "tp": 6}),
        ("EXPORT_UNSUPPORTED", "INT8 KV cache", {"kv_cache": "int8", "export_format": "hf"}),
        (
            "EXPORT_UNSUPPORTED",
            "no experts of INT4",
            {"family": "mixtral", "precision": "int4-awq", "export_format": "hf"},
        ),
        (
            "HEAD_NOT_QUANTIZED",
            "tied to the embedding",
            {"family": "llama, tied", "quantize_lm_head": True, "export_format": "hf"},
        ),
        ("HEAD_NOT_QUANTIZED", "in Gemma", {"family": "gemma", "quantize_lm_head": True}),
        ("HEAD_NOT_QUANTIZED", "97 tokens", {"precision": "int8-sq", "quantize_lm_head": True, "tp": 3}),
        ("HEAD_NOT_QUANTIZED", "a multiple of 16", {"precision": "nvfp4", "quantize_lm_head": True}),
        ("NOTHING_QUANTIZED", "nothing is quantised", {"precision": "bf16"}),
        ("EXPORT_BLOCK_SIZE", "48 and 96 inputs can't be cut into blocks of 128", {"precision": "int4-awq"}),
    ],
)
def test_what_is_known_not_to_work_is_refused_before_anything_starts(
    make: Callable[..., dict[str, Any]], started: list[dict[str, Any]], code: str, words: str, case: dict[str, Any]
) -> None:
    with pytest.raises(BuilderError) as error:
        make(**case)
    assert error.value.code == code
    assert words in error.value.render()
    assert started == []


def test_the_pytorch_flow_is_offered_where_engines_have_no_export(make: Callable[..., dict[str, Any]]) -> None:
    with pytest.raises(BuilderError, match="Gemma2ForCausalLM") as error:
        make("gemma-2")
    assert "flow: pytorch" in (error.value.hint or "")


@pytest.mark.parametrize("family", ["gemma-2", "gemma-3", "phi-4", "mixtral", "qwen3-moe"])
def test_the_hugging_face_format_has_families_that_engines_have_not(
    make: Callable[..., dict[str, Any]], family: str
) -> None:
    assert make(family, export_format="hf")["export_format"] == "hf"


@pytest.mark.parametrize(
    ("sizes", "tp", "hint"),
    [
        ({"hidden_size": 192, "intermediate_size": 384, "head_dim": 32}, 1, "blocks of 64 weights"),
        ({"hidden_size": 96, "intermediate_size": 192, "head_dim": 16}, 1, "fp8 or int8-sq"),
    ],
)
def test_blocks_that_fit_are_named(
    make: Callable[..., dict[str, Any]], sizes: dict[str, int], tp: int, hint: str
) -> None:
    with pytest.raises(BuilderError) as error:
        make(precision="int4-awq", tp=tp, sizes=sizes)
    assert error.value.code == "EXPORT_BLOCK_SIZE"
    assert hint in (error.value.hint or "")


def test_blocks_must_fit_the_share_of_a_rank(make: Callable[..., dict[str, Any]]) -> None:
    """down_proj has 384 inputs: six blocks of 64, which two ranks can share, and four can't."""
    sizes = {
        "hidden_size": 256,
        "intermediate_size": 384,
        "head_dim": 32,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
    }
    with pytest.raises(BuilderError, match=r"96 inputs on each of 4 tensor ranks"):
        make(precision="int4-awq", group_size=64, tp=4, sizes=sizes)


@pytest.mark.parametrize("found", ["0.37.0", "0.47.0", "0.48.0rc1", "1.0", "0.47.0+local", "built by hand"])
def test_versions_since_that_of_tensorrt_llm_1_2_will_do(found: str) -> None:
    assert not module.too_old(found)


def test_older_versions_wont_do() -> None:
    assert module.too_old("0.36.9")


def test_another_version_than_that_of_the_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: name)
    monkeypatch.setattr(module, "version", lambda name: "0.46.0")
    with pytest.raises(HostError, match=r"ModelOpt 0\.46\.0 is installed") as error:
        require_modelopt("0.47.0")
    assert error.value.code == "MODELOPT_VERSION"
    assert error.value.hint == "pip install nvidia-modelopt==0.47.0"


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == "torch" else name)
    monkeypatch.setattr(module, "version", lambda name: "0.47.0")
    with pytest.raises(HostError, match="quantising needs torch") as error:
        require_modelopt()
    assert error.value.code == "MODELOPT_MISSING"
    assert error.value.hint == "pip install 'engine-builder[modelopt]'"
