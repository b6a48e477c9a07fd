from typing import Any

import pytest

from builder.lock import PinnedModel
from builder.model.snapshot import Snapshot
from tests.unit.plan.found import LLAMA_8B, found
from tests.unit.plan.plans import MakeUnits
from tests.unit.plan.test_rules_fusion import CALIBRATION

DRAFT = {"source": "hf://meta-llama/Llama-3.2-1B"}
ENGINE_MODES = ("draft_tokens_external", "lookahead_decoding", "medusa", "explicit_draft_tokens", "eagle")
DEEPSEEK: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "num_hidden_layers": 61,
    "vocab_size": 129280,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "num_nextn_predict_layers": 1,
    "tie_word_embeddings": False,
}


def speculative(mode: str, length: int = 4, **more: Any) -> dict[str, Any]:
    return {"mode": mode, "max_draft_len": length} | more


def pytorch(**recipe: Any) -> dict[str, Any]:
    return {"flow": "pytorch", "serving": {"family": "llmapi"}} | recipe


def drafted(**config: Any) -> dict[str, Any]:
    """Facts of a lock that has pinned DRAFT with a config.json."""
    return {"models": {DRAFT["source"]: PinnedModel(Snapshot(DRAFT["source"], "c" * 40, ()), config)}}


@pytest.mark.parametrize("mode", ["eagle3", "mtp", "ngram"])
def test_modes_of_the_pytorch_flow_are_refused_in_engines(make_units: MakeUnits, mode: str) -> None:
    finding = found(make_units, speculative=speculative(mode, draft_model=DRAFT))["SPECULATIVE_FLOW"]
    assert finding.severity == "refuse"
    assert finding.values == {"valid_modes": list(ENGINE_MODES)}
    in_pytorch = found(make_units, **pytorch(speculative=speculative(mode, draft_model=DRAFT)))
    assert "SPECULATIVE_FLOW" not in in_pytorch


@pytest.mark.parametrize("mode", ["lookahead_decoding", "medusa", "explicit_draft_tokens"])
def test_modes_of_engines_are_refused_in_the_pytorch_flow(make_units: MakeUnits, mode: str) -> None:
    settings = speculative(mode, draft_model=DRAFT)
    assert found(make_units, **pytorch(speculative=settings))["SPECULATIVE_FLOW"].severity == "refuse"
    assert "SPECULATIVE_FLOW" not in found(make_units, speculative=settings)


@pytest.mark.parametrize("mode", ["draft_tokens_external", "medusa", "explicit_draft_tokens", "eagle"])
def test_a_mode_that_needs_a_draft_model_is_refused_without(make_units: MakeUnits, mode: str) -> None:
    assert found(make_units, speculative=speculative(mode))["DRAFT_MODEL_REQUIRED"].severity == "refuse"
    assert "DRAFT_MODEL_REQUIRED" not in found(make_units, speculative=speculative(mode, draft_model=DRAFT))


def test_a_draft_model_that_nobody_asks_is_told(make_units: MakeUnits) -> None:
    settings = pytorch(speculative=speculative("ngram", draft_model=DRAFT))
    assert found(make_units, **settings)["DRAFT_MODEL_UNUSED"].severity == "warn"
    assert not found(make_units, **pytorch(speculative=speculative("ngram"))).keys() & {"DRAFT_MODEL_UNUSED"}


def test_a_draft_model_of_another_vocabulary_is_refused(make_units: MakeUnits) -> None:
    settings = {"speculative": speculative("draft_tokens_external", draft_model=DRAFT)}
    finding = found(make_units, facts=drafted(vocab_size=32000), **settings)["DRAFT_VOCABULARY"]
    assert finding.values == {"vocab_size": 128256, "draft_vocab_size": 32000}
    assert "DRAFT_VOCABULARY" not in found(make_units, facts=drafted(vocab_size=128256), **settings)


def test_mtp_needs_a_model_with_such_layers(make_units: MakeUnits) -> None:
    settings = pytorch(speculative=speculative("mtp", 1))
    assert found(make_units, **settings)["MTP_LAYERS"].severity == "refuse"
    assert "MTP_LAYERS" not in found(make_units, DEEPSEEK, **settings, parallelism={"tensor": 8})


def test_options_of_other_modes_are_told(make_units: MakeUnits) -> None:
    sizes = {"window_size": 7, "ngram_size": 7, "verification_set_size": 7}
    eagle = speculative("eagle", draft_model=DRAFT, lookahead=sizes, num_eagle_layers=4)
    finding = found(make_units, speculative=eagle)["SPECULATIVE_OPTION_UNUSED"]
    assert "lookahead has no effect" in finding.message
    lookahead = speculative("lookahead_decoding", 83, lookahead=sizes)
    assert "SPECULATIVE_OPTION_UNUSED" not in found(make_units, speculative=lookahead)


def test_context_logits_and_guesses_exclude_each_other(make_units: MakeUnits) -> None:
    engine = {"gather_context_logits": True}
    both = found(make_units, speculative=speculative("eagle", draft_model=DRAFT), engine=engine)
    assert both["GATHER_CONTEXT_LOGITS"].severity == "refuse"
    assert found(make_units, engine=engine) == {}


def test_two_models_are_served_by_bls_without_streaming(make_units: MakeUnits) -> None:
    settings = {"speculative": speculative("draft_tokens_external", draft_model=DRAFT)}
    ensemble = found(make_units, **settings, serving={"family": "ensemble", "streaming": False})
    assert ensemble["DRAFT_TARGET_SERVING"].values == {"valid_families": ["bls"]}
    assert "stream" in found(make_units, **settings)["DRAFT_TARGET_SERVING"].message
    assert "DRAFT_TARGET_SERVING" not in found(make_units, **settings, serving={"streaming": False})


def test_eagle_switches_paged_attention_on(make_units: MakeUnits) -> None:
    settings = {"speculative": speculative("eagle", draft_model=DRAFT)}
    finding = found(make_units, **settings, engine={"use_paged_context_fmha": False})["EAGLE_PAGED_CONTEXT_FMHA"]
    assert (finding.severity, finding.values) == ("warn", {"becomes": "enable"})
    assert "EAGLE_PAGED_CONTEXT_FMHA" not in found(make_units, **settings)


def test_eagle_is_refused_where_there_is_no_paged_attention(make_units: MakeUnits) -> None:
    settings = {"speculative": speculative("eagle", draft_model=DRAFT), "calibration": CALIBRATION}
    int8 = found(make_units, **settings, precision={"kv_cache": "int8"})["EAGLE_PAGED_CONTEXT_FMHA"]
    assert (int8.severity, "int8" in int8.message) == ("refuse", True)
    assert (
        found(make_units, **settings, engine={"context_fmha": False})["EAGLE_PAGED_CONTEXT_FMHA"].severity == "refuse"
    )


def test_a_recipe_without_guesses_has_no_such_findings(make_units: MakeUnits) -> None:
    assert found(make_units, LLAMA_8B) == {}
