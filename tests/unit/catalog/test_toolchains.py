from importlib.resources import files

import pytest
import yaml

from builder import catalog
from builder.catalog import Gpu, toolchains

WITH_ENGINES = ["0.20.0", "0.21.0", "1.0.0", "1.1.0", "1.2.0", "1.2.1"]
PYTORCH_ONLY = ["1.3.0rc21", "1.3.0rc22", "1.3.0rc23", "1.3.0rc24", "1.3.0rc26", "1.3.0rc29", "1.4.0rc1", "1.4.0rc4"]
RETIRED = ["0.8.0", "0.9.0", "0.10.0", "0.11.0", "0.12.0", "0.13.0", "0.14.0", "0.15.0", "0.16.0", "0.17.0", "0.19.0"]
ALL = [*WITH_ENGINES, *PYTORCH_ONLY]


def card(compute_capability: str) -> Gpu:
    return Gpu(name="card", product="card", platform="linux/amd64", compute_capability=compute_capability)


def sheets() -> dict[str, dict[str, object]]:
    folder = files(catalog)
    names = [f"{part}/{path.name}" for part in ("toolchains", "abilities") for path in folder.joinpath(part).iterdir()]
    names += ["retired.yaml", "engine_removal.yaml", "transformers.yaml", "precisions.yaml"]
    return {name: yaml.safe_load(folder.joinpath(name).read_text()) for name in names}


@pytest.mark.parametrize("name", sorted(sheets()))
def test_every_sheet_names_its_sources_with_their_dates(name: str) -> None:
    sources = sheets()[name]["sources"]
    assert isinstance(sources, list)
    assert sources
    for source in sources:
        assert source.keys() == {"fact", "source", "date"}
        assert 2025 <= source["date"].year <= 2026


@pytest.mark.parametrize("name", sorted(name for name in sheets() if name.startswith("toolchains/trtllm")))
def test_every_fact_of_a_release_is_covered_by_a_source(name: str) -> None:
    sheet = sheets()[name]
    covered = ", ".join(source["fact"] for source in sheet["sources"])  # type: ignore[attr-defined]
    facts = sheet.keys() - {"name", "version", "backend", "abilities", "sources"}
    assert not [fact for fact in facts if fact not in covered]


def test_releases_come_in_the_order_of_their_versions() -> None:
    names = [name for name in toolchains() if name != "reference"]
    assert names == sorted(names, key=lambda name: catalog.parse_version(name.removeprefix("trtllm-")))
    assert {f"trtllm-{version}" for version in (*ALL, *RETIRED)} <= set(names)


@pytest.mark.parametrize("version", WITH_ENGINES)
def test_releases_with_engines_name_their_images_versions_and_scripts(version: str) -> None:
    one = toolchains()[f"trtllm-{version}"]
    assert "engine" in one.flows
    assert one.build_image == f"nvcr.io/nvidia/tensorrt-llm/release:{version}"
    assert one.serving_image is not None
    assert one.serving_image.endswith("-trtllm-python-py3")
    assert None not in (one.tensorrt, one.cuda, one.driver, one.python, one.torch, one.modelopt, one.git_commit)
    examples = "/app/tensorrt_llm/examples"
    assert one.quantize_script == f"{examples}/quantization/quantize.py"
    assert one.convert_script["MixtralForCausalLM"] == f"{examples}/models/core/llama/convert_checkpoint.py"
    assert one.convert_script["BloomForCausalLM"] == f"{examples}/models/contrib/bloom/convert_checkpoint.py"


@pytest.mark.parametrize("version", PYTORCH_ONLY)
def test_releases_since_1_3_0rc21_have_the_pytorch_flow_only(version: str) -> None:
    one = toolchains()[f"trtllm-{version}"]
    assert one.flows == ("pytorch",)
    assert one.precisions.keys() == {"pytorch"}
    assert one.convert_script == {}
    assert one.quantize_script is None
    assert one.serving_image == f"nvcr.io/nvidia/tensorrt-llm/release:{version}"


@pytest.mark.parametrize("version", RETIRED)
def test_older_releases_are_known_by_name_and_refused_with_a_reason(version: str) -> None:
    one = toolchains()[f"trtllm-{version}"]
    assert one.retired is not None
    assert "0.20" in one.retired
    assert one.build_image is None


@pytest.mark.parametrize(
    ("version", "tensorrt", "transformers"),
    [("1.0.0", "10.11.0.33", "4.53.1"), ("1.1.0", "10.13.3.9", "4.56.0"), ("1.2.1", "10.14.1.48", "4.57.3")],
)
def test_pins_are_those_of_the_release_notes(version: str, tensorrt: str, transformers: str) -> None:
    one = toolchains()[f"trtllm-{version}"]
    assert (one.tensorrt, one.transformers) == (tensorrt, transformers)


@pytest.mark.parametrize("version", ALL)
def test_precisions_of_every_release_are_known_words(version: str) -> None:
    one = toolchains()[f"trtllm-{version}"]
    for flow in one.flows:
        assert one.precisions[flow].keys() | one.unknown[flow].keys() <= catalog.precisions().keys()
        assert one.kv_precisions[flow].keys() | one.kv_unknown[flow].keys() <= catalog.kv_precisions().keys()
        for row in one.model_precisions[flow].values():
            assert set(row) <= catalog.precisions().keys()


@pytest.mark.parametrize("version", ALL)
def test_no_sm_is_both_supported_and_unknown(version: str) -> None:
    one = toolchains()[f"trtllm-{version}"]
    for flow in one.flows:
        for known, unknown in ((one.precisions, one.unknown), (one.kv_precisions, one.kv_unknown)):
            for precision, where in unknown[flow].items():
                assert not set(where) & set(known[flow].get(precision, ()))


