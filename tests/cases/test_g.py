"""Reports of class G on versions and machines: what is built with what, and where."""

import random
from pathlib import Path

import pytest

from builder import catalog
from builder.catalog.compatibility import gpu_mismatch
from builder.errors import UsageError
from tests.cases.support import AS_PUBLISHED, PYTORCH, Planned, config_of, plan

TRITON = "nvcr.io/nvidia/tritonserver:{}-trtllm-python-py3"
LLAMA = "meta-llama--Llama-3.1-8B"


class TestG01:
    """https://github.com/triton-inference-server/tensorrtllm_backend/issues/531: an engine of TensorRT-LLM 0.10.0 fails
    in the container 24.03 when it is loaded, after it was moved there. triton-inference-server/server issue 8462:
    one of TensorRT 10.14.1.48 in a container with 10.13.3.9. NVIDIA/TensorRT-LLM issue 1695 is of the same kind."""

    @pytest.mark.parametrize(
        ("trtllm", "tensorrt", "container", "accepted"),
        [
            ("0.10.0", None, "24.03", False),
            ("0.10.0", None, "24.06", True),
            (None, "10.14.1.48", "25.12", False),
            ("1.1.0", None, "25.12", True),
            ("1.1.0", "10.13.3.9", "26.01", True),
            ("1.0.0", "10.11.0.33", "25.08", False),  # the same TensorRT, another TensorRT-LLM
            ("1.2.1", "10.14.1.48", "26.05", True),
            ("1.2.0", "10.14.1.48", "26.05", False),
        ],
    )
    def test_g01_an_engine_loads_only_in_a_container_of_its_own_versions(
        self, trtllm: str | None, tensorrt: str | None, container: str, accepted: bool
    ) -> None:
        reason = catalog.mismatch(trtllm, tensorrt, catalog.containers()[container])
        assert (reason is None) is accepted

    def test_g01_a_plan_refuses_the_container_and_names_one_that_has_the_release(self, tmp_path: Path) -> None:
        planned = plan(tmp_path, config_of(LLAMA), package={"base": TRITON.format("25.12")})
        assert planned.refusing == {"TRT_VERSION_MISMATCH"}
        assert planned.refused
        finding = planned["TRT_VERSION_MISMATCH"]
        assert finding.severity == "refuse"
        assert finding.values["25.12"] == "1.1.0 / TRT 10.13.3.9"
        assert "10.14.1.48" in finding.message
        assert TRITON.format("26.07") in finding.suggestion
        assert "toolchain: trtllm-1.1.0" in finding.suggestion

    def test_g01_an_old_release_is_compared_too(self, tmp_path: Path) -> None:
        """0.10.0 isn't built with any more, which is another finding; 24.06 has it, 24.03 doesn't."""
        planned = plan(tmp_path, config_of(LLAMA), toolchain="trtllm-0.10.0", package={"base": TRITON.format("24.03")})
        assert planned.refusing == {"TRT_VERSION_MISMATCH", "TOOLCHAIN_RETIRED"}
        assert planned["TRT_VERSION_MISMATCH"].values["24.06"] == "0.10.0 / TRT 10.0.1"
        assert "24.06" in planned["TRT_VERSION_MISMATCH"].suggestion
        planned = plan(tmp_path, config_of(LLAMA), toolchain="trtllm-0.10.0", package={"base": TRITON.format("24.06")})
        assert planned.refusing == {"TOOLCHAIN_RETIRED"}

    @pytest.mark.parametrize(("version", "container"), [("1.1.0", "25.12"), ("1.2.1", "26.07"), ("1.0.0", "25.10")])
    def test_g01_a_matching_container_is_accepted(self, tmp_path: Path, version: str, container: str) -> None:
        base = {"base": TRITON.format(container)}
        planned = plan(tmp_path, config_of(LLAMA), toolchain=f"trtllm-{version}", package=base)
        assert not planned.refused

    def test_g01_a_mirror_of_the_container_is_recognised(self, tmp_path: Path) -> None:
        base = {"base": "mirror.example.com/nvidia/tritonserver:25.12-trtllm-python-py3"}
        assert plan(tmp_path, config_of(LLAMA), package=base).refusing == {"TRT_VERSION_MISMATCH"}


