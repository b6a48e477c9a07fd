from typing import Any

import pytest

from tests.unit.plan.found import LLAMA_70B, found
from tests.unit.plan.plans import MakeUnits

GHCR: dict[str, Any] = {"publish": {"repository": "ghcr.io/me/llama"}}


def test_an_engine_larger_than_a_layer_is_refused_with_alternatives(make_units: MakeUnits) -> None:
    """ghcr.io documents 10 GB and 10 minutes; Llama-3.1-8B has 16,060,522,496 bytes in bf16."""
    finding = found(make_units, **GHCR)["LAYER_TOO_LARGE"]
    assert finding.severity == "refuse"
    assert finding.values["limit"] == 10_000_000_000
    assert finding.values["tp2_file_bytes"] == 8_030_261_248
    assert finding.values["min_mb_per_s_tp2"] == 13.4
    assert "10 GB" in finding.message
    assert "ghcr.io" in finding.message
    assert "parallelism.tensor: 2" in finding.suggestion


def test_the_proposed_split_keeps_an_embedding_whole_on_every_rank(make_units: MakeUnits) -> None:
    """Llama-3.1-8B on two ranks: an embedding of 128,256 x 4,096 x 2 = 1,050,673,152 bytes, half of the other
    15,009,849,344, the norms' other half (65 x 4,096 x 2 / 2 = 266,240), and a rope table of 131,072 x 128 x 4."""
    finding = found(make_units, **GHCR)["LAYER_TOO_LARGE"]
    assert finding.values["fitting_tensor"] == 2
    assert finding.values["fitting_file_bytes"] == 1_050_673_152 + 7_504_924_672 + 266_240 + 67_108_864


def test_a_split_that_is_not_legal_or_not_small_enough_is_not_proposed(make_units: MakeUnits) -> None:
    """28 heads can be shared by 4 ranks, whose files have 33 GB, not by 8; 28 ranks don't divide a width of 30,720."""
    heads = {"num_attention_heads": 28, "num_key_value_heads": 4, "head_dim": 256}
    wide = LLAMA_70B | heads | {"hidden_size": 7168, "intermediate_size": 30720}
    values = found(make_units, wide, **GHCR, parallelism={"tensor": 2}, sku="b300-269gb")["LAYER_TOO_LARGE"].values
    assert "tp4_file_bytes" in values
    assert "fitting_tensor" not in values


def test_half_a_file_may_fit_where_twice_the_ranks_do_not(make_units: MakeUnits) -> None:
    """Llama-3.1-70B on 16 ranks: 10.8 GB each, a 16th of 139.0 GB and a whole embedding of 2.1 GB. On 32 the
    8 KV heads are held four times, too: 6.77 GB."""
    finding = found(make_units, LLAMA_70B, **GHCR, parallelism={"tensor": 8}, sku="b300-269gb")["LAYER_TOO_LARGE"]
    assert finding.values["tp16_file_bytes"] < 10_000_000_000
    assert "parallelism.tensor: 32 (files of about 6.77" in finding.suggestion


def test_rank_files_below_the_limit_are_accepted(make_units: MakeUnits) -> None:
    codes = found(make_units, **GHCR, parallelism={"tensor": 2})
    assert "LAYER_TOO_LARGE" not in codes
    assert codes["UPLOAD_TIME"].values["min_mb_per_s"] == 14.4


def test_files_that_upload_in_time_are_accepted(make_units: MakeUnits) -> None:
    assert found(make_units, **GHCR, parallelism={"tensor": 8}) == {}


@pytest.mark.parametrize("repository", ["registry.example.com/me/llama", "oci:layouts", "nvcr.io/me/llama"])
def test_a_registry_without_a_known_limit_takes_any_engine(make_units: MakeUnits, repository: str) -> None:
    assert found(make_units, publish={"repository": repository}) == {}


def test_a_recipe_that_is_not_published_has_no_limits(make_units: MakeUnits) -> None:
    assert found(make_units) == {}


def test_a_layer_of_more_parts_than_ecr_counts_is_refused(make_units: MakeUnits) -> None:
    public = {"publish": {"repository": "public.ecr.aws/me/llama"}}
    codes = found(make_units, **public, parallelism={"tensor": 2})
    assert "LAYER_TOO_LARGE" not in codes
    assert "TOO_MANY_PARTS" not in codes
    assert found(make_units, **public)["LAYER_TOO_LARGE"].values["limit"] == 10_485_760_000


def test_a_registry_counts_parts(make_units: MakeUnits, monkeypatch: pytest.MonkeyPatch) -> None:
    """Distribution on S3 as shipped: 10,000 parts of 10 MiB, 104,857,600,000 bytes."""
    from builder import catalog
    from builder.plan.rules import publishing

    s3 = catalog.registries()["distribution-s3"]
    monkeypatch.setattr(publishing, "_limits", lambda repository: s3 if repository else None)
    recipe: dict[str, Any] = {"publish": {"repository": "s3.example.com/me/llama"}, "sku": "b300-269gb"}
    finding = found(make_units, LLAMA_70B, **recipe)["TOO_MANY_PARTS"]
    assert (finding.severity, finding.values["limit"]) == ("refuse", 104_857_600_000)
    assert finding.values["parts_needed"] == -(-141_174_521_856 // 10_485_760)
    assert "TOO_MANY_PARTS" not in found(make_units, **recipe)


def test_a_published_checkpoint_is_as_large_as_its_largest_file(make_units: MakeUnits) -> None:
    recipe: dict[str, Any] = {"flow": "pytorch", "serving": {"family": "llmapi"}}
    assert found(make_units, **GHCR, **recipe)["LAYER_TOO_LARGE"].values["file_bytes"] == 16_060_522_496
    published = {"precision": {"weights": "as-published"}}
    assert "LAYER_TOO_LARGE" not in found(make_units, **GHCR, **recipe, **published)
