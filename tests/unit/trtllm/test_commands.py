"""The command lines that a unit comes to."""

import json
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from builder import catalog
from builder.plan import Unit
from builder.trtllm.commands import Command, commands
from tests.unit.plan.plans import MakePlan

CONFIGS = Path(__file__).parents[2] / "configs"

RECIPE = dedent("""\
    schema: 1
    name: tiny
    version: 1.0.0
    model: {source: ./model}
    toolchain: trtllm-1.2.1
    precision: {weights: bf16}
    limits: {max_batch_size: 4, max_input_len: 512, max_seq_len: 1024, max_num_tokens: 4096}
    targets: [{sku: h100-sxm-80gb}]
    """)


def config(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text())
    return loaded


def unit(make_plan: MakePlan, more: str = "", **arguments: Any) -> Unit:
    return make_plan(RECIPE + more, **arguments)[0].unit


def by_stage(unit: Unit) -> dict[str, Command]:
    return {command.stage: command for command in commands(unit)}


def option(argv: tuple[str, ...], name: str) -> str | None:
    return argv[argv.index(name) + 1] if name in argv else None


def test_a_plain_model_is_converted_by_us_and_compiled_in_the_build_image(make_plan: MakePlan) -> None:
    checkpoint, engine = commands(unit(make_plan))
    assert checkpoint.image is None
    assert engine.argv[0] == "trtllm-build"
    assert engine.image == "nvcr.io/nvidia/tensorrt-llm/release:1.2.1"


def test_every_limit_is_written_out(make_plan: MakePlan) -> None:
    argv = by_stage(unit(make_plan))["engine"].argv
    assert option(argv, "--max_batch_size") == "4"
    assert option(argv, "--max_input_len") == "512"
    assert option(argv, "--max_seq_len") == "1024"
    assert option(argv, "--max_num_tokens") == "4096"
    assert option(argv, "--max_beam_width") == "1"
    assert option(argv, "--use_paged_context_fmha") == "enable"


def test_the_timing_cache_never_lands_in_the_working_folder(make_plan: MakePlan) -> None:
    assert option(by_stage(unit(make_plan))["engine"].argv, "--output_timing_cache") == "/engine/model.cache"


def test_options_are_spelt_as_the_tool_wants_them(make_plan: MakePlan) -> None:
    more = "engine: {multiple_profiles: true, gemm_plugin: auto, strip_plan: true, weight_sparsity: false}\n"
    argv = by_stage(unit(make_plan, more))["engine"].argv
    assert option(argv, "--multiple_profiles") == "enable"
    assert option(argv, "--gemm_plugin") == "auto"
    assert "--strip_plan" in argv
    assert option(argv, "--strip_plan") != "enable"
    assert "--weight_sparsity" not in argv


def test_every_flag_of_every_command_is_in_the_tables_of_the_release(make_plan: MakePlan) -> None:
    more = (
        "engine: {multiple_profiles: true, kv_cache_type: paged}\n"
        "lora: {max_rank: 16, target_modules: [attn_q, attn_v]}\n"
        "calibration: {dataset: 'hf://datasets/example/texts'}\n"
    )
    fp8 = RECIPE.replace("{weights: bf16}", "{weights: fp8, kv_cache: fp8}")
    made = by_stage(make_plan(fp8 + more)[0].unit)
    for stage, tool in (("checkpoint", "quantize"), ("engine", "trtllm-build")):
        known = catalog.flags(tool, "1.2.1")
        used = [word.removeprefix("--") for word in made[stage].argv if word.startswith("--")]
        assert used
        assert [word for word in used if word not in known] == []


def test_fp8_is_quantised_with_the_calibration_of_the_recipe(make_plan: MakePlan) -> None:
    text = RECIPE.replace("{weights: bf16}", "{weights: fp8, kv_cache: fp8}")
    text += "calibration: {dataset: 'hf://datasets/example/texts', samples: 64, max_length: 256, seed: 7}\n"
    argv = by_stage(make_plan(text)[0].unit)["checkpoint"].argv
    assert argv[1].endswith("/quantization/quantize.py")
    assert option(argv, "--qformat") == "fp8"
    assert option(argv, "--kv_cache_dtype") == "fp8"
    assert option(argv, "--calib_size") == "64"
    assert option(argv, "--calib_max_seq_length") == "256"
    assert option(argv, "--seed") == "7"


def test_another_family_is_converted_by_the_script_of_the_release(make_plan: MakePlan) -> None:
    argv = by_stage(unit(make_plan, config=config("Qwen--Qwen2-57B-A14B")))["checkpoint"].argv
    assert argv[1] == "/app/tensorrt_llm/examples/models/core/qwen/convert_checkpoint.py"
    assert option(argv, "--dtype") == "bfloat16"


def test_experts_are_split_as_the_recipe_says(make_plan: MakePlan) -> None:
    more = "parallelism: {tensor: 4, expert: 4}\n"
    argv = by_stage(unit(make_plan, more, config=config("Qwen--Qwen2-57B-A14B")))["checkpoint"].argv
    assert (option(argv, "--tp_size"), option(argv, "--moe_tp_size"), option(argv, "--moe_ep_size")) == ("4", "1", "4")


def test_the_pytorch_flow_is_served_without_a_build(make_plan: MakePlan) -> None:
    (serve,) = commands(unit(make_plan, "flow: pytorch\nserving: {family: llmapi}\n"))
    assert serve.argv[:4] == ("trtllm-serve", "/model", "--backend", "pytorch")
    assert "trtllm-build" not in serve.argv


def test_the_reference_model_runs_no_command_of_tensorrt_llm(make_plan: MakePlan) -> None:
    text = RECIPE.replace("h100-sxm-80gb", "cpu")
    assert all(command.image is None for command in commands(make_plan(text)[0].unit))


@pytest.mark.parametrize(
    ("version", "shown"),
    [
        ("0.10.0", "--max_input_len 2048 --max_output_len 2048"),
        ("0.12.0", "--max_input_len 2048 --max_seq_len 4096"),
        ("1.2.1", "--max_input_len 2048 --max_seq_len 4096"),
    ],
)
def test_lengths_are_spelt_as_each_release_had_them(version: str, shown: str) -> None:
    assert " ".join(catalog.length_flags(version, 2048, 2048)) == shown


def test_a_quantised_kv_cache_is_made_by_the_release_which_is_in_the_key(make_plan: MakePlan) -> None:
    plain = make_plan(RECIPE)[0]
    quantised = make_plan(RECIPE.replace("{weights: bf16}", "{weights: bf16, kv_cache: int8}"))[0]
    assert "toolchain" not in plain.stages["checkpoint"].inputs["parameters"]
    assert quantised.stages["checkpoint"].inputs["parameters"]["toolchain"]["name"] == "trtllm-1.2.1"
    assert by_stage(quantised.unit)["checkpoint"].argv[1].endswith("quantize.py")
