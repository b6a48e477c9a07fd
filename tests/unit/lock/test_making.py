import json
from dataclasses import replace
from pathlib import Path

import pytest

from builder.errors import RecipeError, SourceError
from builder.lock import TENSORS, WEIGHTS, Lock, PinnedImage, PlatformImage, load_lock, names_needed
from builder.lock.making import make_lock, reason_of
from builder.recipe import Recipe, load_recipe
from builder.store import LocalStore
from tests.tiny_model import RECIPE, write_tiny_model, write_tiny_recipe

EMPTY_WEIGHTS = (2).to_bytes(8, "little") + b"{}"


def recipe_of(folder: Path, more: str = "") -> Recipe:
    return load_recipe(write_tiny_recipe(folder, RECIPE + more))


def refused(code: str, recipe: Recipe, store: LocalStore) -> SourceError:
    with pytest.raises(SourceError) as error:
        make_lock(recipe, store)
    assert error.value.code == code, error.value.render()
    return error.value


def test_it_pins_the_files_that_builds_use_and_what_a_plan_needs_of_them(lock: Lock) -> None:
    pinned = [file.path for file in lock.snapshot.files]
    assert pinned == ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    assert lock.config["hidden_size"] == 48
    assert lock.tensors is not None
    assert (lock.tensors.count, lock.tensors.embedding_rows, lock.tensors.head_stored) == (21, 260, True)
    assert lock.tokenizer is not None
    assert lock.tokenizer.max_token_id == 259
    assert lock.chat_template is not None
    assert lock.chat_template.file == "tokenizer_config.json"
    assert lock.unresolved == ()


def test_a_folder_without_weights_is_locked_and_says_so(tmp_path: Path, store: LocalStore) -> None:
    recipe = recipe_of(tmp_path)
    (tmp_path / "model" / "model.safetensors").unlink()
    lock = make_lock(recipe, store)
    assert lock.unresolved_reason(WEIGHTS)
    assert (lock.tensors, lock.config["hidden_size"]) == (None, 48)
    assert WEIGHTS in names_needed(recipe, 0)


def test_weights_that_come_later_are_pinned_and_nothing_else_may_have_changed(
    tmp_path: Path, store: LocalStore
) -> None:
    recipe = recipe_of(tmp_path)
    weights = tmp_path / "model" / "model.safetensors"
    content = weights.read_bytes()
    weights.unlink()
    before = make_lock(recipe, store)
    weights.write_bytes(content)
    after = make_lock(recipe, store, keep=before)
    assert after.unresolved == ()
    assert after.tensors is not None
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(SourceError) as error:
        make_lock(recipe, store, keep=before)
    assert error.value.code == "DRIFT"


def test_numbers_that_are_not_finite_are_kept_as_text_and_still_match_the_file(
    tmp_path: Path, store: LocalStore
) -> None:
    recipe = recipe_of(tmp_path)
    config = tmp_path / "model" / "config.json"
    config.write_text(config.read_text()[:-1] + ', "time_step_limit": [0.0, Infinity], "x": NaN}')
    lock = make_lock(recipe, store)
    lock.write(recipe.lock_file)
    json.loads(recipe.lock_file.read_text(), parse_constant=pytest.fail)
    again = load_lock(recipe.lock_file)
    assert again == lock
    assert again.config["time_step_limit"] == [0.0, "Infinity"]
    assert not again.copies_differ(tmp_path / "model")
    config.write_text("{}")
    assert again.copies_differ(tmp_path / "model")


def test_a_file_that_a_quantiser_leaves_is_kept_as_a_copy(tmp_path: Path, store: LocalStore) -> None:
    recipe = recipe_of(tmp_path)
    (tmp_path / "model" / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "FP8"}}')
    lock = make_lock(recipe, store)
    assert lock.hf_quant_config == {"quantization": {"quant_algo": "FP8"}}
    assert [file.path for file in lock.snapshot.of_kind("config")] == ["config.json", "hf_quant_config.json"]


