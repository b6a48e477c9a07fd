import pytest

from builder.cli.options import pull_seconds
from builder.lock import PinnedImage, PlatformImage
from builder.plan.memory import Sizes, sizes
from tests.unit.plan.plans import MakeUnits, recipe

SMOLLM2_BYTES = 269_030_016
HEAD_BYTES = 49_152 * 576 * 2
ROPE_BYTES = 8192 * 64 * 4


def of(make_units: MakeUnits, *args: object, **facts: object) -> Sizes:
    found = sizes(make_units(*args, **facts)[-1])
    assert found is not None
    return found


def test_a_seven_billion_model_takes_152_seconds_at_100_megabytes_a_second() -> None:
    assert pull_seconds(15_231_233_024, 100) == 152


def test_an_engine_has_the_head_of_a_tied_model_twice_and_the_rope_table(make_units: MakeUnits) -> None:
    found = of(make_units, recipe())
    assert found.checkpoint_bytes == SMOLLM2_BYTES + HEAD_BYTES
    assert found.engine_bytes == (SMOLLM2_BYTES + HEAD_BYTES + ROPE_BYTES,)


def test_every_rank_has_an_engine_and_an_embedding(make_units: MakeUnits) -> None:
    found = of(make_units, recipe(extra="parallelism: {tensor: 3}"))
    norms = 61 * 576 * 2
    assert len(found.engine_bytes) == 3
    assert found.checkpoint_bytes == SMOLLM2_BYTES + HEAD_BYTES + 2 * (HEAD_BYTES + norms)


def test_the_pinned_files_are_the_download(make_units: MakeUnits) -> None:
    """config.json, model.safetensors and tokenizer.json of ten bytes each; the README isn't read."""
    assert of(make_units, recipe()).download_bytes == 30


def test_the_pytorch_flow_ships_the_checkpoint(make_units: MakeUnits) -> None:
    found = of(make_units, recipe(flow="pytorch"))
    assert found.engine_bytes == ()
    assert found.image_bytes == found.checkpoint_bytes == SMOLLM2_BYTES


def test_a_split_that_is_not_legal_has_no_sizes(make_units: MakeUnits) -> None:
    assert sizes(make_units(recipe(extra="parallelism: {tensor: 2}"))[-1]) is None


@pytest.mark.parametrize(
    ("release", "gigabytes"), [("25.12", 16.04), ("25.11", 12.25), ("25.08", 20.49), ("24.05", 34)]
)
def test_the_disk_must_hold_the_base_image(make_units: MakeUnits, release: str, gigabytes: float) -> None:
    base = f"nvcr.io/nvidia/tritonserver:{release}-trtllm-python-py3"
    found = of(make_units, recipe(extra=f"package: {{base: '{base}'}}"))
    files = found.download_bytes + found.checkpoint_bytes + sum(found.engine_bytes)
    assert found.base_bytes == round(gigabytes * 1e9)
    assert found.disk_bytes.low == files + found.base_bytes
    assert found.disk_bytes.high == files + 2 * found.base_bytes


def test_a_pinned_base_is_as_large_as_its_registry_says(make_units: MakeUnits) -> None:
    image = PinnedImage(None, {"linux/amd64": PlatformImage(f"sha256:{'0' * 64}", 1234)}, "3.11")
    found = of(make_units, recipe(extra="package: {base: 'example.com/base:1'}"), images={"example.com/base:1": image})
    assert found.base_bytes == 1234
    assert found.image_bytes == sum(found.engine_bytes) + 1234


def test_an_unknown_base_is_not_taken_for_none(make_units: MakeUnits) -> None:
    assert of(make_units, recipe(extra="package: {base: 'example.com/base:1'}")).base_bytes is None
    assert of(make_units, recipe()).base_bytes == 0


def test_a_plan_shows_sizes(make_units: MakeUnits) -> None:
    found = of(make_units, recipe())
    shown = found.to_json()
    assert shown["engine_bytes"] == list(found.engine_bytes)
