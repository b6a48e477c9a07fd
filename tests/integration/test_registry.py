"""Releases in a real registry and in real OCI layouts, seen by `skopeo` as well, with what goes wrong in real life."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from builder.errors import HostError, StorageError
from builder.image.image import Image, build_image
from builder.image.layer import Layer
from builder.oci.base import read_base
from builder.oci.descriptor import Descriptor, Platform
from builder.oci.http import HttpRepository
from builder.oci.layout import LayoutRepository
from builder.oci.reference import Reference
from builder.oci.repository import Repository, open_repository
from builder.registry.inspect import inspect, list_releases
from builder.registry.publish import publish
from builder.registry.pull import pull
from tests.integration.services import Registry, run_docker_registry

ENGINE_BYTES = 20 << 20
MakeImage = Callable[..., Image]


@pytest.fixture
def make_image(tmp_path: Path) -> MakeImage:
    """An image of a small repository and an engine of 20 MB; `seed` makes another engine."""

    def make(sku: str = "cpu", seed: int = 0, **values: object) -> Image:
        root = tmp_path / f"tree-{sku}-{seed}"
        (root / "repository/models").mkdir(parents=True, exist_ok=True)
        (root / "repository/serving.json").write_text("{}")
        (root / "repository/models/config.pbtxt").write_text("name: bls")
        (root / "engine/engine").mkdir(parents=True, exist_ok=True)
        (root / "engine/engine/rank0.engine").write_bytes(bytes([seed, *range(1, 256)]) * (ENGINE_BYTES // 256))
        layers = [Layer.from_folder("repository", root / "repository"), Layer.from_folder("engine", root / "engine")]
        return build_image(
            unit=f"m/bf16-tp1/{sku}",
            sku=sku,
            platform="linux/amd64",
            title="m",
            version="1.0.0",
            layers=layers,
            **values,  # type: ignore[arg-type]
        )

    return make


@pytest.fixture
def target(docker_registry: Registry, request: pytest.FixtureRequest) -> Reference:
    return Reference.parse(docker_registry.reference(f"engines/{request.node.name[:80].strip('_')}"))


class Wire:
    """Connections to real servers, with a list of what goes over them."""

    def __init__(self, before: Callable[[httpx.Request], None] = lambda request: None) -> None:
        self.requests: list[str] = []
        self.before = before

    def connect(self, reference: Reference) -> Repository:
        if reference.layout:
            return open_repository(reference)
        return HttpRepository(reference, transport=Tap(self), sleep=lambda seconds: None)

    def count(self, method: str, part: str) -> int:
        return sum(line.startswith(method) and part in line for line in self.requests)


class Tap(httpx.HTTPTransport):
    def __init__(self, wire: Wire) -> None:
        super().__init__()
        self.wire = wire

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.wire.requests.append(f"{request.method} {request.url.path}")
        self.wire.before(request)
        return super().handle_request(request)


def files(folder: Path) -> dict[str, bytes]:
    found = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    found.pop(".pulled.json", None)
    return found


def sources(image: Image) -> dict[str, bytes]:
    entries = [entry for layer in image.layers for entry in layer.entries]
    contents = {entry.path: Path(str(entry.source)).read_bytes() for entry in entries}
    return {path.removeprefix("opt/engine-builder/"): content for path, content in contents.items()}


def skopeo(*arguments: str) -> str:
    return subprocess.run(["skopeo", *arguments], check=True, capture_output=True, text=True, timeout=120).stdout


def test_what_is_pulled_is_what_was_published(target: Reference, make_image: MakeImage, tmp_path: Path) -> None:
    image = make_image()
    published = publish([image], target, "1.0.0", "m")
    pulled = pull(target.with_tag("1.0.0"), tmp_path / "out")
    assert files(pulled.folder) == sources(image)
    assert pulled.digest == image.digest
    assert list_releases(target) == [
        {
            "tag": "1.0.0",
            "digest": published.digest,
            "units": [{"unit": "m/bf16-tp1/cpu", "sku": "cpu", "digest": image.digest}],
        }
    ]


def test_publishing_again_sends_no_blob(target: Reference, make_image: MakeImage) -> None:
    publish([make_image()], target, "1.0.0", "m")
    wire = Wire()
    again = publish([make_image()], target, "1.0.0", "m", connect=wire.connect)
    assert again.published == ()
    assert {line.split()[0] for line in wire.requests} == {"GET", "HEAD"}
    assert wire.count("GET", "/blobs/") == 0


def test_another_version_of_the_same_engine_sends_no_engine(target: Reference, make_image: MakeImage) -> None:
    publish([make_image()], target, "1.0.0", "m")
    wire = Wire()
    publish([make_image()], target, "1.1.0", "m", connect=wire.connect)
    assert wire.count("PUT", "/blobs/") == 0
    assert [release["tag"] for release in list_releases(target)] == ["1.0.0", "1.1.0"]


def test_a_release_grows_but_its_units_never_change(target: Reference, make_image: MakeImage) -> None:
    publish([make_image("cpu")], target, "1.0.0", "m")
    publish([make_image("l40s-48gb", seed=1)], target, "1.0.0", "m")
    with pytest.raises(StorageError) as caught:
        publish([make_image("cpu", seed=2)], target, "1.0.0", "m")
    assert caught.value.code == "VERSION_EXISTS"
    images = inspect(target.with_tag("1.0.0"))["images"]
    assert {image["sku"]: image["digest"] for image in images} == {
        "cpu": make_image("cpu").digest,
        "l40s-48gb": make_image("l40s-48gb", seed=1).digest,
    }


def test_skopeo_reads_what_we_publish(target: Reference, make_image: MakeImage, tmp_path: Path) -> None:
    image = make_image()
    published = publish([image, make_image("l40s-48gb", seed=1)], target, "1.0.0", "m")
    place = f"docker://{target.with_tag('1.0.0')}"
    inspected = json.loads(skopeo("inspect", "--tls-verify=false", place))
    assert inspected["Layers"] == [layer.descriptor.digest for layer in image.layers]
    copied = f"oci:{tmp_path}/copied:1.0.0"
    skopeo("copy", "--src-tls-verify=false", "--insecure-policy", "--preserve-digests", "--all", place, copied)
    assert inspect(Reference.parse(copied))["digest"] == published.digest
    assert files(pull(Reference.parse(copied), tmp_path / "out", unit="cpu").folder) == sources(image)


def test_skopeo_reads_and_copies_our_layouts(docker_registry: Registry, make_image: MakeImage, tmp_path: Path) -> None:
    image = make_image()
    layout = Reference(layout=tmp_path / "layout")
    published = publish([image], layout, "1.0.0", "m")
    assert json.loads(skopeo("inspect", f"oci:{tmp_path}/layout:1.0.0"))["Architecture"] == "amd64"
    target = Reference.parse(docker_registry.reference("engines/from-a-layout"))
    skopeo(
        "copy",
        "--dest-tls-verify=false",
        "--insecure-policy",
        "--preserve-digests",
        "--all",
        f"oci:{tmp_path}/layout:1.0.0",
        f"docker://{target.with_tag('1.0.0')}",
    )
    assert inspect(target.with_tag("1.0.0"))["digest"] == published.digest


def test_the_layers_of_a_base_are_mounted_within_a_registry_and_copied_between(
    docker_registry: Registry, target: Reference, make_image: MakeImage, tmp_path: Path
) -> None:
    base_place = Reference.parse(docker_registry.reference("bases/python"))
    base_image = make_image("cpu", seed=9)
    publish([base_image], base_place, "3.11", "python")
    base = read_base(open_repository(base_place), base_image.digest, Platform("linux", "amd64"))
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours/file").write_text("x")
    image = build_image(
        unit="u",
        sku="cpu",
        platform="linux/amd64",
        title="m",
        version="1",
        layers=[Layer.from_folder("runtime", tmp_path / "ours", "opt/ours")],
        base=base,
    )
    wire = Wire()
    publish([image], target, "1", "m", connect=wire.connect)
    assert wire.count("PUT", "/blobs/uploads") == 2  # the runtime layer and the config
    assert wire.count("GET", "/blobs/") == 0
    publish([image], Reference(layout=tmp_path / "layout"), "1", "m")
    for place in (target, Reference(layout=tmp_path / "layout")):
        repository = open_repository(place)
        assert all(sum(map(len, repository.open_blob(blob))) == blob.size for blob in image.blobs)


def test_an_interrupted_push_is_finished_by_the_next(target: Reference, make_image: MakeImage, tmp_path: Path) -> None:
    sent = 0

    def stop_half_way(count: int) -> None:
        nonlocal sent
        sent += count
        if sent > ENGINE_BYTES // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        publish([make_image()], target, "1.0.0", "m", advance=stop_half_way)
    assert list_releases(target) == []
    publish([make_image()], target, "1.0.0", "m")
    assert files(pull(target.with_tag("1.0.0"), tmp_path / "out").folder) == sources(make_image())


def test_a_broken_connection_is_made_good_within_one_push(target: Reference, make_image: MakeImage) -> None:
    """This registry gives up a session whose request broke off, so the blob is sent again."""
    lengths: list[int] = []

    def cut_the_first_engine(request: httpx.Request) -> None:
        if (
            request.method != "PUT"
            or "/blobs/" not in request.url.path
            or int(request.headers["content-length"]) < 10**6
        ):
            return
        lengths.append(int(request.headers["content-length"]))
        if len(lengths) == 1:
            request.stream = CutStream(request.stream, after=ENGINE_BYTES // 2)

    wire = Wire(cut_the_first_engine)
    image = make_image()
    publish([image], target, "1.0.0", "m", connect=wire.connect)
    assert len(lengths) == 2
    assert inspect(target.with_tag("1.0.0"))["images"][0]["digest"] == image.digest


class CutStream(httpx.SyncByteStream):
    def __init__(self, stream: object, after: int) -> None:
        self.stream, self.left = stream, after

    def __iter__(self) -> Iterator[bytes]:
        assert isinstance(self.stream, httpx.SyncByteStream)
        for chunk in self.stream:
            if self.left <= 0:
                raise httpx.WriteError("cut")
            self.left -= len(chunk)
            yield chunk


def test_the_registry_refuses_a_blob_with_another_digest(target: Reference) -> None:
    """Our own check is stricter and earlier; this is the server's."""
    wrong = Descriptor.of("application/octet-stream", b"expected")
    base = f"http://{target.host}/v2/{target.repository}/blobs/uploads/"
    location = httpx.post(base).headers["location"]
    answer = httpx.put(location, params={**httpx.URL(location).params, "digest": wrong.digest}, content=b"received")
    assert answer.json()["errors"][0]["code"] == "DIGEST_INVALID"
    assert not open_repository(target).has_blob(wrong)


