"""Reports of class A on releases and lengths: words that are gone, and sequences that the model wasn't made for."""

from pathlib import Path
from typing import Any

import pytest

from builder import catalog
from tests.cases.support import PYTORCH, config_of, failed, failure, plan, write_case


class TestA13:
    """https://github.com/NVIDIA/TensorRT-LLM/issues/2057 and 1780: scripts stopped at --max_output_len, which a new
    release had taken away for --max_seq_len. triton-inference-server/tensorrtllm_backend issue 141: others set nothing
    and were cut off at the default."""

    @pytest.mark.parametrize(
        ("version", "expected"),
        [
            ("0.10.0", "--max_input_len 2048 --max_output_len 2048"),
            ("0.12.0", "--max_input_len 2048 --max_seq_len 4096"),
            ("0.9.0", "--max_input_len 2048 --max_output_len 2048"),
            ("1.2.1", "--max_input_len 2048 --max_seq_len 4096"),
        ],
    )
    def test_a13_lengths_are_written_as_the_release_spells_them(self, version: str, expected: str) -> None:
        assert " ".join(catalog.length_flags(version, 2048, 2048)) == expected

    def test_a13_prompt_and_answer_are_added_up(self) -> None:
        assert catalog.length_flags("0.12.0", 3000, 500)[-2:] == ["--max_seq_len", "3500"]

    def test_a13_a_recipe_that_has_the_old_word_is_told_the_new_one(self, tmp_path: Path) -> None:
        config = config_of("meta-llama--Llama-2-7b-hf")
        for recipe in ({"limits": {"max_output_len": 2048}}, {"engine": {"max_output_len": 2048}}):
            error = failure(tmp_path, config, **recipe)
            assert error.exit_code == 2
            assert "max_output_len" in error.words
            assert "max_seq_len" in error.words

    def test_a13_a_recipe_without_lengths_is_refused(self, tmp_path: Path) -> None:
        planned = plan(tmp_path, config_of("meta-llama--Llama-2-7b-hf"), limits={"max_seq_len": None})
        assert planned.refusing == {"MAX_SEQ_LEN_REQUIRED"}


class TestA14:
    """https://github.com/NVIDIA/TensorRT-LLM/issues/11723, and 15763, 15767, 15907, 15918, 18854 there: in 2026
    TensorRT-LLM lost its engine backend, and whoever follows older guides finds that commands are missing."""

    def test_a14_engines_of_a_release_without_them_are_refused(self, tmp_path: Path) -> None:
        planned = plan(tmp_path, config_of("meta-llama--Llama-3.1-8B"), toolchain="trtllm-1.4.0rc1")
        assert planned.refusing == {"ENGINE_BACKEND_REMOVED"}
        assert planned.refused
        finding = planned["ENGINE_BACKEND_REMOVED"]
        assert finding.severity == "refuse"
        assert "tensorrt-backend-removal" in finding.words
        assert "pytorch" in finding.words
        assert finding.values["console_scripts_left"] == ["trtllm-bench", "trtllm-serve", "trtllm-eval"]
        assert "trtllm-1.2.1" in finding.suggestion

    def test_a14_the_first_release_without_them_is_refused_too(self, tmp_path: Path) -> None:
        planned = plan(tmp_path, config_of("Qwen--Qwen2.5-7B"), toolchain="trtllm-1.3.0rc21")
        assert planned.refusing == {"ENGINE_BACKEND_REMOVED"}

    @pytest.mark.parametrize("version", ["1.0.0", "1.1.0", "1.2.0", "1.2.1"])
    def test_a14_releases_that_have_engines_are_accepted(self, tmp_path: Path, version: str) -> None:
        assert not plan(tmp_path, config_of("meta-llama--Llama-3.1-8B"), toolchain=f"trtllm-{version}").refused

    def test_a14_the_pytorch_flow_of_a_new_release_is_accepted(self, tmp_path: Path) -> None:
        config = config_of("meta-llama--Llama-3.1-8B")
        assert not plan(tmp_path, config, toolchain="trtllm-1.4.0rc1", **PYTORCH).refused


