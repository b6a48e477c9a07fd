"""The reference model against transformers in float32, on checkpoints that `sharding` cuts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from builder.reference import model as model_module
from builder.reference.errors import ReferenceModelError
from builder.reference.model import ReferenceModel
from tests.unit.reference.sharding import write_checkpoint
from tests.unit.reference.tiny import tiny_llama

# Both sides compute in float32 and differ in the order of their sums only, which the split over ranks changes too. One
# rounding is 6e-8 of a value; over the sums of three layers the logits, which reach 9 here, differ by up to 4e-5.
# A wrongly read tensor changes them by more than 1 (see the test of swapped halves below).
TOLERANCE = 2e-4

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    # the four wavelengths of a head of 8 are 6, 53, 445 and 3739 tokens: kept, interpolated, divided, divided
    "original_max_position_embeddings": 64,
}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0}


def random_tokens(count: int, vocab_size: int = 97, seed: int = 7) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, vocab_size, count)


def expected_logits(model: LlamaForCausalLM, tokens: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model(torch.from_numpy(tokens)[None]).logits[0].numpy()


def all_logits(model: ReferenceModel, tokens: np.ndarray) -> np.ndarray:
    return model.prefill(tokens, model.new_cache(len(tokens)), all_positions=True)


@pytest.fixture(scope="module")
def llama() -> LlamaForCausalLM:
    return tiny_llama()


@pytest.fixture(scope="module")
def reference(llama: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> ReferenceModel:
    """tp 3, pp 2: every way of joining ranks at once."""
    return ReferenceModel.load(write_checkpoint(llama, tmp_path_factory.mktemp("checkpoint"), tp=3, pp=2))


@pytest.mark.parametrize(
    ("options", "tp", "pp"),
    [
        pytest.param({}, 1, 1, id="one-rank"),
        pytest.param({}, 3, 1, id="tp3-uneven-vocabulary"),
        pytest.param({}, 1, 2, id="pp2-uneven-layers"),
        pytest.param({}, 3, 2, id="tp3-pp2"),
        pytest.param({"num_key_value_heads": 2}, 2, 1, id="tp2"),
        pytest.param({"num_key_value_heads": 2}, 2, 2, id="tp2-pp2"),
        pytest.param({"num_key_value_heads": 6}, 3, 1, id="tp3-without-grouping"),
        pytest.param({"num_key_value_heads": 1}, 2, 1, id="tp2-replicated-kv-head"),
        pytest.param({"num_key_value_heads": 2}, 6, 1, id="tp6-replicated-kv-heads"),
        pytest.param({"tie_word_embeddings": True}, 1, 1, id="tied"),
        pytest.param({"tie_word_embeddings": True}, 3, 2, id="tied-tp3-pp2"),
        pytest.param({"attention_bias": True}, 1, 1, id="attention-bias"),
        pytest.param({"attention_bias": True, "mlp_bias": True}, 3, 2, id="all-biases-tp3-pp2"),
        pytest.param({"rope_parameters": LINEAR_ROPE}, 1, 1, id="rope-linear"),
        pytest.param({"rope_parameters": LLAMA3_ROPE}, 3, 1, id="rope-llama3"),
        pytest.param({"rms_norm_eps": 0.1}, 1, 1, id="large-epsilon"),
    ],
)
def test_logits_equal_those_of_transformers(options: dict[str, Any], tp: int, pp: int, tmp_path: Path) -> None:
    llama = tiny_llama(**options)
    model = ReferenceModel.load(write_checkpoint(llama, tmp_path, tp=tp, pp=pp))
    tokens = random_tokens(120)
    logits = all_logits(model, tokens)
    assert logits.shape == (120, 97)
    assert logits.dtype == np.float32
    assert_allclose(logits, expected_logits(llama, tokens), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_are_widened_exactly(dtype: torch.dtype, tmp_path: Path) -> None:
    llama = tiny_llama()
    model = ReferenceModel.load(write_checkpoint(llama, tmp_path, tp=3, dtype=dtype))
    for parameter in llama.parameters():  # not llama.to(dtype), which would round the rotary frequencies as well
        parameter.data = parameter.data.to(dtype).to(torch.float32)
    tokens = random_tokens(40)
    assert_allclose(all_logits(model, tokens), expected_logits(llama, tokens), atol=TOLERANCE, rtol=0)


def test_swapped_halves_of_the_gated_mlp_are_noticed(llama: LlamaForCausalLM, tmp_path: Path) -> None:
    folder = write_checkpoint(llama, tmp_path)
    tensors = load_file(folder / "rank0.safetensors")
    swapped = {
        name.replace("mlp.fc.", "mlp.x.").replace("mlp.gate.", "mlp.fc.").replace("mlp.x.", "mlp.gate."): tensor
        for name, tensor in tensors.items()
    }
    save_file(swapped, folder / "rank0.safetensors")
    tokens = random_tokens(40)
    difference = all_logits(ReferenceModel.load(folder), tokens) - expected_logits(llama, tokens)
    assert np.abs(difference).max() > 1


def test_prefill_returns_the_logits_of_the_last_position(llama: LlamaForCausalLM, reference: ReferenceModel) -> None:
    tokens = random_tokens(30)
    logits = reference.prefill(tokens, reference.new_cache(30))
    assert logits.shape == (97,)
    assert_allclose(logits, expected_logits(llama, tokens)[-1], atol=TOLERANCE, rtol=0)


def test_decoding_token_by_token_equals_prefilling_the_whole(reference: ReferenceModel) -> None:
    tokens = random_tokens(60)
    cache = reference.new_cache(60)
    first = reference.prefill(tokens[:20], cache)
    steps = [reference.decode(tokens[i : i + 1], [cache])[0] for i in range(20, 60)]
    assert cache.length == 60
    assert_allclose(np.stack([first, *steps]), all_logits(reference, tokens)[19:], atol=TOLERANCE, rtol=0)


def test_a_prompt_may_come_in_parts(reference: ReferenceModel) -> None:
    tokens = random_tokens(60)
    cache = reference.new_cache(60)
    parts = [reference.prefill(part, cache, all_positions=True) for part in np.split(tokens, [7, 8, 40])]
    assert_allclose(np.concatenate(parts), all_logits(reference, tokens), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("batch", [3, 8, 11])
def test_a_batched_step_equals_single_steps_of_each_sequence(reference: ReferenceModel, batch: int) -> None:
    prompts = [random_tokens(3 + 5 * i, seed=i) for i in range(batch)]
    together = [reference.new_cache(100) for _ in prompts]
    alone = [reference.new_cache(100) for _ in prompts]
    for prompt, *caches in zip(prompts, together, alone, strict=True):
        for cache in caches:
            reference.prefill(prompt, cache)
    for step in range(4):
        tokens = random_tokens(batch, seed=100 + step)
        logits = reference.decode(tokens, together)
        assert logits.shape == (batch, 97)
        single = [reference.decode(tokens[i : i + 1], [alone[i]])[0] for i in range(batch)]
        assert_allclose(logits, np.stack(single), atol=TOLERANCE, rtol=0)


def test_a_long_prompt_is_computed_in_chunks_with_the_same_result(llama: LlamaForCausalLM, tmp_path: Path) -> None:
    model = ReferenceModel.load(write_checkpoint(llama, tmp_path))
    tokens = random_tokens(500)
    assert [rows.stop - rows.start for rows in model._chunks(0, 500)] == [256, 244]
    assert_allclose(all_logits(model, tokens), expected_logits(llama, tokens), atol=TOLERANCE, rtol=0)


def test_chunks_shrink_so_that_attention_scores_stay_bounded(
    reference: ReferenceModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = random_tokens(90)
    whole = all_logits(reference, tokens)
    monkeypatch.setattr(model_module, "_CHUNK_SCORE_BYTES", 4 * 2 * 300 * 10)  # 2 heads on a rank, 300 tokens, 10 rows
    sizes = [rows.stop - rows.start for rows in reference._chunks(0, 90)]
    assert max(sizes) == 11
    assert sum(sizes) == 90
    assert_allclose(all_logits(reference, tokens), whole, atol=TOLERANCE, rtol=0)


def test_a_tied_checkpoint_of_one_rank_may_omit_the_head(tmp_path: Path) -> None:
    llama = tiny_llama(tie_word_embeddings=True)
    folder = write_checkpoint(llama, tmp_path)
    drop_head(folder / "rank0.safetensors")
    tokens = random_tokens(20)
    logits = all_logits(ReferenceModel.load(folder), tokens)
    assert_allclose(logits, expected_logits(llama, tokens), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    ("tied", "tp", "pp"), [(True, 3, 1), (True, 1, 2), (False, 1, 1)], ids=["split", "other-stage", "untied"]
)
def test_the_embedding_does_not_stand_for_a_head_that_it_cannot_be(
    tied: bool, tp: int, pp: int, tmp_path: Path
) -> None:
    folder = write_checkpoint(tiny_llama(tie_word_embeddings=tied), tmp_path, tp=tp, pp=pp)
    drop_head(folder / f"rank{tp * pp - 1}.safetensors")
    with pytest.raises(ReferenceModelError, match=r"tensors missing: lm_head\.weight"):
        ReferenceModel.load(folder)


def drop_head(path: Path) -> None:
    tensors = load_file(path)
    del tensors["lm_head.weight"]
    save_file(tensors, path)


def test_tensors_that_ranks_share_must_be_equal(llama: LlamaForCausalLM, tmp_path: Path) -> None:
    folder = write_checkpoint(llama, tmp_path, tp=3)
    tensors = load_file(folder / "rank2.safetensors")
    tensors["transformer.layers.1.post_layernorm.weight"][5] += 1
    save_file(tensors, folder / "rank2.safetensors")
    with pytest.raises(ReferenceModelError, match=r"rank2.*layers\.1\.post_layernorm\.weight differs"):
        ReferenceModel.load(folder)


def test_a_config_with_only_the_required_keys_takes_tensorrt_llms_defaults(tmp_path: Path) -> None:
    llama = tiny_llama(
        num_key_value_heads=6,
        head_dim=6,
        intermediate_size=144,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    folder = write_checkpoint(llama, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    for key in ("num_key_value_heads", "head_size", "intermediate_size", "norm_epsilon", "rotary_base", "mapping"):
        del config[key]
    (folder / "config.json").write_text(json.dumps(config))
    tokens = random_tokens(30)
    logits = all_logits(ReferenceModel.load(folder), tokens)
    assert_allclose(logits, expected_logits(llama, tokens), atol=TOLERANCE, rtol=0)


def test_a_sequence_cannot_outgrow_its_cache(reference: ReferenceModel) -> None:
    cache = reference.new_cache(10)
    reference.prefill(random_tokens(10), cache)
    with pytest.raises(ReferenceModelError, match="10 held exceed 10"):
        reference.decode([1], [cache])
    with pytest.raises(ReferenceModelError, match="11 more tokens"):
        reference.prefill(random_tokens(11), reference.new_cache(10))
    assert cache.length == 10


@pytest.mark.parametrize("tokens", [[], [97], [-1], [[1, 2]], [1.0]], ids=repr)
def test_token_ids_that_are_none_are_refused(reference: ReferenceModel, tokens: list[Any]) -> None:
    with pytest.raises(ReferenceModelError, match="token"):
        reference.prefill(tokens, reference.new_cache(10))


def test_a_batch_needs_one_cache_per_sequence(reference: ReferenceModel) -> None:
    cache = reference.new_cache(10)
    with pytest.raises(ReferenceModelError, match="2 tokens for 1 caches"):
        reference.decode([1, 2], [cache])
    with pytest.raises(ReferenceModelError, match="one of its own"):
        reference.decode([1, 2], [cache, cache])
    with pytest.raises(ReferenceModelError, match="capacity"):
        reference.new_cache(0)
