from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from builder.errors import HostError, StorageError, VerificationError
from builder.image.image import build_image
from builder.image.layer import Layer
from builder.oci.layout import LayoutRepository
from builder.oci.reference import Reference
from builder.registry.publish import publish
from builder.registry.pull import pull
from tests.unit.registry.conftest import Trees


@pytest.fixture
def release(trees: Trees, target: Reference) -> Reference:
    return publish([trees.image("cpu"), trees.image("l40s-48gb", "other")], target, "1.0.0", "m").reference


def files(folder: Path) -> dict[str, str]:
    return {p.relative_to(folder).as_posix(): p.read_text() for p in folder.rglob("*") if p.is_file()}


BUNDLE = {
    "serving.json": "{}",
    "models/bls/config.pbtxt": "name: bls",
    "engine/config.json": "{}",
    "engine/rank0.engine": "other",
}


def test_a_pulled_bundle_is_what_was_published(release: Reference, tmp_path: Path) -> None:
    announced: list[int] = []
    progress: list[int] = []
    pulled = pull(release, tmp_path / "out", unit="l40s-*", announce=announced.append, advance=progress.append)
    found = files(tmp_path / "out")
    marker = json.loads(found.pop(".pulled.json"))
    assert found == BUNDLE
    assert (pulled.unit, pulled.fresh) == ("m/bf16-tp1/l40s-48gb", True)
    assert marker["digest"] == pulled.digest
    assert marker["reference"] == str(release.with_digest(pulled.digest))
    assert announced == [sum(progress)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["layout", "out", "trees"]


def test_pulling_again_does_nothing(release: Reference, tmp_path: Path) -> None:
    pull(release, tmp_path / "out")
    before = (tmp_path / "out/engine/rank0.engine").stat()
    assert not pull(release, tmp_path / "out").fresh
    assert (tmp_path / "out/engine/rank0.engine").stat() == before


def test_a_folder_with_something_else_is_left_alone(release: Reference, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").write_text("x")
    with pytest.raises(HostError) as caught:
        pull(release, tmp_path / "mine")
    assert caught.value.code == "DESTINATION"
    pull(release, tmp_path / "out", unit="cpu")
    with pytest.raises(HostError) as caught:
        pull(release, tmp_path / "out", unit="l40s-48gb")
    assert str(release.name) in (caught.value.why or "")
    assert files(tmp_path / "mine") == {"file": "x"}


def test_an_empty_folder_is_filled(release: Reference, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert pull(release, tmp_path / "empty").fresh


def test_an_interrupted_pull_goes_on_with_the_layers_that_are_missing(release: Reference, tmp_path: Path) -> None:
    """The larger layer is stopped; the other one is whole by then or comes with the next pull."""

    def stop(count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull(release, tmp_path / "out", unit="l40s-48gb", advance=stop)
    assert not (tmp_path / "out").exists()
    (partial,) = tmp_path.glob(".out-*.partial")
    layer = Layer.from_folder("repository", tmp_path / "trees/repository").descriptor
    (partial / "done").write_text(layer.digest + "\n")
    (partial / "bundle/serving.json").write_text("from before")
    announced: list[int] = []
    pull(release, tmp_path / "out", unit="l40s-48gb", announce=announced.append)
    assert announced[0] < layer.size * 3
    assert files(tmp_path / "out")["serving.json"] == "from before"
    assert not partial.exists()


def test_a_damaged_layer_leaves_nothing_in_place(release: Reference, tmp_path: Path, trees: Trees) -> None:
    engine = trees.image("cpu").layers[1].descriptor
    assert release.layout
    path = release.layout / "blobs/sha256" / engine.digest.removeprefix("sha256:")
    path.write_bytes(path.read_bytes().replace(b"weights", b"WEIGHTS"))
    with pytest.raises(VerificationError) as caught:
        pull(release, tmp_path / "out", unit="cpu")
    assert caught.value.code == "WRONG_DIGEST"
    assert not (tmp_path / "out").exists()


def test_a_pulled_folder_that_was_damaged_is_not_up_to_date(release: Reference, tmp_path: Path) -> None:
    pull(release, tmp_path / "out", unit="cpu")
    (tmp_path / "out" / "serving.json").unlink()
    with pytest.raises(HostError) as caught:
        pull(release, tmp_path / "out", unit="cpu")
    assert caught.value.code == "PULL_DAMAGED"


def test_two_pulls_at_once_give_one_bundle(release: Reference, tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        pulled = list(pool.map(lambda _: pull(release, tmp_path / "out", unit="l40s-48gb"), range(8)))
    assert sum(one.fresh for one in pulled) == 1
    assert {k: v for k, v in files(tmp_path / "out").items() if k != ".pulled.json"} == BUNDLE
    assert sorted(path.name for path in tmp_path.iterdir()) == ["layout", "out", "trees"]


def test_layers_of_other_roles_are_pulled_when_asked_for(target: Reference, tmp_path: Path) -> None:
    (tmp_path / "runtime").mkdir()
    (tmp_path / "runtime/module.py").write_text("x = 1")
    layer = Layer.from_folder("runtime", tmp_path / "runtime", "opt/engine-builder/runtime")
    image = build_image(unit="u", sku="cpu", platform="linux/amd64", title="m", version="1", layers=[layer])
    reference = publish([image], target, "1", "m").reference
    with pytest.raises(StorageError) as caught:
        pull(reference, tmp_path / "out")
    assert caught.value.code == "NOT_A_RELEASE"
    pull(reference, tmp_path / "out", roles=["runtime"])
    assert (tmp_path / "out/runtime/module.py").read_text() == "x = 1"


def test_a_layout_that_lost_a_blob_is_one_clear_error(release: Reference, tmp_path: Path, trees: Trees) -> None:
    assert release.layout
    layer = trees.image("cpu").layers[0].descriptor
    assert LayoutRepository(release.layout).has_blob(layer)
    (release.layout / "blobs/sha256" / layer.digest.removeprefix("sha256:")).unlink()
    with pytest.raises(StorageError) as caught:
        pull(release, tmp_path / "out")
    assert caught.value.code == "BLOB_MISSING"