class TestA23:
    """https://github.com/basetenlabs/truss/issues/1633 and 1434: users asked for sequences longer than the model was
    made for, or got what a config claims without asking; Truss had to add checks."""

    TINYLLAMA = "TinyLlama--TinyLlama-1.1B-Chat-v1.0"

    def test_a23_a_sequence_beyond_the_positions_of_the_model_is_refused(self, tmp_path: Path) -> None:
        planned = plan(tmp_path, config_of(self.TINYLLAMA, rope_scaling=None), limits={"max_seq_len": 8192})
        assert planned.refusing == {"SEQ_LEN_GT_MODEL"}
        assert planned.refused
        finding = planned["SEQ_LEN_GT_MODEL"]
        assert finding.values["max_legal"] == 2048
        assert "8192" in finding.message
        assert "2048" in finding.message

    @pytest.mark.parametrize(
        ("model", "rope", "legal"),
        [
            (TINYLLAMA, {"type": "linear", "factor": 4.0}, 8192),  # 2,048 x 4
            (TINYLLAMA, {"rope_type": "dynamic", "factor": 2.0}, 4096),
            # 40,960 x 4 isn't meant: YaRN's factor stretches the 32,768 that it names.
            (
                "Qwen--Qwen3-8B",
                {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
                131_072,
            ),
            ("meta-llama--Llama-3.1-8B", None, 131_072),  # llama3's factor is in the 131,072 already
        ],
    )
    def test_a23_rope_scaling_of_the_model_counts(
        self, tmp_path: Path, model: str, rope: dict[str, Any] | None, legal: int
    ) -> None:
        config = config_of(model, rope_scaling=rope) if rope else config_of(model)
        sku = {"sku": "h200-sxm-141gb"}
        assert not plan(tmp_path, config, limits={"max_seq_len": legal}, target=sku).refused
        over = plan(tmp_path, config, limits={"max_seq_len": legal + 1}, target=sku)
        assert over["SEQ_LEN_GT_MODEL"].values["max_legal"] == legal

    def test_a23_a_reason_lets_it_pass_and_is_recorded(self, tmp_path: Path) -> None:
        waiver = {"code": "SEQ_LEN_GT_MODEL", "reason": "fine-tuned on sequences of 8192"}
        planned = plan(tmp_path, config_of(self.TINYLLAMA), limits={"max_seq_len": 8192}, waivers=[waiver])
        assert not planned.refused
        assert planned["SEQ_LEN_GT_MODEL"].waived == "fine-tuned on sequences of 8192"

    def test_a23_a_prompt_must_leave_room_for_an_answer(self, tmp_path: Path) -> None:
        config = config_of(self.TINYLLAMA)
        planned = plan(tmp_path, config, limits={"max_seq_len": 2048, "max_input_len": 2048})
        assert planned.refusing == {"INPUT_GT_SEQ_LEN"}
        assert not plan(tmp_path, config, limits={"max_seq_len": 2048, "max_input_len": 1024}).refused

    def test_a23_a_pass_must_hold_a_token_of_every_request(self, tmp_path: Path) -> None:
        config = config_of(self.TINYLLAMA)
        limits = {"max_seq_len": 2048, "max_batch_size": 512, "max_num_tokens": 256}
        assert plan(tmp_path, config, limits=limits).refusing == {"NUM_TOKENS_LT_BATCH"}
        assert not plan(tmp_path, config, limits=limits | {"max_num_tokens": 512}).refused

    def test_a23_the_recipe_reports_its_own_line(self, tmp_path: Path) -> None:
        file = write_case(tmp_path, config_of(self.TINYLLAMA), limits={"max_seq_len": "8192"})
        assert failed(file).code == "RECIPE"
        assert str(file) in failed(file).words
