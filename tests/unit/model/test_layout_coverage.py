"""Which models our own converter converts, and what it says of the others."""

from pathlib import Path

import pytest

from builder.errors import SourceError
from builder.model.layout import not_covered, require_covered
from builder.model.spec import ModelSpec
from tests.unit.model.published import published_config, published_spec

CONFIGS = Path(__file__).parents[2] / "configs"
LLAMA = "meta-llama--Llama-3.1-8B"

COVERED = (
    *(
        "meta-llama--Llama-2",
        "meta-llama--Meta-Llama-3",
        "meta-llama--Llama-3.",
        "openlm",
        "TinyLlama",
        "HuggingFaceTB",
    ),
    *("mistralai--Mi", "Qwen--Qwen1.5", "Qwen--Qwen2-1", "Qwen--Qwen2-7", "Qwen--Qwen2.5", "google--gemma-7b"),
    *("Qwen--Qwen3-0", "Qwen--Qwen3-1", "Qwen--Qwen3-2", "Qwen--Qwen3-3", "Qwen--Qwen3-4", "Qwen--Qwen3-8"),
    *("google--gemma-2-", "google--gemma-3-1b", "microsoft--", "deepseek-ai--deepseek-coder", "nvidia--Llama-3.1-70B"),
)
ALSO_COVERED = {"Qwen--Qwen3-235B-A22B"}
NOT_COVERED = {"Qwen--Qwen3-30B-A3B-FP8": "fp8-block", "nvidia--Qwen3-235B-A22B-NVFP4": "experts are quantised (nvfp4)"}


def test_published_models_are_covered_by_family() -> None:
    names = [path.stem for path in CONFIGS.glob("*.json") if ".hf_quant_config" not in path.name]
    readable = {}
    for name in names:
        try:
            readable[name] = published_spec(name)
        except SourceError:
            continue
    covered = {name for name, spec in readable.items() if not_covered(spec) is None}
    expected = {name for name in readable if name.startswith(COVERED) and name not in NOT_COVERED} | ALSO_COVERED
    assert covered == expected
    for name, words in NOT_COVERED.items():
        assert words in str(not_covered(readable[name]))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"auto_map": {"AutoModel": "mine.Model"}}, "auto_map"),
        ({"hidden_act": "relu2"}, "relu2"),
        ({"partial_rotary_factor": 0.5}, "0.5 of each head"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}, "quantised by awq"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 8, "group_size": 128}}, "quantised by gptq"),
        ({"quantization_config": {"quant_method": "hqq"}}, "hqq"),
    ],
)
def test_what_our_converter_does_not_know_is_named(changes: dict[str, object], words: str) -> None:
    described = ModelSpec.from_config({**published_config(LLAMA), **changes}, "config.json")
    assert words in str(not_covered(described))
    with pytest.raises(SourceError) as caught:
        require_covered(described)
    assert caught.value.code == "UNSUPPORTED_ARCHITECTURE"