def test_a_registry_that_is_killed_during_a_push_is_one_clear_error(tmp_path: Path, make_image: MakeImage) -> None:
    (tmp_path / "registry").mkdir()
    image = make_image()
    killed = threading.Event()
    with run_docker_registry(tmp_path / "registry") as registry:
        target = Reference.parse(registry.reference("m"))
        port = registry.host.rpartition(":")[2]
        pid = listener(int(port))

        def kill(count: int) -> None:
            if not killed.is_set():
                killed.set()
                os.kill(pid, signal.SIGKILL)

        with pytest.raises(StorageError) as caught:
            publish([image], target, "1.0.0", "m", connect=Wire().connect, advance=kill)
        assert (caught.value.exit_code, caught.value.code) == (6, "UNREACHABLE")
        assert registry.host in caught.value.render()
    with run_docker_registry(tmp_path / "registry") as registry:
        target = Reference.parse(registry.reference("m"))
        publish([image], target, "1.0.0", "m")
        assert files(pull(target.with_tag("1.0.0"), tmp_path / "out").folder) == sources(image)


def listener(port: int) -> int:
    """The process that listens on a port of loopback, from /proc."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    inode = next(f[9] for f in map(str.split, lines) if f[1] == f"0100007F:{port:04X}" and f[3] == "0A")
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if str(link.readlink()) == f"socket:[{inode}]":
                return int(link.parts[2])
        except OSError:
            continue
    raise LookupError(f"nobody listens on port {port}")


@pytest.mark.parametrize("host", ["127.0.0.1:1", "registry.invalid"])
def test_an_unreachable_host_is_one_clear_error(host: str, tmp_path: Path) -> None:
    reference = Reference.parse(f"{host}/m:1.0.0")
    with pytest.raises(StorageError) as caught:
        pull(reference, tmp_path / "out", connect=Wire().connect)
    assert (caught.value.exit_code, caught.value.code) == (6, "UNREACHABLE")
    assert host in caught.value.render()
    assert not (tmp_path / "out").exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """8 MB, less than an engine."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_leaves_no_half_release_in_a_layout(small_disk: Path, make_image: MakeImage) -> None:
    layout = Reference(layout=small_disk / "layout")
    with pytest.raises(HostError) as caught:
        publish([make_image()], layout, "1.0.0", "m")
    assert (caught.value.exit_code, caught.value.code) == (8, "DISK_FULL")
    assert list_releases(layout) == []
    assert not list((small_disk / "layout/ingest").iterdir())
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    publish([make_image()], layout, "1.0.0", "m")
    assert LayoutRepository(small_disk / "layout").tags() == ["1.0.0"]