class TestG02:
    """https://github.com/NVIDIA/TensorRT-LLM/issues/222 and 3031: an engine of one kind of GPU on another:
    "generated on an incompatible device", or a silently slow path. Also run-llama/llama_index issue 12318."""

    @pytest.mark.parametrize(
        ("built", "run", "sms"),
        [
            ("a100-sxm-80gb", "a10g-24gb", ("8.0", "8.6")),
            ("h100-sxm-80gb", "l40s-48gb", ("9.0", "8.9")),
            ("b200-180gb", "rtx-5090-32gb", ("10.0", "12.0")),
        ],
    )
    def test_g02_another_compute_capability_is_refused(self, built: str, run: str, sms: tuple[str, str]) -> None:
        error = gpu_mismatch(catalog.gpus()[built], catalog.gpus()[run])
        assert error is not None
        assert error.code == "SM_MISMATCH"
        assert all(sm in error.render() for sm in sms)

    @pytest.mark.parametrize(
        ("built", "run"), [("a100-sxm-80gb", "a100-sxm-40gb"), ("h100-sxm-80gb", "h200-sxm-141gb")]
    )
    def test_g02_another_card_of_the_same_one_is_told_apart(self, built: str, run: str) -> None:
        error = gpu_mismatch(catalog.gpus()[built], catalog.gpus()[run])
        assert error is not None
        assert error.code == "SKU_MISMATCH"

    def test_g02_its_own_card_is_accepted(self) -> None:
        assert gpu_mismatch(catalog.gpus()["a100-sxm-80gb"], catalog.gpus()["a100-sxm-80gb"]) is None


class TestG04:
    """https://github.com/NVIDIA/TensorRT-LLM/issues/3564 and 4684, 2302, 16: a model needs a newer transformers than
    TensorRT-LLM pins, users upgrade it, and TensorRT-LLM breaks."""

    def test_g04_a_model_type_that_the_pinned_transformers_lacks_is_refused(self, tmp_path: Path) -> None:
        """TensorRT-LLM 0.18.1 has 4.48.3."""
        config = config_of("Qwen--Qwen3-0.6B", transformers_version="4.51.0")
        planned = plan(tmp_path, config, toolchain="trtllm-0.18.1")
        assert planned.refused
        finding = planned["TRANSFORMERS_TOO_OLD"]
        assert finding.severity == "refuse"
        assert all(word in finding.message for word in ("qwen3", "4.51", "4.48.3"))
        assert "trtllm-1.2.1" in finding.suggestion

    @pytest.mark.parametrize(
        ("model", "toolchain", "needed", "there"),
        [
            ("google--gemma-3-1b-it", "trtllm-0.18.1", "4.50.0", "4.48.3"),
            ("openai--gpt-oss-20b", "trtllm-1.0.0", "4.55.0", "4.53.1"),
            ("Qwen--Qwen3-VL-2B-Instruct", "trtllm-1.1.0", "4.57.0", "4.56.0"),
        ],
    )
    def test_g04_other_models(self, tmp_path: Path, model: str, toolchain: str, needed: str, there: str) -> None:
        planned = plan(tmp_path, config_of(model), toolchain=toolchain, precision=AS_PUBLISHED, **PYTORCH)
        values = planned["TRANSFORMERS_TOO_OLD"].values
        assert (values["needed"], values["there"]) == (needed, there)

    def test_g04_the_version_that_a_config_names_is_a_hint_only(self, tmp_path: Path) -> None:
        """It says which release wrote the file: a Llama needs none so new, a Qwen3 more than an old one."""
        assert not plan(tmp_path, config_of(LLAMA, transformers_version="5.9.0")).refused
        config = config_of("Qwen--Qwen3-0.6B", transformers_version="4.40.0")
        assert "TRANSFORMERS_TOO_OLD" in plan(tmp_path, config, toolchain="trtllm-0.18.1").codes

    @pytest.mark.parametrize("version", ["1.0.0", "1.1.0", "1.2.1"])
    def test_g04_a_release_that_has_it_is_accepted(self, tmp_path: Path, version: str) -> None:
        assert not plan(tmp_path, config_of("Qwen--Qwen3-0.6B"), toolchain=f"trtllm-{version}").refused


