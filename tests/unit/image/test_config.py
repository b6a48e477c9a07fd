from __future__ import annotations

import json
from typing import Any

from builder.image.config import ContainerSettings, image_config
from builder.oci.descriptor import Platform

AMD64 = Platform("linux", "amd64")
BASE: dict[str, Any] = {
    "architecture": "amd64",
    "os": "linux",
    "created": "2026-05-01T10:00:00Z",
    "config": {
        "Env": ["PATH=/usr/bin", "LANG=C.UTF-8"],
        "Cmd": ["python3"],
        "Labels": {"maintainer": "someone"},
        "ExposedPorts": {"80/tcp": {}},
        "WorkingDir": "/root",
    },
    "rootfs": {"type": "layers", "diff_ids": ["sha256:b1", "sha256:b2"]},
    "history": [{"created_by": "one"}, {"created_by": "env", "empty_layer": True}, {"created_by": "two"}],
}
SETTINGS = ContainerSettings(
    entrypoint=("python3", "-m", "builder.runtime"),
    environment={"PATH": "/opt/bin:/usr/bin", "HOME": "/tmp"},
    user="1000:1000",
    exposed_ports=("8000/tcp",),
    volumes=("/opt/nim/.cache",),
    stop_signal="SIGTERM",
    labels={"title": "x"},
)


def config(*args: Any) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(image_config(*args))
    return document


def test_settings_go_over_those_of_the_base() -> None:
    merged = config(AMD64, SETTINGS, [("sha256:l1", "ours")], BASE)["config"]
    assert merged == {
        "Env": ["PATH=/opt/bin:/usr/bin", "LANG=C.UTF-8", "HOME=/tmp"],
        "Entrypoint": ["python3", "-m", "builder.runtime"],
        "Labels": {"maintainer": "someone", "title": "x"},
        "ExposedPorts": {"80/tcp": {}, "8000/tcp": {}},
        "Volumes": {"/opt/nim/.cache": {}},
        "User": "1000:1000",
        "WorkingDir": "/root",
        "StopSignal": "SIGTERM",
    }


def test_layers_are_appended_to_those_of_the_base() -> None:
    document = config(AMD64, SETTINGS, [("sha256:l1", "ours")], BASE)
    assert document["rootfs"]["diff_ids"] == ["sha256:b1", "sha256:b2", "sha256:l1"]
    assert [entry["created_by"] for entry in document["history"]] == ["one", "env", "two", "ours"]


def test_a_base_without_history_gets_one_that_fits() -> None:
    base = {**BASE, "history": []}
    document = config(AMD64, SETTINGS, [("sha256:l1", "ours")], base)
    assert len(document["history"]) == len(document["rootfs"]["diff_ids"]) == 3


def test_without_base_there_is_only_what_must_be() -> None:
    assert config(Platform("linux", "arm64", "v8"), ContainerSettings(), [("sha256:l1", "ours")]) == {
        "architecture": "arm64",
        "os": "linux",
        "variant": "v8",
        "created": "1970-01-01T00:00:00Z",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:l1"]},
        "history": [{"created": "1970-01-01T00:00:00Z", "created_by": "ours"}],
    }


def test_the_base_is_not_changed() -> None:
    before = json.dumps(BASE)
    image_config(AMD64, SETTINGS, [], BASE)
    assert json.dumps(BASE) == before
