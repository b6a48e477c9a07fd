"""Reports of class E on images that can't be pushed, or take long to pull."""

from pathlib import Path
from typing import Any

import pytest

from builder.cli.options import pull_seconds
from tests.cases.support import AS_PUBLISHED, PYTORCH, TEXTS, config_of, plan

LLAMA = "meta-llama--Llama-3.1-8B"


class TestE03:
    """https://github.com/aquaproj/aqua/issues/4018 and tenstorrent/tt-forge issue 62, docker/build-push-action issue
    251: GitHub's registry takes 10 GB per layer and ten minutes per upload. A file can't be cut over two layers, so an
    8B engine in 16 bit, 16 GB, is uploaded for minutes, and then refused."""

    GHCR: dict[str, Any] = {"publish": {"repository": "ghcr.io/org/llama"}}  # noqa: RUF012

    def test_e03_an_engine_larger_than_a_layer_is_refused_with_what_would_fit(self, tmp_path: Path) -> None:
        """The engine is the weights, 16,060,522,496 bytes, and a rope table of 131,072 x 128 x 4. An even half of the
        weights is 8,030,261,248; TensorRT-LLM keeps the embedding whole on both ranks, so it writes 8.62 GB."""
        planned = plan(tmp_path, config_of(LLAMA), **self.GHCR)
        assert planned.refusing == {"LAYER_TOO_LARGE"}
        assert planned.refused
        finding = planned["LAYER_TOO_LARGE"]
        assert finding.severity == "refuse"
        assert finding.values["limit"] == 10_000_000_000
        assert finding.values["file_bytes"] == 16_060_522_496 + 67_108_864
        assert finding.values["tp2_file_bytes"] == 8_030_261_248
        assert finding.values["min_mb_per_s_tp2"] == 13.4
        assert finding.values["fitting_file_bytes"] == 8_622_972_928
        assert "10 GB" in finding.message
        assert "ghcr.io" in finding.message
        assert "parallelism.tensor: 2 (files of about 8.62 GB)" in finding.suggestion
        assert all(word in finding.suggestion for word in ("fp8", "another registry", "S3"))

    def test_e03_another_model(self, tmp_path: Path) -> None:
        """Qwen3-32B, 65,524,246,528 bytes: an even half is 32.8 GB and needs 54.6 MB/s. Eight ranks have files of
        (65.5 - 1.6) / 8 + 1.6 = 9.5 GB each."""
        finding = plan(tmp_path, config_of("Qwen--Qwen3-32B"), **self.GHCR)["LAYER_TOO_LARGE"]
        assert finding.values["tp2_file_bytes"] == 32_762_123_264
        assert finding.values["min_mb_per_s_tp2"] == 54.6
        assert finding.values["fitting_tensor"] == 8
        planned = plan(tmp_path, config_of("Qwen--Qwen3-32B"), **self.GHCR, parallelism={"tensor": 8})
        assert not planned.refused

    @pytest.mark.parametrize(
        "recipe",
        [
            {"parallelism": {"tensor": 2}},
            {"precision": {"weights": "fp8"}, "calibration": TEXTS},
            {"publish": {"repository": "registry.example.com/org/llama"}},
            {"publish": {"repository": "oci:layouts"}},
            {"publish": {}},
        ],
        ids=["two-ranks", "fp8", "another-registry", "local", "not-published"],
    )
    def test_e03_what_is_suggested_is_accepted(self, tmp_path: Path, recipe: dict[str, Any]) -> None:
        assert not plan(tmp_path, config_of(LLAMA), **self.GHCR | recipe).refused

    def test_e03_the_rate_that_ten_minutes_ask_for_is_told(self, tmp_path: Path) -> None:
        """8,622,972,928 bytes / 600 s."""
        finding = plan(tmp_path, config_of(LLAMA), **self.GHCR, parallelism={"tensor": 2})["UPLOAD_TIME"]
        assert finding.severity == "warn"
        assert finding.values["min_mb_per_s"] == 14.4

    def test_e03_other_registries_have_limits_of_their_own(self, tmp_path: Path) -> None:
        """Amazon's private registry takes 52,000 MiB: Llama-3.1-70B on two ranks has files of 71 GB."""
        recipe: dict[str, Any] = {
            "publish": {"repository": "123456789012.dkr.ecr.eu-west-1.amazonaws.com/llama"},
            "limits": {"max_batch_size": 4},
        }
        config = config_of("meta-llama--Llama-3.1-70B")
        finding = plan(tmp_path, config, **recipe, parallelism={"tensor": 2})["LAYER_TOO_LARGE"]
        assert finding.values["limit"] == 54_525_952_000
        assert not plan(tmp_path, config, **recipe, parallelism={"tensor": 4}).refused


class TestE18:
    """https://github.com/kaito-project/kaito/issues/982: an image with a 7B model was pulled for 20 minutes, its
    weights alone, in parallel, for 31 seconds."""

    @pytest.mark.parametrize(
        ("size", "mb_per_s", "seconds"),
        [
            (15_231_233_024, 100, 152),
            (15_231_233_024, 12.5, 1218),  # about the 20 minutes of the report
            (15_231_233_024, 491, 31),
            (141_107_412_992, 1000, 141),
        ],
    )
    def test_e18_a_pull_takes_bytes_over_bandwidth(self, size: int, mb_per_s: float, seconds: int) -> None:
        assert pull_seconds(size, mb_per_s) == seconds

    def test_e18_the_plan_prints_it(self, tmp_path: Path) -> None:
        """Qwen2.5-7B has 15,231,233,024 bytes."""
        sizes = plan(tmp_path, config_of("Qwen--Qwen2.5-7B"), precision=AS_PUBLISHED, **PYTORCH).unit["sizes"]
        assert sizes["image_bytes"] == 15_231_233_024
        assert (sizes["pull_mb_per_s"], sizes["pull_seconds"]) == (100, 152)

    def test_e18_an_image_on_a_base_is_pulled_with_it(self, tmp_path: Path) -> None:
        """Triton's container 26.07 has 14.2 GB; the engine is the weights and a rope table of 32,768 x 128 x 4."""
        package = {"base": "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"}
        config = config_of("Qwen--Qwen2.5-7B", max_position_embeddings=32_768)
        sizes = plan(tmp_path, config, package=package).unit["sizes"]
        assert sizes["image_bytes"] == 14_200_000_000 + 15_231_233_024 + 16_777_216
        assert sizes["pull_seconds"] == 294