def test_a_new_base_is_asked_for_without_looking_at_the_model_again(
    lock: Lock, tmp_path: Path, store: LocalStore
) -> None:
    """Else any change of a recipe would accept whatever the model's source holds by then."""
    (tmp_path / "model" / "model.safetensors").write_bytes(EMPTY_WEIGHTS)
    (tmp_path / "tiny.yaml").write_text(RECIPE + "package: {base: 'oci:absent:py3.11'}\n")
    now = make_lock(load_recipe(tmp_path / "tiny.yaml"), store, keep=lock)
    assert (now.snapshot, now.tensors) == (lock.snapshot, lock.tensors)
    assert [item.name for item in now.unresolved] == ["oci:absent:py3.11"]
    assert "there is no image oci:absent:py3.11" in now.unresolved[0].reason


def test_an_image_that_cannot_be_reached_stays_as_pinned_when_all_is_refreshed(
    lock: Lock, tmp_path: Path, store: LocalStore
) -> None:
    recipe = recipe_of(tmp_path, "package: {base: 'oci:absent:py3.11'}\n")
    pinned = PinnedImage(None, {"linux/amd64": PlatformImage(f"sha256:{'a' * 64}", 1)}, "3.11")
    before = replace(lock, images={"oci:absent:py3.11": pinned})
    now = make_lock(recipe, store, keep=before, mode="refresh")
    assert (now.images, now.unresolved) == (before.images, ())


def test_what_is_no_longer_asked_for_leaves_the_lock(lock: Lock, tmp_path: Path, store: LocalStore) -> None:
    before = replace(lock, calibration={"file:old.jsonl": lock.snapshot})
    assert make_lock(load_recipe(tmp_path / "tiny.yaml"), store, keep=before).calibration == {}


