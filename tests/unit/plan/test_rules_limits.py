from dataclasses import replace
from typing import Any

import pytest

from builder.plan import check
from tests.unit.plan.found import LLAMA_8B, found, unit_of
from tests.unit.plan.plans import MakeUnits

TINYLLAMA: dict[str, Any] = LLAMA_8B | {"max_position_embeddings": 2048, "rope_scaling": None}


def test_an_ordinary_recipe_is_without_findings(make_units: MakeUnits) -> None:
    assert found(make_units) == {}


def test_a_recipe_without_max_seq_len_is_refused_with_what_inheriting_would_cost(make_units: MakeUnits) -> None:
    """triton-inference-server/tensorrtllm_backend issue 577: 128 GiB for one sequence, 64 GiB on each of two ranks."""
    long = LLAMA_8B | {"max_position_embeddings": 1048576, "rope_scaling": None}
    finding = found(make_units, long, limits={"max_seq_len": None}, parallelism={"tensor": 2})["MAX_SEQ_LEN_REQUIRED"]
    assert finding.severity == "refuse"
    assert finding.values["kv_per_seq_bytes"] == 137438953472
    assert finding.values["kv_per_seq_rank_bytes"] == 68719476736


def test_without_max_seq_len_that_is_the_only_finding_on_lengths(make_units: MakeUnits) -> None:
    assert set(found(make_units, limits={"max_seq_len": None})) == {"MAX_SEQ_LEN_REQUIRED"}


def test_a_sequence_longer_than_the_model_is_refused_unless_waived(make_units: MakeUnits) -> None:
    finding = found(make_units, TINYLLAMA, limits={"max_seq_len": 8192})["SEQ_LEN_GT_MODEL"]
    assert finding.severity == "refuse-waivable"
    assert finding.values == {"max_legal": 2048}
    assert "max_seq_len 8192 is more than the 2048 positions" in finding.message
    waiver = {"code": "SEQ_LEN_GT_MODEL", "reason": "fine-tuned on 8k"}
    waived = found(make_units, TINYLLAMA, limits={"max_seq_len": 8192}, waivers=[waiver])["SEQ_LEN_GT_MODEL"]
    assert (waived.waived, waived.refuses) == ("fine-tuned on 8k", False)


def test_a_sequence_as_long_as_the_model_is_accepted(make_units: MakeUnits) -> None:
    assert "SEQ_LEN_GT_MODEL" not in found(make_units, TINYLLAMA, limits={"max_seq_len": 2048})


@pytest.mark.parametrize(
    ("rope", "legal"),
    [
        ({"rope_type": "linear", "factor": 2.0}, 4096),
        ({"rope_type": "dynamic", "factor": 2.0}, 4096),
        ({"rope_type": "yarn", "factor": 4.0}, 8192),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}, 8192),
        ({"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 64}, 2048),
        (LLAMA_8B["rope_scaling"], 2048),
    ],
)
def test_a_rope_factor_stretches_the_sequence_where_it_is_not_in_the_positions_yet(
    make_units: MakeUnits, rope: dict[str, Any], legal: int
) -> None:
    config = TINYLLAMA | {"rope_scaling": rope}
    finding = found(make_units, config, limits={"max_seq_len": legal + 1})["SEQ_LEN_GT_MODEL"]
    assert finding.values["max_legal"] == legal
    assert "SEQ_LEN_GT_MODEL" not in found(make_units, config, limits={"max_seq_len": legal})


def test_a_rope_that_the_recipe_states_justifies_a_longer_sequence(make_units: MakeUnits) -> None:
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
    recipe: dict[str, Any] = {
        "toolchain": "trtllm-1.3.0rc21",
        "flow": "pytorch",
        "serving": {"family": "llmapi"},
        "limits": {"max_seq_len": 8192},
    }
    assert "SEQ_LEN_GT_MODEL" in found(make_units, TINYLLAMA, **recipe)
    stated = found(make_units, TINYLLAMA, **recipe, llm_args={"model_kwargs": {"rope_scaling": rope}})
    assert "SEQ_LEN_GT_MODEL" not in stated


@pytest.mark.parametrize("length", [64, 65])
def test_a_prompt_that_fills_the_sequence_is_refused(make_units: MakeUnits, length: int) -> None:
    finding = found(make_units, limits={"max_seq_len": 64, "max_input_len": length})["INPUT_GT_SEQ_LEN"]
    assert finding.severity == "refuse"
    assert (finding.values["max_legal"], finding.values["becomes"]) == (63, 64)
    assert ("clip" in finding.message) == (length > 64)


def test_a_prompt_that_leaves_a_token_is_accepted(make_units: MakeUnits) -> None:
    assert "INPUT_GT_SEQ_LEN" not in found(make_units, limits={"max_seq_len": 64, "max_input_len": 63})


def test_prompts_longer_than_a_pass_are_told(make_units: MakeUnits) -> None:
    finding = found(make_units, limits={"max_seq_len": 16384})["PROMPT_GT_NUM_TOKENS"]
    assert (finding.severity, finding.values["becomes"]) == ("warn", 8192)


def test_a_max_input_len_that_no_pass_can_hold_is_refused(make_units: MakeUnits) -> None:
    limits = {"max_seq_len": 16384, "max_input_len": 9000}
    assert found(make_units, limits=limits)["PROMPT_GT_NUM_TOKENS"].severity == "refuse-waivable"


def test_chunked_context_takes_prompts_of_any_length(make_units: MakeUnits) -> None:
    limits = {"max_seq_len": 16384, "max_input_len": 9000}
    assert found(make_units, limits=limits, serving={"enable_chunked_context": True}) == {}


@pytest.mark.parametrize(("length", "refused"), [(8192, False), (8191, True)])
def test_an_encoder_reads_sequences_as_a_whole(make_units: MakeUnits, length: int, refused: bool) -> None:
    unit = unit_of(make_units, limits={"max_input_len": length})
    encoder = replace(unit, spec=replace(unit.spec, architecture="EncoderModel"))
    assert ("ENCODER_INPUT_LEN" in {finding.code for finding in check(encoder)}) == refused
    assert "ENCODER_INPUT_LEN" not in {finding.code for finding in check(unit)}


def test_an_encoder_option_on_a_decoder_is_told(make_units: MakeUnits) -> None:
    assert "ENCODER_OPTION_UNUSED" in found(make_units, engine={"max_encoder_input_len": 512})
    assert "ENCODER_OPTION_UNUSED" not in found(make_units, engine={"tokens_per_block": 64})


def test_beams_bind_every_request_and_are_not_streamed(make_units: MakeUnits) -> None:
    codes = found(make_units, limits={"max_beam_width": 4})
    assert codes["BEAM_WIDTH_FIXED"].values == {"beam_width": 4}
    assert codes["BEAM_STREAMING"].severity == "refuse-waivable"
    codes = found(make_units, limits={"max_beam_width": 4}, serving={"streaming": False})
    assert "BEAM_STREAMING" not in codes
    assert found(make_units, limits={"max_beam_width": 1}) == {}
