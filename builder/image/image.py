"""An image: base layers, our layers, config and manifest. Functions over immutable records; nothing is copied."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from builder.errors import PlanRefused, StorageError, VerificationError, disk_errors
from builder.image.config import ContainerSettings, image_config
from builder.image.layer import ANNOTATIONS, Layer
from builder.oci.base import BaseImage
from builder.oci.descriptor import CONFIG, MANIFEST, Descriptor, Platform
from builder.oci.manifest import Manifest, canonical_json, parse_json_object
from builder.oci.reference import Reference
from builder.store import LocalStore

UNIT = ANNOTATIONS + "unit"
SKU = ANNOTATIONS + "sku"
TITLE = "org.opencontainers.image.title"
VERSION = "org.opencontainers.image.version"
BASE_DIGEST = "org.opencontainers.image.base.digest"

MAX_LAYERS = 127
"""overlay2 and the graph drivers of Docker stack no more."""


@dataclass(frozen=True)
class Image:
    """`layers` are ours; those of the base stay in `base_reference` until they are published."""

    manifest: bytes
    config: bytes
    layers: tuple[Layer, ...]
    base_layers: tuple[Descriptor, ...] = ()
    base_reference: Reference | None = None

    @cached_property
    def descriptor(self) -> Descriptor:
        """As it stands in the index of a release: with platform, unit and SKU."""
        annotations = json.loads(self.manifest)["annotations"]
        ours = {key: value for key, value in annotations.items() if key.startswith(ANNOTATIONS)}
        platform = Platform.from_json(json.loads(self.config))
        return replace(Descriptor.of(MANIFEST, self.manifest), annotations=ours, platform=platform)

    @property
    def digest(self) -> str:
        return self.descriptor.digest

    @property
    def unit(self) -> str:
        return self.descriptor.annotations[UNIT]

    @property
    def blobs(self) -> tuple[Descriptor, ...]:
        """Everything that its manifest names."""
        config = Descriptor.of(CONFIG, self.config)
        return (config, *self.base_layers, *(layer.descriptor for layer in self.layers))

    def save(self, folder: Path, store: LocalStore) -> None:
        """Write what an image artifact holds: manifest.json and config.json byte for byte, and layers.json, which
        says in which artifacts of the store the bytes of our layers lie, and what the base's layers are.
        """
        layers = {
            "base_layers": [layer.to_json() for layer in self.base_layers],
            "layers": [layer.to_json(store) for layer in self.layers],
        }
        with disk_errors(folder):
            (folder / "manifest.json").write_bytes(self.manifest)
            (folder / "config.json").write_bytes(self.config)
            (folder / "layers.json").write_bytes(canonical_json(layers))

    @classmethod
    def load(cls, folder: Path, store: LocalStore, base_reference: Reference | None = None) -> Image:
        """The opposite of `save`. Where the base lies now is the caller's to say: an artifact knows no paths."""
        where = folder / "layers.json"
        try:
            manifest, config = (folder / "manifest.json").read_bytes(), (folder / "config.json").read_bytes()
            data = parse_json_object(where.read_bytes(), str(where))
        except FileNotFoundError as error:
            raise StorageError("this folder holds no image", where=error.filename, code="NOT_AN_IMAGE") from error
        try:
            layers = tuple(Layer.from_json(layer, store) for layer in data["layers"])
            base_layers = tuple(Descriptor.from_json(layer, str(where)) for layer in data["base_layers"])
        except (KeyError, TypeError, ValueError) as error:
            raise StorageError("this image is damaged", where=where, hint="remove it and build again") from error
        return cls(manifest, config, layers, base_layers, base_reference)


def build_image(
    *,
    unit: str,
    sku: str,
    platform: str,
    title: str,
    version: str,
    layers: Sequence[Layer],
    settings: ContainerSettings | None = None,
    base: BaseImage | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Image:
    """Put layers on a base, or on nothing: such an image can't be started, but pulled and mounted.

    `annotations` are added to the manifest; those below `io.engine-builder.` appear in the release's index too.
    """
    _refuse_repeated_paths(layers)
    base_layers = base.layers if base else ()
    if len(base_layers) + len(layers) > MAX_LAYERS:
        raise PlanRefused(
            f"{unit} would have {len(base_layers) + len(layers)} layers",
            why=f"container runtimes stack at most {MAX_LAYERS}; the base has {len(base_layers)}",
            hint="choose a base with fewer layers",
            code="TOO_MANY_LAYERS",
        )
    config = image_config(
        Platform.parse(platform),
        settings or ContainerSettings(),
        [(layer.descriptor.digest, f"engine-builder: {layer.role} layer") for layer in layers],
        base.config if base else None,
    )
    stated = {UNIT: unit, SKU: sku, TITLE: title, VERSION: version, **(annotations or {})}
    if base:
        # Not its name as well: the same base from a mirror or a local folder gives the same image.
        stated[BASE_DIGEST] = base.reference.digest or ""
    manifest = Manifest(
        Descriptor.of(CONFIG, config), (*base_layers, *(layer.descriptor for layer in layers)), stated
    ).to_bytes()
    return Image(manifest, config, tuple(layers), base_layers, base.reference if base else None)


def _refuse_repeated_paths(layers: Sequence[Layer]) -> None:
    """A path in two layers is stored and transferred twice, and readers would see one of them."""
    counts = Counter(entry.path for layer in layers for entry in layer.entries)
    if repeated := sorted(path for path, count in counts.items() if count > 1):
        raise VerificationError(
            "a file would be in two layers of the image",
            where=repeated[0],
            why=f"{len(repeated)} paths are in more than one layer",
            code="REPEATED_PATH",
        )
