import json
from dataclasses import replace
from pathlib import Path

import pytest

from builder.errors import SourceError
from builder.lock import (
    Lock,
    PinnedImage,
    PinnedModel,
    PlatformImage,
    TokenizerSummary,
    Unresolved,
    load_lock,
    required_lock,
)
from builder.recipe import load_recipe
from tests.tiny_model import RECIPE

DIGEST = f"sha256:{'a' * 64}"


def full(lock: Lock) -> Lock:
    """With something in every room."""
    image = PinnedImage(
        DIGEST, {"linux/amd64": PlatformImage(DIGEST, 10), "linux/arm64": PlatformImage(DIGEST, 9)}, None
    )
    return replace(
        lock,
        images={"nvcr.io/nvidia/tritonserver:1": image},
        unresolved=(Unresolved("nvcr.io/nvidia/other:1", "no connection to nvcr.io"),),
        hf_quant_config={"quantization": {"quant_algo": "FP8"}},
        chat_templates={"file:own.jinja": lock.chat_template},
        calibration={"file:texts.jsonl": lock.snapshot},
        models={"./adapter": PinnedModel(lock.snapshot, {"r": 8}, lock.tensors)},
    )


def test_a_lock_reads_back_as_it_was_written(lock: Lock, tmp_path: Path) -> None:
    for item in (lock, full(lock)):
        item.write(tmp_path / "x.lock.json")
        assert load_lock(tmp_path / "x.lock.json") == item


def test_the_file_is_sorted_and_has_one_fact_a_line(lock: Lock, tmp_path: Path) -> None:
    file = tmp_path / "x.lock.json"
    full(lock).write(file)
    assert file.read_text() == json.dumps(json.loads(file.read_text()), indent=2, sort_keys=True) + "\n"


@pytest.mark.parametrize(
    ("room", "damage"),
    [
        ("images", {"x:1": {"index": "sha256:short", "platforms": {}, "python": None}}),
        ("images", {"x:1": {"index": None, "platforms": {"linux/amd64": {"digest": "no", "size": 1}}, "python": None}}),
        ("images", []),
        ("requested", None),
        ("unresolved", []),
        ("chat_templates", {"file:x": {"file": "x"}}),
        ("schema", 3),
    ],
)
def test_a_damaged_lock_is_an_error(lock: Lock, tmp_path: Path, room: str, damage: object) -> None:
    file = tmp_path / "x.lock.json"
    file.write_text(json.dumps(lock.to_json() | {room: damage}))
    with pytest.raises(SourceError) as error:
        load_lock(file)
    assert error.value.code == "LOCK_DAMAGED"


@pytest.mark.parametrize(
    ("part", "damage"),
    [
        ("tensors", {"digest": "x"}),
        ("tokenizer", {"max_token_id": "many", "added_tokens": {}}),
        ("config", []),
        ("config", {"rope_theta": float("nan")}),
    ],
)
def test_a_damaged_part_of_the_model_is_an_error(lock: Lock, tmp_path: Path, part: str, damage: object) -> None:
    data = lock.to_json()
    data["model"][part] = damage
    (tmp_path / "x.lock.json").write_text(json.dumps(data))
    with pytest.raises(SourceError) as error:
        load_lock(tmp_path / "x.lock.json")
    assert error.value.code == "LOCK_DAMAGED"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"\xff", b"[" * 100_000])
def test_what_is_no_lock_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.lock.json").write_bytes(content)
    with pytest.raises(SourceError) as error:
        load_lock(tmp_path / "x.lock.json")
    assert error.value.code == "LOCK_DAMAGED"


def test_no_lock_is_none(tmp_path: Path) -> None:
    assert load_lock(tmp_path / "x.lock.json") is None


def test_a_lock_of_the_first_format_asks_to_be_made_anew(lock: Lock, tmp_path: Path) -> None:
    (tmp_path / "x.lock.json").write_text('{"schema": 1, "bases": {}}')
    with pytest.raises(SourceError) as error:
        load_lock(tmp_path / "x.lock.json")
    assert error.value.code == "LOCK_OUTDATED"
    assert "lock --upgrade" in str(error.value.hint)


def test_a_lock_covers_the_recipe_until_it_asks_for_something_else(lock: Lock, tmp_path: Path) -> None:
    recipe = tmp_path / "tiny.yaml"

    def covers(text: str) -> bool:
        recipe.write_text(text)
        return lock.covers(load_recipe(recipe))

    assert covers(RECIPE)
    assert covers(RECIPE.replace("max_batch_size: 4", "max_batch_size: 5"))
    assert not covers(RECIPE.replace("./model", "./other"))
    for more in (
        "package: {base: 'oci:base:py3.11'}\n",
        "calibration: {dataset: 'file:texts.jsonl'}\n",
        "serving: {chat_template: 'file:own.jinja'}\n",
        "lora: {adapters: [{name: sql, source: ./adapter}]}\n",
        "speculative: {mode: draft_tokens_external, max_draft_len: 4, draft_model: {source: ./draft}}\n",
    ):
        assert not covers(RECIPE + more), more


def test_targets_on_a_gpu_ask_for_the_images_of_their_toolchain(lock: Lock, tmp_path: Path) -> None:
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(RECIPE.replace("fp32", "bf16") + "  - sku: l40s-48gb\n")
    assert not lock.covers(load_recipe(recipe))


def test_a_lock_that_is_required_says_how_to_get_it(lock: Lock, tmp_path: Path) -> None:
    recipe = load_recipe(tmp_path / "tiny.yaml")
    with pytest.raises(SourceError) as error:
        required_lock(recipe)
    assert error.value.code == "NOT_LOCKED"
    lock.write(recipe.lock_file)
    assert required_lock(recipe) == lock


def test_the_image_of_a_platform_is_found_by_the_recipes_word(lock: Lock) -> None:
    found = full(lock).image("nvcr.io/nvidia/tritonserver:1", "linux/arm64")
    assert found == PlatformImage(DIGEST, 9)
    assert full(lock).image("nvcr.io/nvidia/other:1", "linux/amd64") is None
    assert full(lock).unresolved_reason("nvcr.io/nvidia/other:1") == "no connection to nvcr.io"


def test_a_summary_of_the_tokenizer_reads_back(lock: Lock, tmp_path: Path) -> None:
    assert lock.tokenizer == TokenizerSummary(259, {"<s>": 256, "</s>": 257, "<|im_start|>": 258, "<|im_end|>": 259})