class TestG11:
    """https://github.com/actions/runner-images/issues/10237: free CI runners may have 14 GB of disk left, and Triton's
    containers alone have 12 to 34."""

    def disk(self, folder: Path, version: str, container: str, free_gb: float) -> Planned:
        return plan(
            folder,
            config_of("HuggingFaceTB--SmolLM2-135M"),
            toolchain=f"trtllm-{version}",
            package={"base": TRITON.format(container)},
            runner={"disk_gb": free_gb},
        )

    @pytest.mark.parametrize(
        ("container", "size_gb", "refuses"),
        [("25.12", 16.04, True), ("25.11", 12.25, False), ("25.08", 20.49, True), ("24.05", 34, True)],
    )
    def test_g11_a_base_image_that_a_runner_cannot_hold_is_refused(
        self, tmp_path: Path, container: str, size_gb: float, refuses: bool
    ) -> None:
        """25.11 fits packed, with little to spare; unpacked beside it, it doesn't: a warning."""
        finding = self.disk(tmp_path, "1.1.0", container, 14)["DISK"]
        assert finding.refuses is refuses
        assert finding.severity == ("refuse-waivable" if refuses else "warn")
        assert finding.values["image_bytes"] == round(size_gb * 10**9)
        assert finding.values["free_bytes"] == 14_000_000_000
        assert f"{size_gb:.2f} GB" in finding.message

    def test_g11_model_checkpoint_and_engine_are_counted_with_it(self, tmp_path: Path) -> None:
        """SmolLM2-135M has 269,030,016 bytes; its tied head is stored a second time in the two others, 49,152 x 576 x 2
        = 56,623,104; the engine has a rope table of 8,192 x 64 x 4."""
        finding = self.disk(tmp_path, "1.1.0", "25.12", 14)["DISK"]
        files = 269_030_016 + 2 * (269_030_016 + 56_623_104) + 2_097_152
        assert finding.values["needed_bytes"] == {"low": files + 16_040_000_000, "high": files + 2 * 16_040_000_000}

    def test_g11_a_runner_with_room_is_accepted(self, tmp_path: Path) -> None:
        for container, free in (("25.12", 40), ("25.12", 33.1)):
            planned = self.disk(tmp_path, "1.1.0", container, free)
            assert not planned.refused
            assert "DISK" not in planned.codes

    def test_g11_a_large_model_needs_more_than_its_image(self, tmp_path: Path) -> None:
        """Llama-3.1-70B without a base: model, checkpoint and engine of 141 GB each on a runner of 400 GB."""
        planned = plan(
            tmp_path,
            config_of("meta-llama--Llama-3.1-70B"),
            parallelism={"tensor": 4},
            runner={"disk_gb": 400},
        )
        assert planned["DISK"].refuses
        assert planned["DISK"].values["needed_bytes"]["low"] > 3 * 141_107_412_992

    def test_g11_memory_of_the_machine_counts_too(self, tmp_path: Path) -> None:
        """A free runner has 16 GB; an engine of an 8B needs its 16 GB of weights more than once."""
        planned = plan(tmp_path, config_of(LLAMA), runner={"memory_gb": 16})
        assert planned["HOST_MEMORY"].refuses
        assert "HOST_MEMORY" not in plan(tmp_path, config_of(LLAMA), runner={"memory_gb": 128}).codes


class TestG12:
    """https://github.com/NVIDIA/TensorRT-LLM/issues/2057 and NVIDIA's compatibility page: versions such as
    0.9.0.dev2024022000, 1.0.3.2510 or 10.13.3.9; compared as text, 0.9 is above 0.10."""

    ORDER = (
        "0.9.0.dev2024022000",
        "0.9.0",
        "0.10.0",
        "0.21.0rc0",
        "0.21.0",
        "1.0.0rc6",
        "1.0.0",
        "1.0.3.2510",
        "1.3.0rc27",
    )

    @pytest.mark.parametrize(
        "order",
        [
            ORDER,
            ("0.19.0", "0.20.0", "0.20.0.post1", "0.21.0rc0", "1.1.0rc2", "1.1.0rc2.post2", "1.1.0"),
            ("8.6.1", "9.3.0", "10.0.1", "10.0.1.6", "10.10.0.31", "10.11.0.33", "10.13.3.9", "10.14.1.48"),
            ("1.3.0rc9", "1.3.0rc21", "1.3.0", "1.4.0rc1"),
        ],
    )
    def test_g12_versions_are_ordered_as_pep_440_says(self, order: tuple[str, ...]) -> None:
        shuffled = random.Random(12).sample(order, len(order))
        assert sorted(shuffled, key=catalog.parse_version) == list(order)
        assert sorted(order) != list(order)  # as text they aren't

    @pytest.mark.parametrize("word", ["", "latest", "1.x", "v", "1.2.1-trtllm"])
    def test_g12_what_is_no_version_is_one_clear_error(self, word: str) -> None:
        with pytest.raises(UsageError) as caught:
            catalog.parse_version(word)
        assert caught.value.code == "BAD_VERSION"

    def test_g12_the_toolchains_are_listed_in_this_order(self) -> None:
        versions = [catalog.parse_version(one.version) for one in catalog.toolchains().values() if one.version]
        assert versions == sorted(versions)