def test_a_full_disk_leaves_no_half_bundle(target: Reference, small_disk: Path, make_image: MakeImage) -> None:
    image = make_image()
    publish([image], target, "1.0.0", "m")
    with pytest.raises(HostError) as caught:
        pull(target.with_tag("1.0.0"), small_disk / "out")
    assert (caught.value.exit_code, caught.value.code) == (8, "DISK_FULL")
    assert not (small_disk / "out").exists()
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    assert files(pull(target.with_tag("1.0.0"), small_disk / "out").folder) == sources(image)


def test_a_blob_that_the_registry_damaged_is_never_served(
    docker_registry: Registry, target: Reference, make_image: MakeImage, tmp_path: Path
) -> None:
    image = make_image("cpu", seed=7)
    publish([image], target, "1.0.0", "m")
    digest = image.layers[1].descriptor.digest.removeprefix("sha256:")
    data = docker_registry.storage / "docker/registry/v2/blobs/sha256" / digest[:2] / digest / "data"
    sound = data.with_name("sound")
    shutil.copy(data, sound)
    with open(data, "r+b") as file:
        file.seek(ENGINE_BYTES // 2)
        file.write(b"damaged")
    with pytest.raises(Exception, match=digest) as caught:
        pull(target.with_tag("1.0.0"), tmp_path / "out")
    assert getattr(caught.value, "exit_code", None) == 7
    assert not (tmp_path / "out").exists()
    sound.rename(data)
    assert pull(target.with_tag("1.0.0"), tmp_path / "out").fresh