def test_calibration_texts_and_a_template_beside_the_recipe_are_pinned(tmp_path: Path, store: LocalStore) -> None:
    more = "calibration: {dataset: 'file:texts.jsonl'}\nserving: {chat_template: 'file:own.jinja'}\n"
    recipe = recipe_of(tmp_path, more)
    refused("NOT_FOUND", recipe, store)
    (tmp_path / "texts.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "own.jinja").write_text("{{ messages }}")
    lock = make_lock(recipe, store)
    (file,) = lock.calibration["file:texts.jsonl"].files
    assert (file.path, file.size) == ("texts.jsonl", 14)
    assert lock.chat_templates["file:own.jinja"].file == "own.jinja"
    assert lock.covers(recipe)


def test_texts_that_are_not_there_yet_are_unresolved(tmp_path: Path, store: LocalStore) -> None:
    lock = make_lock(recipe_of(tmp_path, "calibration: {dataset: 'file:texts.jsonl'}\n"), store)
    assert lock.unresolved_reason("file:texts.jsonl") == "there is no file texts.jsonl"


def test_texts_that_are_neither_a_file_nor_on_the_hub_are_refused(tmp_path: Path, store: LocalStore) -> None:
    with pytest.raises(RecipeError):
        make_lock(recipe_of(tmp_path, "calibration: {dataset: 'cnn_dailymail'}\n"), store)


def test_an_adapter_and_a_draft_model_are_pinned_as_further_models(tmp_path: Path, store: LocalStore) -> None:
    recipe = recipe_of(
        tmp_path,
        "lora: {adapters: [{name: sql, source: ./sql}]}\n"
        "speculative: {mode: draft_tokens_external, max_draft_len: 4, draft_model: {source: ./draft}}\n",
    )
    (tmp_path / "sql").mkdir()
    (tmp_path / "sql" / "adapter_config.json").write_text('{"r": 8}')
    write_tiny_model(tmp_path / "draft", seed=1)
    refused("WEIGHTS_MISSING", recipe, store)
    (tmp_path / "sql" / "adapter_model.safetensors").write_bytes(EMPTY_WEIGHTS)
    lock = make_lock(recipe, store)
    assert sorted(lock.models) == ["./draft", "./sql"]
    assert lock.models["./sql"].config == {"r": 8}
    assert [file.path for file in lock.models["./sql"].snapshot.files] == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    assert lock.models["./draft"].config["hidden_size"] == 48
    assert lock.models["./draft"].tensors is not None
    assert lock.covers(recipe)


@pytest.mark.parametrize(
    ("names", "code"),
    [
        (["adapter_config.json", "adapter_model.safetensors"], "ADAPTER_ONLY"),
        (["model-Q4_K_M.gguf"], "GGUF_ONLY"),
        (["config.json", "pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"], "PICKLE_ONLY"),
        (["config.json", "consolidated.safetensors"], "WEIGHTS_MISSING"),
        (["config.json", "model-00001-of-00002.safetensors"], "INDEX_MISSING"),
        (["model.safetensors"], "CONFIG_MISSING"),
        (["README.md"], "CONFIG_MISSING"),
    ],
)
def test_what_is_no_usable_model_is_refused(tmp_path: Path, store: LocalStore, names: list[str], code: str) -> None:
    recipe = recipe_of(tmp_path)
    for file in (tmp_path / "model").iterdir():
        file.unlink()
    for name in names:
        (tmp_path / "model" / name).write_bytes(EMPTY_WEIGHTS)
    refused(code, recipe, store)


def test_shards_that_the_index_names_and_the_folder_lacks_are_counted_and_named(
    tmp_path: Path, store: LocalStore
) -> None:
    recipe = recipe_of(tmp_path)
    (tmp_path / "model" / "model.safetensors").unlink()
    names = [f"model-{number:05}-of-00030.safetensors" for number in range(1, 31)]
    for name in names[:15]:
        (tmp_path / "model" / name).write_bytes(EMPTY_WEIGHTS)
    index = {"weight_map": {f"t{number}": name for number, name in enumerate(names)}}
    (tmp_path / "model" / "model.safetensors.index.json").write_text(json.dumps(index))
    error = refused("SHARD_MISSING", recipe, store)
    assert "15 of 30" in error.message
    assert "model-00016-of-00030.safetensors" in error.message


def test_a_second_copy_of_the_weights_is_not_pinned(tmp_path: Path, store: LocalStore) -> None:
    recipe = recipe_of(tmp_path)
    for name in ("consolidated.safetensors", "pytorch_model.bin", "model.gguf", "adapter_config.json"):
        (tmp_path / "model" / name).write_bytes(EMPTY_WEIGHTS)
    pinned = [file.path for file in make_lock(recipe, store).snapshot.files]
    assert pinned == ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]


@pytest.mark.parametrize("metadata", ["", '"__metadata__": {},', '"__metadata__": null,'])
def test_safetensors_need_no_metadata(tmp_path: Path, store: LocalStore, metadata: str) -> None:
    recipe = recipe_of(tmp_path)
    header = f'{{{metadata}"t": {{"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]}}}}'.encode()
    (tmp_path / "model" / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    lock = make_lock(recipe, store)
    assert lock.tensors is not None
    assert (lock.tensors.count, lock.tensors.bytes) == (1, 8)


def test_a_unit_needs_what_its_own_target_names(tmp_path: Path) -> None:
    recipe = recipe_of(
        tmp_path, "    package: {base: 'oci:a:py3.11'}\n  - {sku: l40s-48gb, precision: {weights: bf16}}\n"
    )
    assert names_needed(recipe, 0) == {WEIGHTS, TENSORS, "oci:a:py3.11"}
    images = names_needed(recipe, 1) - {WEIGHTS, TENSORS}
    assert {name.partition("/")[0] for name in images} == {"nvcr.io"}


def test_a_reason_is_one_line_without_what_changes_from_day_to_day() -> None:
    error = SourceError("can't reach\nhttps://hub.test", why="port 51234 refused after 3.2 s", code="NO_NETWORK")
    assert reason_of(error) == "can't reach https://hub.test"
    gated = SourceError("access must be asked for", hint="accept the licence at https://hub.test/a/b", code="GATED")
    assert "https://hub.test/a/b" in reason_of(gated)