@pytest.mark.parametrize("version", ALL)
def test_what_a_release_runs_the_hardware_can_do(version: str) -> None:
    one = toolchains()[f"trtllm-{version}"]
    for flow in one.flows:
        for precision, where in one.precisions[flow].items():
            assert set(where) <= set(catalog.precisions()[precision].hardware)


@pytest.mark.parametrize(
    ("precision", "capability", "runs"),
    [
        ("bf16", "8.0", True),
        ("bf16", "7.5", False),
        ("fp8", "8.0", False),
        ("fp8", "8.9", True),
        ("fp8-rowwise", "8.9", True),
        ("fp8-rowwise", "10.0", False),
        ("int8-wo", "8.6", True),
        ("int8-wo", "10.0", False),
        ("int8-wo", "12.0", None),
        ("int8-sq", "10.3", False),
        ("int4-awq", "9.0", True),
        ("w4a8-awq", "8.6", False),
        ("nvfp4", "9.0", False),
        ("nvfp4", "10.0", True),
        ("fp8-block", "9.0", False),
        ("mxfp4", "10.0", False),
    ],
)
def test_the_engine_flow_of_1_2_1_runs_a_precision_yes_no_or_unknown(
    precision: str, capability: str, runs: bool | None
) -> None:
    assert toolchains()["trtllm-1.2.1"].runs(precision, card(capability)) is runs


@pytest.mark.parametrize(
    ("precision", "capability", "runs"),
    [
        ("fp8-block", "8.9", False),
        ("fp8-block", "9.0", True),
        ("fp8-block", "10.3", True),
        ("fp8-block", "12.0", False),
        ("fp8-rowwise", "8.9", False),
        ("mxfp4", "9.0", None),
        ("mxfp4", "12.0", True),
        ("int8-sq", "9.0", False),
        ("int8-wo", "9.0", None),
    ],
)
def test_the_pytorch_flow_runs_what_its_matrix_says(precision: str, capability: str, runs: bool | None) -> None:
    assert toolchains()["trtllm-1.2.1"].runs(precision, card(capability), flow="pytorch") is runs


def test_b300_came_with_1_1() -> None:
    assert toolchains()["trtllm-1.0.0"].runs("bf16", card("10.3")) is None
    assert toolchains()["trtllm-1.1.0"].runs("bf16", card("10.3")) is True


@pytest.mark.parametrize(
    ("kv_cache", "capability", "runs"),
    [
        ("fp8", "8.9", True),
        ("fp8", "8.0", None),
        ("int8", "8.0", True),
        ("int8", "10.0", False),
        ("nvfp4", "9.0", False),
    ],
)
def test_kv_caches_have_their_own_table(kv_cache: str, capability: str, runs: bool | None) -> None:
    assert toolchains()["trtllm-1.2.1"].runs_kv(kv_cache, card(capability)) is runs


def test_fp8_kv_on_ampere_is_documented_for_the_pytorch_flow() -> None:
    assert toolchains()["trtllm-1.2.1"].runs_kv("fp8", card("8.0"), flow="pytorch") is True


@pytest.mark.parametrize(
    ("flow", "architecture", "precision", "supported"),
    [
        ("engine", "LlamaForCausalLM", "nvfp4", True),
        ("engine", "MistralForCausalLM", "int4-gptq", False),
        ("engine", "MixtralForCausalLM", "int4-awq", True),
        ("engine", "PhiForCausalLM", "bf16", True),
        ("engine", "PhiForCausalLM", "fp8", False),
        ("engine", "LlamaForCausalLM", "w4a8-awq", None),
        ("engine", "CohereForCausalLM", "fp8", None),
        ("pytorch", "GptOssForCausalLM", "mxfp4", True),
        ("pytorch", "DeepseekV3ForCausalLM", "fp8", False),
        ("pytorch", "LlamaForCausalLM", "fp8-rowwise", True),
        ("pytorch", "LlamaForCausalLM", "fp8-block", False),
        ("pytorch", "Qwen3MoeForCausalLM", "fp8-block", True),
    ],
)
def test_the_tables_of_models_say_yes_no_or_nothing(
    flow: str, architecture: str, precision: str, supported: bool | None
) -> None:
    assert toolchains()["trtllm-1.2.1"].supports(architecture, precision, flow) is supported


def test_qwen3_engines_came_with_1_0_and_gpt_oss_has_none() -> None:
    old, new = toolchains()["trtllm-0.21.0"], toolchains()["trtllm-1.2.1"]
    assert "Qwen3ForCausalLM" not in old.architectures["engine"]
    assert {"Qwen3ForCausalLM", "Qwen3MoeForCausalLM"} <= set(new.architectures["engine"])
    assert "GptOssForCausalLM" not in new.architectures["engine"]
    assert "GptOssForCausalLM" in new.architectures["pytorch"]


def test_the_reference_toolchain_runs_on_the_cpu_and_nowhere_else() -> None:
    reference = toolchains()["reference"]
    assert reference.skus == ("cpu",)
    assert reference.runs("bf16", catalog.gpus()["cpu"]) is True
    assert reference.runs("bf16", card("9.0")) is False


def test_the_latest_toolchain_with_engines_is_the_last_stable_one() -> None:
    assert catalog.latest_engine_toolchain().name == "trtllm-1.2.1"


def test_an_unknown_toolchain_is_not_in_the_mapping() -> None:
    assert "trtllm-9.9.9" not in toolchains()
    with pytest.raises(KeyError):
        toolchains()["trtllm-9.9.9"]
