from typing import Any

import pytest

from builder.plan.rules.draft_length import lookahead_draft_len
from builder.recipe.schema import Lookahead
from tests.unit.plan.found import found
from tests.unit.plan.plans import MakeUnits
from tests.unit.plan.test_rules_speculative import DRAFT, drafted, speculative

SIZES = {"window_size": 7, "ngram_size": 7, "verification_set_size": 7}


@pytest.mark.parametrize(("sizes", "length"), [((7, 7, 7), 83), ((1, 1, 1), 0), ((2, 2, 1), 2)])
def test_lookahead_guesses_as_many_tokens_as_published(sizes: tuple[int, int, int], length: int) -> None:
    """(7, 7, 7) and 83: the engine of TensorRT-LLM's examples/lookahead/README.md."""
    window, ngram, verified = sizes
    assert (
        lookahead_draft_len(Lookahead(window_size=window, ngram_size=ngram, verification_set_size=verified)) == length
    )


def test_lookahead_needs_its_three_sizes(make_units: MakeUnits) -> None:
    assert found(make_units, speculative=speculative("lookahead_decoding", 83))["LOOKAHEAD_SIZES"].severity == "refuse"


@pytest.mark.parametrize("length", [82, 84])
def test_lookahead_is_refused_with_another_draft_length(make_units: MakeUnits, length: int) -> None:
    finding = found(make_units, speculative=speculative("lookahead_decoding", length, lookahead=SIZES))[
        "LOOKAHEAD_SIZES"
    ]
    assert finding.values == {"max_draft_len": 83}


def test_lookahead_with_its_own_draft_length_is_accepted(make_units: MakeUnits) -> None:
    codes = found(make_units, speculative=speculative("lookahead_decoding", 83, lookahead=SIZES))
    assert {finding.severity for finding in codes.values()} == {"warn"}
    assert codes["SPECULATIVE_SEQ_LEN"].values == {"becomes": 8192 + 83}


def test_guesses_lengthen_every_sequence(make_units: MakeUnits) -> None:
    eagle: dict[str, Any] = {"speculative": speculative("eagle", 60, draft_model=DRAFT)}
    assert found(make_units, **eagle)["SPECULATIVE_SEQ_LEN"].values == {"becomes": 8252}
    eagle["speculative"] |= {"num_eagle_layers": 4}
    assert found(make_units, **eagle)["SPECULATIVE_SEQ_LEN"].values == {"becomes": 8256}
    assert "SPECULATIVE_SEQ_LEN" not in found(make_units)


def test_a_pass_is_raised_to_all_guesses_of_the_batch(make_units: MakeUnits) -> None:
    settings = {"speculative": speculative("eagle", 63, draft_model=DRAFT), "limits": {"max_batch_size": 256}}
    assert found(make_units, **settings)["SPECULATIVE_NUM_TOKENS"].values == {"becomes": 256 * 64}
    settings["limits"] = {"max_batch_size": 128}
    assert "SPECULATIVE_NUM_TOKENS" not in found(make_units, **settings)


@pytest.mark.parametrize(("batch", "length", "most"), [(513, 8, 512), (8, 257, 256)])
def test_eagle_has_limits_of_its_own(make_units: MakeUnits, batch: int, length: int, most: int) -> None:
    settings = speculative("eagle", length, draft_model=DRAFT)
    finding = found(make_units, speculative=settings, limits={"max_batch_size": batch})["EAGLE_LIMITS"]
    assert (finding.severity, finding.values) == ("refuse", {"max_legal": most})


def test_eagle_at_its_limits_is_accepted(make_units: MakeUnits) -> None:
    settings = speculative("eagle", 256, draft_model=DRAFT)
    assert "EAGLE_LIMITS" not in found(make_units, speculative=settings, limits={"max_batch_size": 512})


def test_a_redrafter_sets_the_draft_length(make_units: MakeUnits) -> None:
    facts = drafted(redrafter_num_beams=4, redrafter_draft_len_per_beam=5)
    other = found(make_units, facts=facts, speculative=speculative("explicit_draft_tokens", 8, draft_model=DRAFT))
    assert other["REDRAFTER_DRAFT_LEN"].values == {"becomes": 20}
    same = found(make_units, facts=facts, speculative=speculative("explicit_draft_tokens", 20, draft_model=DRAFT))
    assert "REDRAFTER_DRAFT_LEN" not in same


def test_an_unknown_redrafter_is_told_to_set_the_draft_length(make_units: MakeUnits) -> None:
    codes = found(make_units, speculative=speculative("explicit_draft_tokens", 8, draft_model=DRAFT))
    assert codes["REDRAFTER_DRAFT_LEN"].values == {}
