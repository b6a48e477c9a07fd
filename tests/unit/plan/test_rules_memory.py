from pathlib import Path
from typing import Any

import pytest

from builder.lock import required_lock
from builder.plan import check, resolve_units
from builder.recipe import load_recipe
from builder.selection import find_recipes
from tests.unit.plan.found import LLAMA_2_70B, LLAMA_8B, LLAMA_70B, found
from tests.unit.plan.plans import MakeUnits

LLAMA_2_7B: dict[str, Any] = LLAMA_8B | {
    "intermediate_size": 11008,
    "num_key_value_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "torch_dtype": "float16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
RECIPES = Path(__file__).parents[3] / "recipes"
MEMORY = {"WEIGHTS_DO_NOT_FIT", "KV_POOL_BELOW_MINIMUM", "KV_DOES_NOT_FIT", "RUNTIME_BUFFERS"}


def memory_codes(make_units: MakeUnits, *args: Any, **recipe: Any) -> set[str]:
    return set(found(make_units, *args, **recipe)) & MEMORY


def test_weights_larger_than_the_gpu_are_refused_with_what_would_fit(make_units: MakeUnits) -> None:
    """NVIDIA/TensorRT-LLM issue 1609: Llama-3-8B in fp16 on 12 GB."""
    recipe: dict[str, Any] = {"sku": "rtx-4070-super-12gb", "precision": {"weights": "fp16"}}
    finding = found(make_units, **recipe)["WEIGHTS_DO_NOT_FIT"]
    assert finding.severity == "refuse"
    assert finding.values["weight_gib"] == 14.96
    assert finding.values["gpu_gib"] == 12
    assert finding.values["int4_linear_only_bytes"] == 5_591_539_712
    assert "int4-awq" in finding.suggestion
    assert memory_codes(make_units, **recipe) == {"WEIGHTS_DO_NOT_FIT"}


def test_weights_fit_when_they_are_split(make_units: MakeUnits) -> None:
    assert found(make_units, LLAMA_70B)["WEIGHTS_DO_NOT_FIT"].values["fitting_tensor"] == 2
    assert memory_codes(make_units, LLAMA_70B, parallelism={"tensor": 4}) == set()


def test_a_cache_smaller_than_one_sequence_is_refused_with_the_shortfall(make_units: MakeUnits) -> None:
    """tensorrtllm_backend issue 168: 1,664 tokens of 524,288 bytes, where one sequence takes 20 blocks of 128."""
    finding = found(
        make_units,
        LLAMA_2_7B,
        sku="rtx-3080-10gb",
        precision={"weights": "int4-wo"},
        limits={"max_seq_len": 2560, "max_batch_size": 1, "max_num_tokens": 2560},
        engine={"tokens_per_block": 128},
        serving={"kv_cache_free_gpu_mem_fraction": 0.16},
    )["KV_POOL_BELOW_MINIMUM"]
    assert finding.severity == "refuse"
    assert finding.values["kv_bytes_per_token"] == 524_288
    assert finding.values["needed_tokens"] == 2560
    assert finding.values["needed_bytes"] == 1_342_177_280
    assert finding.values["pool_tokens"] < 2560
    assert finding.values["pool_tokens"] % 128 == 0
    assert "kv_cache_free_gpu_mem_fraction above" in finding.suggestion


@pytest.mark.parametrize(("cap", "beams", "refused"), [(8191, 1, True), (8192, 1, False), (8192, 2, True)])
def test_a_cap_below_one_sequence_on_all_beams_is_refused(
    make_units: MakeUnits, cap: int, beams: int, refused: bool
) -> None:
    codes = found(
        make_units,
        limits={"max_beam_width": beams},
        serving={"max_tokens_in_paged_kv_cache": cap, "streaming": False},
    )
    assert ("KV_POOL_BELOW_MINIMUM" in codes) == refused


def test_a_batch_of_one_that_does_not_fit_is_refused(make_units: MakeUnits) -> None:
    """vllm-project/vllm issue 10517: Llama-3.1-8B on 24 GB, 29,000 tokens asked for; with its share of memory."""
    recipe: dict[str, Any] = {"sku": "rtx-3090-24gb", "limits": {"max_batch_size": 1, "max_seq_len": 29000}}
    finding = found(make_units, **recipe, serving={"kv_cache_free_gpu_mem_fraction": 0.36})["KV_DOES_NOT_FIT"]
    assert finding.severity == "refuse"
    assert finding.values["weight_bytes"] == 16_060_522_496
    assert finding.values["weight_gib"] == 14.958
    assert finding.values["kv_bytes_per_token"] == 131_072
    assert finding.values["kv_needed_bytes"] == 3_801_088_000
    assert finding.values["max_tokens"] * 131_072 / 2**30 == pytest.approx(finding.values["kv_available_gib"], abs=0.01)
    assert memory_codes(make_units, **recipe, serving={"kv_cache_free_gpu_mem_fraction": 0.9}) == set()


def test_a_batch_of_which_a_fifth_fits_beside_heavy_weights_is_refused(make_units: MakeUnits) -> None:
    """NVIDIA/TensorRT-LLM issue 203: Llama-2-70B on two A100 of 80 GB, 50 sequences of 8,192 tokens, about 8 fit."""
    recipe: dict[str, Any] = {
        "sku": "a100-sxm-80gb",
        "precision": {"weights": "fp16"},
        "limits": {"max_batch_size": 50, "max_input_len": 4096, "max_seq_len": 8192},
    }
    finding = found(make_units, LLAMA_2_70B, **recipe, parallelism={"tensor": 2})["KV_DOES_NOT_FIT"]
    assert finding.severity == "refuse-waivable"
    assert finding.values["weight_bytes_total"] == 137_953_296_384
    assert finding.values["weight_gib_rank"] == 64.48
    assert finding.values["kv_bytes_per_token_rank"] == 163_840
    assert finding.values["kv_gib_rank_full_batch"] == 62.5
    assert 8 <= finding.values["max_batch_size"] <= 10
    assert finding.values["fitting_tensor"] == 4
    assert memory_codes(make_units, LLAMA_2_70B, **recipe, parallelism={"tensor": 4}) == set()


@pytest.mark.parametrize("sku", ["h100-sxm-80gb", "a100-sxm-80gb", "l40s-48gb"])
def test_a_batch_that_is_full_of_shorter_requests_is_accepted(make_units: MakeUnits, sku: str) -> None:
    """64 sequences of 16,384 tokens take 128 GiB, more than these GPUs have; few requests are so long."""
    limits = {"max_batch_size": 64, "max_seq_len": 16384}
    assert memory_codes(make_units, sku=sku, limits=limits) == set()


def test_a_batch_far_out_of_proportion_is_told(make_units: MakeUnits) -> None:
    """NVIDIA/TensorRT-LLM issue 2139: 70B on eight GPUs built for a batch of 8,192."""
    limits = {"max_batch_size": 8192, "max_num_tokens": 16384, "max_seq_len": 4096}
    codes = found(make_units, LLAMA_70B, limits=limits, parallelism={"tensor": 8})
    assert codes["RUNTIME_BUFFERS"].severity == "warn"
    assert codes["RUNTIME_BUFFERS"].values["fp32_logits_bytes_unsharded"] == 4_202_692_608
    assert not any(finding.refuses for finding in codes.values())


def test_logits_alone_can_be_out_of_proportion(make_units: MakeUnits) -> None:
    limits = {"max_batch_size": 4096, "max_num_tokens": 8192, "max_seq_len": 256}
    finding = found(make_units, limits=limits)["RUNTIME_BUFFERS"]
    assert finding.values["fp32_logits_bytes_unsharded"] == 4096 * 128256 * 4
    assert finding.values["kv_ratio"] < 10
    assert memory_codes(make_units, limits=limits | {"max_batch_size": 512}) == set()


def test_nothing_is_said_of_a_machine_whose_memory_is_unknown(make_units: MakeUnits) -> None:
    assert memory_codes(make_units, LLAMA_8B, sku="cpu") == set()


def test_recipes_of_this_repository_fit() -> None:
    for file in find_recipes(RECIPES):
        recipe = load_recipe(file)
        for unit in resolve_units(recipe, required_lock(recipe)):
            assert not any(finding.refuses for finding in check(unit)), unit.id
