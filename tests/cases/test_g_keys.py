"""A report of class G on building anew: keys are made of what goes in, since what comes out always differs."""

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cases.support import Planned, config_of, plan, run_plan, write_case


class TestG06:
    """https://github.com/NVIDIA/TensorRT-LLM/issues/2148 and 2474, NVIDIA/TensorRT issues 4798, 4730, 3316: two builds
    of the same input differ, so whoever compares what came out always finds changes. Keys are made of what goes in."""

    BASE = "registry.example.com/triton:1"
    RECIPE: dict[str, Any] = {"package": {"base": BASE}, "description": "one"}  # noqa: RUF012

    @staticmethod
    def keys(planned: Planned) -> dict[str, str]:
        return {name: stage["derivation"] for name, stage in planned.unit["stages"].items()}

    def planned(self, folder: Path, config: Mapping[str, Any] | None = None, **recipe: Any) -> dict[str, str]:
        config = config or config_of("HuggingFaceTB--SmolLM2-135M")
        return self.keys(plan(folder, config, **{**self.RECIPE, **recipe}))

    def pinned(self, folder: Path, **digits: str) -> dict[str, str]:
        """The keys with the digests of images as a registry would have answered; the digits that they consist of."""
        names = {"base": self.BASE, "build": "nvcr.io/nvidia/tensorrt-llm/release:1.2.1"}
        file = write_case(folder, config_of("HuggingFaceTB--SmolLM2-135M"), **self.RECIPE)
        run_plan(file)
        lock = file.with_name("case.lock.json")
        data = json.loads(lock.read_text())
        for which, digit in digits.items():
            platforms = {"linux/amd64": {"digest": f"sha256:{digit * 64}", "size": 1}}
            data["images"][names[which]] = {"index": None, "platforms": platforms, "python": "3.12"}
            data["unresolved"].pop(names[which])
        lock.write_text(json.dumps(data))
        return self.keys(run_plan(file))

    def test_g06_order_and_comments_make_no_difference(self, tmp_path: Path) -> None:
        file = write_case(tmp_path, config_of("HuggingFaceTB--SmolLM2-135M"), **self.RECIPE)
        first = self.keys(run_plan(file))
        content = yaml.safe_load(file.read_text())
        shuffled = list(content.items())
        random.Random(6).shuffle(shuffled)
        assert list(content) != [name for name, _ in shuffled]
        text = yaml.safe_dump(dict(shuffled), sort_keys=False, default_flow_style=False)
        file.write_text("# the same in another order\n" + text.replace("precision:", "\nprecision:  # comment\n"))
        assert self.keys(run_plan(file)) == first

    def test_g06_what_an_engine_depends_on_changes_its_key(self, tmp_path: Path) -> None:
        engines = [
            self.planned(tmp_path)["engine"],
            self.planned(tmp_path, config_of("HuggingFaceTB--SmolLM2-135M", rope_theta=10_000.0))["engine"],
            self.planned(tmp_path, target={"sku": "l40s-48gb"})["engine"],
            self.planned(tmp_path, limits={"max_batch_size": 9})["engine"],
            self.planned(tmp_path, toolchain="trtllm-1.2.0")["engine"],
            self.planned(tmp_path, precision={"weights": "fp16"})["engine"],
            self.pinned(tmp_path, build="a")["engine"],
            self.pinned(tmp_path, build="b")["engine"],
        ]
        assert len(set(engines)) == len(engines)

    def test_g06_the_digest_of_the_serving_container_changes_the_image_alone(self, tmp_path: Path) -> None:
        one, two = self.pinned(tmp_path, base="a"), self.pinned(tmp_path, base="b")
        assert [name for name in one if one[name] != two[name]] == ["image"]

    def test_g06_what_people_read_and_where_it_goes_changes_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = self.planned(tmp_path)
        assert self.planned(tmp_path, description="another one") == first
        assert self.planned(tmp_path, publish={"repository": "registry.example.com/other"}) == first
        assert self.planned(tmp_path, runner={"labels": ["gpu"]}) == first
        monkeypatch.setenv("ENGINE_BUILDER_DEBUG", "1")
        assert self.planned(tmp_path) == first

    def test_g06_a_new_version_is_packed_from_the_same_engine(self, tmp_path: Path) -> None:
        one, two = self.planned(tmp_path), self.planned(tmp_path, version="1.0.1")
        assert [name for name in one if one[name] != two[name]] == ["image"]
