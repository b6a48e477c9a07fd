from tests.unit.plan.found import found
from tests.unit.plan.plans import MakeUnits


def test_a_pass_smaller_than_the_batch_is_refused(make_units: MakeUnits) -> None:
    limits = {"max_batch_size": 64, "max_num_tokens": 63, "max_seq_len": 64}
    finding = found(make_units, limits=limits)["NUM_TOKENS_LT_BATCH"]
    assert (finding.severity, finding.values) == ("refuse", {"min_legal": 64})
    assert "NUM_TOKENS_LT_BATCH" not in found(make_units, limits=limits | {"max_num_tokens": 64})


def test_each_beam_takes_a_token_of_a_pass(make_units: MakeUnits) -> None:
    limits = {"max_batch_size": 64, "max_num_tokens": 255, "max_beam_width": 4}
    assert found(make_units, limits=limits)["NUM_TOKENS_LT_BATCH"].values == {"min_legal": 256}
    assert "NUM_TOKENS_LT_BATCH" not in found(make_units, limits=limits | {"max_num_tokens": 256})


def test_clipped_num_tokens_are_told(make_units: MakeUnits) -> None:
    finding = found(make_units, limits={"max_batch_size": 2, "max_seq_len": 64})["NUM_TOKENS_CLIPPED"]
    assert (finding.severity, finding.values) == ("warn", {"becomes": 128})


def test_num_tokens_up_to_the_product_stay_as_they_are(make_units: MakeUnits) -> None:
    limits = {"max_batch_size": 2, "max_seq_len": 64, "max_num_tokens": 128}
    assert "NUM_TOKENS_CLIPPED" not in found(make_units, limits=limits)


def test_nothing_is_clipped_where_nothing_is_compiled(make_units: MakeUnits) -> None:
    assert "NUM_TOKENS_CLIPPED" not in found(make_units, limits={"max_batch_size": 2, "max_seq_len": 64}, sku="cpu")


def test_padded_inputs_make_max_num_tokens_the_product(make_units: MakeUnits) -> None:
    codes = found(make_units, engine={"remove_input_padding": False})
    assert codes["PADDED_INPUT"].values == {"becomes": 8 * 8192}
    assert codes["INFLIGHT_BATCHING"].severity == "refuse"
    assert "PADDED_INPUT" not in found(make_units, engine={"remove_input_padding": True})


def test_a_pass_smaller_than_a_block_becomes_a_block(make_units: MakeUnits) -> None:
    limits = {"max_batch_size": 8, "max_num_tokens": 16, "max_seq_len": 64}
    assert found(make_units, limits=limits)["NUM_TOKENS_RAISED"].values == {"becomes": 32}
    blocks = found(make_units, limits=limits | {"max_num_tokens": 64}, engine={"tokens_per_block": 128})
    assert blocks["NUM_TOKENS_RAISED"].values == {"becomes": 128}
    assert "NUM_TOKENS_RAISED" not in found(make_units, limits=limits | {"max_num_tokens": 32})


def test_without_fused_attention_a_pass_holds_a_whole_prompt(make_units: MakeUnits) -> None:
    limits = {"max_num_tokens": 1024, "max_input_len": 4096}
    unfused = found(make_units, limits=limits, engine={"context_fmha": False})
    assert unfused["NUM_TOKENS_RAISED"].values == {"becomes": 4096}
    assert "NUM_TOKENS_RAISED" not in found(make_units, limits=limits)


def test_more_than_16384_tokens_in_a_pass_are_told(make_units: MakeUnits) -> None:
    assert found(make_units, limits={"max_num_tokens": 16385})["NUM_TOKENS_MANY"].severity == "warn"
    assert "NUM_TOKENS_MANY" not in found(make_units, limits={"max_num_tokens": 16384})


def test_a_tuned_size_above_the_largest_is_clipped(make_units: MakeUnits) -> None:
    finding = found(make_units, limits={"opt_num_tokens": 9000})["OPT_NUM_TOKENS_CLIPPED"]
    assert finding.values == {"becomes": 8192}
    assert found(make_units, limits={"opt_num_tokens": 8192}) == {}


def test_a_tuned_size_and_several_profiles_exclude_each_other(make_units: MakeUnits) -> None:
    both = found(make_units, limits={"opt_num_tokens": 64}, engine={"multiple_profiles": True})
    assert both["OPT_NUM_TOKENS_PROFILES"].severity == "refuse"
    assert "OPT_NUM_TOKENS_PROFILES" not in found(make_units, engine={"multiple_profiles": True})
    assert "OPT_NUM_TOKENS_PROFILES" not in found(make_units, limits={"opt_num_tokens": 64})
