"""The image config: what a container runtime sets up before it starts the entrypoint.

Source: OCI image specification 1.1, config.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from builder.oci.descriptor import Platform
from builder.oci.manifest import canonical_json

EPOCH = "1970-01-01T00:00:00Z"
"""The creation time of every image: a real one would change the digest with each build."""


@dataclass(frozen=True)
class ContainerSettings:
    """How a container is started; what is empty is left to the base."""

    entrypoint: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    working_dir: str = ""
    exposed_ports: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    stop_signal: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


def image_config(
    platform: Platform,
    settings: ContainerSettings,
    layers: Sequence[tuple[str, str]],
    base: Mapping[str, Any] | None = None,
) -> bytes:
    """The config of our layers, given as (diff_id, what made it), over the config of a base.

    Settings of the base are kept where ours don't replace them; its command goes when there is an entrypoint.
    """
    base = base or {}
    base_diff_ids = list(base.get("rootfs", {}).get("diff_ids", ()))
    history = [*_base_history(base, len(base_diff_ids)), *({"created": EPOCH, "created_by": by} for _, by in layers)]
    config = {
        "architecture": platform.architecture,
        "os": platform.os,
        "created": EPOCH,
        "config": _merge(dict(base.get("config") or {}), settings),
        "rootfs": {"type": "layers", "diff_ids": [*base_diff_ids, *(diff_id for diff_id, _ in layers)]},
        "history": history,
    }
    if platform.variant:
        config["variant"] = platform.variant
    return canonical_json(config)


def _merge(config: dict[str, Any], settings: ContainerSettings) -> dict[str, Any]:
    if settings.entrypoint:
        config["Entrypoint"] = list(settings.entrypoint)
        config.pop("Cmd", None)
    environment = dict(line.partition("=")[::2] for line in config.get("Env") or ())
    environment |= dict(sorted(settings.environment.items()))
    config["Env"] = [f"{name}={value}" for name, value in environment.items()]
    config["Labels"] = (config.get("Labels") or {}) | dict(settings.labels)
    config["ExposedPorts"] = (config.get("ExposedPorts") or {}) | {port: {} for port in settings.exposed_ports}
    config["Volumes"] = (config.get("Volumes") or {}) | {path: {} for path in settings.volumes}
    config |= {"User": settings.user} if settings.user else {}
    config |= {"WorkingDir": settings.working_dir} if settings.working_dir else {}
    config |= {"StopSignal": settings.stop_signal} if settings.stop_signal else {}
    return {key: value for key, value in config.items() if value not in (None, "", [], {})}


def _base_history(base: Mapping[str, Any], layers: int) -> list[Any]:
    """The base's history; some tools leave it out, and then each of its layers gets a plain entry."""
    history = list(base.get("history") or ())
    if sum(not entry.get("empty_layer", False) for entry in history) == layers:
        return history
    return [{"created": EPOCH, "created_by": "base image"}] * layers
