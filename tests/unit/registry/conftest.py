from __future__ import annotations

from pathlib import Path

import pytest

from builder.image.image import Image, build_image
from builder.image.layer import Layer
from builder.oci.reference import Reference


class Trees:
    """Makes images of small trees: a Triton repository that all share, and an engine with a content."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._write("repository/serving.json", "{}")
        self._write("repository/models/bls/config.pbtxt", "name: bls")

    def image(self, sku: str, content: str = "weights") -> Image:
        self._write(f"{sku}-{content}/engine/rank0.engine", content)
        self._write(f"{sku}-{content}/engine/config.json", "{}")
        return build_image(
            unit=f"m/bf16-tp1/{sku}",
            sku=sku,
            platform="linux/amd64",
            title="m",
            version="1.0.0",
            layers=[
                Layer.from_folder("repository", self.root / "repository"),
                Layer.from_folder("engine", self.root / f"{sku}-{content}"),
            ],
        )

    def _write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def trees(tmp_path: Path) -> Trees:
    return Trees(tmp_path / "trees")


@pytest.fixture
def target(tmp_path: Path) -> Reference:
    return Reference(layout=tmp_path / "layout")
