"""Public reports on config.json: rotary embeddings, dtypes and shapes that other readers dropped or guessed.

Further reports of class C are in the files beside this one: on other fields, on weight files, on quantised weights.
"""

from pathlib import Path
from typing import Any

import pytest

from builder.checkpoint.config import checkpoint_config
from builder.model.layout import RankTensor, Split, rank_tensors
from builder.model.spec import ModelSpec, Rope
from builder.model.weights import parameter_count, stored_bytes, weights
from tests.cases.specs import refusal, spec_of
from tests.cases.support import config_of, failure, plan, unit_of, write_case
from tests.cases.weight_files import write_tensors

LLAMA_8B = "meta-llama--Llama-3.1-8B"
LLAMA_3B = "meta-llama--Llama-3.2-3B"
LLAMA_7B = "meta-llama--Llama-2-7b-hf"
QWEN3_8B = "Qwen--Qwen3-8B"
VL_2B = "Qwen--Qwen3-VL-2B-Instruct"
GEMMA4 = "google--gemma-4-26B-A4B"


def ropes(spec: ModelSpec) -> dict[bool, Rope | None]:
    """The ropes of layers with (True) and without a window."""
    return {part.window is not None: part.rope for layer in spec.layers if (part := layer.attention) is not None}


def shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Those of the tensors, by the last part of their names."""
    return {weight.name.removesuffix(".weight").rpartition(".")[2]: weight.shape for weight in weights(spec)}


def qkv_rows(spec: ModelSpec) -> int:
    return sum(shapes(spec)[name][0] for name in ("q_proj", "k_proj", "v_proj"))


def rank(spec: ModelSpec, tp: int, number: int = 0) -> dict[str, RankTensor]:
    return {tensor.name: tensor for tensor in rank_tensors(spec, Split(tp), number)}


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}

PER_LAYER_TYPE = {
    "full_attention": {"rope_theta": 1000000.0, "rope_type": "proportional", "partial_rotary_factor": 0.25},
    "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
}

SPLIT_BY_SIX = {"hidden_size": 6144, "intermediate_size": 49152, "num_attention_heads": 48, "num_key_value_heads": 48}
"""Laid over Llama-2-13b, so that 6 ranks get 8 heads and 8192 columns each."""


class TestC01:
    """The first Llama-3.1 files spell the kind of rope `rope_type`; converters looked for `type`, and people deleted
    the section, which gave models that are wrong beyond 8192 tokens.

    https://github.com/NVIDIA/TensorRT-LLM/issues/2052, https://github.com/NVIDIA/TensorRT-LLM/issues/2105
    """

    @pytest.mark.parametrize("key", ["rope_type", "type"])
    def test_c01_both_spellings_carry_all_numbers_into_the_checkpoint(self, key: str) -> None:
        spec = spec_of(
            LLAMA_8B,
            model_type="llama",
            rope_theta=500000.0,
            rope_scaling={**LLAMA3, key: "llama3"},
            max_position_embeddings=131072,
        )
        assert ropes(spec) == {False: Rope(500000.0, "llama3", LLAMA3)}
        config = checkpoint_config(spec, Split())
        assert config["rotary_scaling"] == {"type": "llama3", **LLAMA3}
        assert (config["rotary_base"], config["max_position_embeddings"]) == (500000.0, 131072)

    def test_c01_another_llama_keeps_its_own_factor(self) -> None:
        """Llama-3.2 stretches by 32, as its published config.json says; both spellings together may agree."""
        scaling = LLAMA3 | {"factor": 32.0}
        assert ropes(spec_of(LLAMA_3B)) == {False: Rope(500000.0, "llama3", scaling)}
        both = scaling | {"type": "llama3", "rope_type": "llama3"}
        assert ropes(spec_of(LLAMA_3B, rope_scaling=both)) == {False: Rope(500000.0, "llama3", scaling)}

    def test_c01_an_unknown_type_is_refused_by_its_name(self, tmp_path: Path) -> None:
        error = failure(tmp_path, config_of(LLAMA_8B, rope_scaling=LLAMA3 | {"rope_type": "llama5"}))
        assert (error.exit_code, error.code) == (4, "UNSUPPORTED_ROPE")
        assert "llama5" in error.words

    @pytest.mark.parametrize("name", LLAMA3)
    def test_c01_a_missing_number_is_refused_by_its_name(self, name: str) -> None:
        scaling: dict[str, Any] = {key: value for key, value in LLAMA3.items() if key != name}
        error = refusal(LLAMA_8B, rope_scaling=scaling | {"rope_type": "llama3"})
        assert error.code == "CONFIG_FIELD"
        assert name in error.message

    def test_c01_spellings_that_differ_are_refused(self) -> None:
        error = refusal(LLAMA_8B, rope_scaling=LLAMA3 | {"rope_type": "llama3", "type": "dynamic"})
        assert error.code == "CONFIG_CONTRADICTION"


class TestC02:
    """deepseek-coder's linear rope scaling was ignored, and the engine repeated itself without end.

    https://github.com/NVIDIA/TensorRT-LLM/issues/1385, https://github.com/NVIDIA/TensorRT-LLM/issues/1595
    """

    def test_c02_linear_scaling_reaches_the_checkpoint(self) -> None:
        published = spec_of("deepseek-ai--deepseek-coder-6.7b-instruct")
        laid_over = spec_of(LLAMA_7B, rope_scaling={"type": "linear", "factor": 4.0})
        assert ropes(published) == {False: Rope(100000.0, "linear", {"factor": 4.0})}
        for spec in (published, laid_over):
            assert checkpoint_config(spec, Split())["rotary_scaling"] == {"type": "linear", "factor": 4.0}

    @pytest.mark.parametrize(
        ("scaling", "numbers"),
        [
            ({"rope_type": "linear", "factor": 2}, {"factor": 2.0}),
            ({"type": "dynamic", "factor": 2.5}, {"factor": 2.5}),
            (
                {"type": "yarn", "factor": 16.0, "original_max_position_embeddings": 4096},
                {"factor": 16.0, "original_max_position_embeddings": 4096},
            ),
        ],
    )
    def test_c02_no_other_scaling_is_lost(self, scaling: dict[str, Any], numbers: dict[str, Any]) -> None:
        kind = scaling.get("type") or scaling["rope_type"]
        spec = spec_of("deepseek-ai--deepseek-coder-6.7b-instruct", rope_scaling=scaling)
        assert ropes(spec) == {False: Rope(100000.0, kind, numbers)}
        assert spec.rope_scaling == {"type": kind, **numbers}

    def test_c02_a_scaling_without_its_factor_is_refused(self, tmp_path: Path) -> None:
        error = failure(tmp_path, config_of(LLAMA_7B, rope_scaling={"type": "linear"}))
        assert (error.exit_code, error.code) == (4, "CONFIG_FIELD")
        assert "factor" in error.words


class TestC06:
    """transformers 5 keeps rope_theta inside `rope_parameters`, for some models once per type of layer; readers that
    knew the old place took 10000 in place of a million.

    https://github.com/vllm-project/vllm/issues/28542, https://github.com/sgl-project/sglang/issues/14745
    """

    def test_c06_one_rope_for_each_type_of_layer(self) -> None:
        config = config_of(GEMMA4)["text_config"] | {
            "architectures": ["Gemma4ForCausalLM"],
            "model_type": "gemma4_text",
            "rope_parameters": PER_LAYER_TYPE,
            "head_dim": 256,
            "global_head_dim": 512,
        }
        spec = ModelSpec.from_config(config, "config.json")
        assert ropes(spec) == {
            False: Rope(1000000.0, "proportional", partial_factor=0.25),
            True: Rope(10000.0, "default"),
        }
        heads = {part.window: part.head_dim for layer in spec.layers if (part := layer.attention) is not None}
        assert heads == {None: 512, 1024: 256}

    def test_c06_the_whole_model_says_the_same(self) -> None:
        assert {window: rope and rope.theta for window, rope in ropes(spec_of(GEMMA4)).items()} == {
            False: 1000000.0,
            True: 10000.0,
        }

    def test_c06_the_flat_form(self) -> None:
        flat = {"rope_type": "default", "rope_theta": 1000000.0}
        spec = spec_of(QWEN3_8B, "rope_theta", "rope_scaling", rope_parameters=flat)
        assert ropes(spec) == {False: Rope(1000000.0, "default")}
        assert spec.rope_theta == 1000000.0

    def test_c06_the_flat_form_of_a_scaled_rope(self) -> None:
        flat = LLAMA3 | {"rope_type": "llama3", "rope_theta": 500000.0}
        spec = spec_of(LLAMA_8B, "rope_theta", "rope_scaling", rope_parameters=flat)
        assert spec == spec_of(LLAMA_8B)

    def test_c06_a_theta_that_nobody_gives_is_the_default_of_its_class_and_said(self, tmp_path: Path) -> None:
        """LlamaConfig of transformers: rope_theta = 10000; Llama-2's files leave it out."""
        planned = plan(tmp_path, config_of(LLAMA_7B), precision={"weights": "fp16"})
        assert spec_of(LLAMA_7B).rope_theta == 10000.0
        found = planned["CLASS_DEFAULT"]
        assert found.severity == "warn"
        assert found.values["defaults"] == {"rope_theta": 10000.0}
        assert "rope_theta 10000" in found.message

    def test_c06_nothing_is_said_where_all_is_given(self, tmp_path: Path) -> None:
        assert "CLASS_DEFAULT" not in plan(tmp_path, config_of(LLAMA_8B)).codes

    @pytest.mark.parametrize(
        ("changes", "code", "word"),
        [
            ({"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}, "CONFIG_CONTRADICTION", "rope_theta"),
            ({"rope_parameters": {"rope_theta": 5e5, "rope_type": "spiral"}}, "UNSUPPORTED_ROPE", "spiral"),
            ({"rope_parameters": {"sliding_attention": {"rope_theta": 1e4}}}, "CONFIG_FIELD", "full_attention"),
        ],
    )
    def test_c06_forms_that_disagree_or_lack_a_layer_type_are_refused(
        self, changes: dict[str, Any], code: str, word: str
    ) -> None:
        error = refusal(LLAMA_8B, "rope_scaling", **changes)
        assert error.code == code
        assert word in error.message


class TestC07:
    """New files write `dtype`, old ones `torch_dtype`, multimodal ones write it in text_config, and gpt-oss not at all.

    https://github.com/unslothai/unsloth/issues/3352, https://github.com/ml-explore/mlx-lm/issues/117
    """

    @pytest.mark.parametrize(
        ("name", "changes"),
        [
            pytest.param(LLAMA_8B, {"dtype": "bfloat16"}, id="dtype"),
            pytest.param(LLAMA_8B, {"torch_dtype": "bfloat16"}, id="torch_dtype"),
            pytest.param(VL_2B, {}, id="text_config"),
            pytest.param("openai--gpt-oss-20b", {}, id="neither-but-mxfp4"),
        ],
    )
    def test_c07_bfloat16_is_found_in_every_place(self, name: str, changes: dict[str, Any]) -> None:
        assert spec_of(name, *({"dtype", "torch_dtype"} - changes.keys()), **changes).dtype == "bfloat16"

    @pytest.mark.parametrize(
        ("stored", "dtype"), [("BF16", "bfloat16"), ("F16", "float16"), ("F32", "float32")], ids=str
    )
    def test_c07_else_what_most_of_the_weights_have(self, tmp_path: Path, stored: str, dtype: str) -> None:
        """A table of 32000 x 16 numbers, beside a norm of 16 in float32."""
        config = config_of(LLAMA_7B)
        del config["torch_dtype"]
        write_case(tmp_path, config)
        tensors = {"model.embed_tokens.weight": (stored, (32000, 16)), "model.norm.weight": ("F32", (16,))}
        write_tensors(tmp_path / "model" / "model.safetensors", tensors)
        assert unit_of(tmp_path, config).spec.dtype == dtype

    def test_c07_quantised_tensors_have_no_vote(self, tmp_path: Path) -> None:
        """Three quarters of the bytes are packed experts (U8); what isn't quantised is BF16."""
        config = config_of("openai--gpt-oss-20b")
        write_case(tmp_path, config)
        tensors = {
            "model.embed_tokens.weight": ("BF16", (201088, 64)),
            "model.layers.0.mlp.experts.gate_up_proj_blocks": ("U8", (4, 201088, 6, 16)),
        }
        write_tensors(tmp_path / "model" / "model.safetensors", tensors)
        unit = unit_of(tmp_path, config, flow="pytorch", precision={"weights": "as-published"})
        assert unit.spec.dtype == "bfloat16"

    def test_c07_without_any_word_of_it_nothing_is_guessed(self, tmp_path: Path) -> None:
        config = config_of(LLAMA_7B)
        del config["torch_dtype"]
        error = failure(tmp_path, config)
        assert (error.exit_code, error.code) == (4, "CONFIG_FIELD")
        assert "torch_dtype is missing" in error.words

    def test_c07_places_that_disagree_are_refused(self) -> None:
        assert refusal(LLAMA_8B, dtype="float16", torch_dtype="bfloat16").code == "CONFIG_CONTRADICTION"


class TestC08:
    """Qwen3-32B has heads of 128, not 5120 / 64 = 80: a converter expected 6400 rows of the 10240 that there are.

    https://github.com/NVIDIA/TensorRT-LLM/issues/5912
    """

    def test_c08_an_explicit_head_dim_shapes_queries_keys_and_output(self) -> None:
        spec = spec_of("Qwen--Qwen3-32B")
        assert qkv_rows(spec) == 10240
        assert (shapes(spec)["q_proj"][1], shapes(spec)["o_proj"]) == (5120, (5120, 8192))

    def test_c08_the_same_numbers_split_in_two(self) -> None:
        spec = spec_of(
            LLAMA_8B,
            hidden_size=5120,
            num_attention_heads=64,
            num_key_value_heads=8,
            head_dim=128,
            num_hidden_layers=64,
        )
        whole, half = rank(spec, 1), rank(spec, 2)
        assert whole["transformer.layers.0.attention.qkv.weight"].shape == (10240, 5120)
        assert whole["transformer.layers.0.attention.dense.weight"].shape == (5120, 8192)
        assert half["transformer.layers.63.attention.qkv.weight"].shape == (5120, 5120)
        assert half["transformer.layers.63.attention.dense.weight"].shape == (5120, 4096)

    def test_c08_without_the_key_heads_share_the_hidden_size(self) -> None:
        """Llama-3.1-8B: 4096 / 32 = 128; 32 + 2 · 8 heads of 128 are 6144 rows."""
        assert qkv_rows(spec_of(LLAMA_8B)) == 6144
        error = refusal(LLAMA_8B, num_attention_heads=24, num_key_value_heads=8)  # 4096 / 24 = 170.67
        assert error.code == "CONFIG_CONTRADICTION"
        assert "head_dim" in error.message


def test_c10_head_dim_larger_than_its_share() -> None:
    """Qwen3-0.6B: 16 heads of 128 over a hidden size of 1024; the share would be 64, and half of the rows.

    Neighbour: Mistral-Nemo's 32 heads of 128 over 5120 (share 160): 32 + 2 · 8 heads of 128 are 6144 rows, not 7680.
    https://github.com/NVIDIA/TensorRT-LLM/issues/6182
    """
    spec = spec_of("Qwen--Qwen3-0.6B")
    assert (qkv_rows(spec), shapes(spec)["q_proj"][1]) == (4096, 1024)
    assert shapes(spec)["o_proj"] == (1024, 2048)
    assert parameter_count(spec) == 596049920
    assert qkv_rows(spec_of("mistralai--Mistral-Nemo-Base-2407")) == 6144


class TestC11:
    """Tied models whose files have no lm_head.weight: KeyError in a whole family of converters.

    https://github.com/NVIDIA/TensorRT-LLM/issues/2677, https://github.com/NVIDIA/TensorRT-LLM/issues/1733
    """

    def test_c11_the_head_is_the_embedding_once_to_download_and_twice_in_the_engine(self, tmp_path: Path) -> None:
        spec = spec_of(LLAMA_3B)
        assert parameter_count(spec) == 3212749824
        assert "lm_head" not in shapes(spec)
        (source,) = rank(spec, 1)["lm_head.weight"].slices
        assert (source.source, source.shape) == ("model.embed_tokens.weight", (128256, 3072))
        sizes = plan(tmp_path, config_of(LLAMA_3B)).unit["sizes"]
        assert sizes["checkpoint_bytes"] - sizes["download_bytes"] == 788004864
        assert stored_bytes(spec) == sizes["download_bytes"] == 2 * 3212749824

    def test_c11_another_tied_model(self, tmp_path: Path) -> None:
        """Llama-3.2-1B: 128256 · 2048 · 2 bytes are 525,336,576; an untied one has nothing extra."""
        sizes = plan(tmp_path, config_of("meta-llama--Llama-3.2-1B")).unit["sizes"]
        assert sizes["checkpoint_bytes"] - sizes["download_bytes"] == 525336576
        sizes = plan(tmp_path / "untied", config_of(LLAMA_8B)).unit["sizes"]
        assert sizes["checkpoint_bytes"] == sizes["download_bytes"] == 2 * 8030261248


class TestC13:
    """Vocabularies of 32001 and 151851 couldn't be split in two.

    https://github.com/NVIDIA/TensorRT-LLM/issues/98, https://github.com/NVIDIA/TensorRT-LLM/issues/374
    """

    @pytest.mark.parametrize(
        ("vocab", "tp", "padded", "rows"),
        [
            (32001, 2, 32002, 16001),
            (151851, 2, 151852, 75926),
            (151552, 6, 151554, 25259),
            (50257, 4, 50260, 12565),  # GPT-2's: 4 · 12565 = 50260
            (32000, 2, 32000, 16000),
        ],
    )
    def test_c13_the_head_is_filled_up_and_the_embedding_is_whole(
        self, tmp_path: Path, vocab: int, tp: int, padded: int, rows: int
    ) -> None:
        config = config_of("meta-llama--Llama-2-13b-hf", vocab_size=vocab, **SPLIT_BY_SIX)
        spec = ModelSpec.from_config(config, "config.json")
        heads = [rank(spec, tp, number)["lm_head.weight"] for number in range(tp)]
        assert [head.shape for head in heads] == [(rows, 6144)] * tp
        assert sum(head.padding_rows for head in heads) == padded - vocab
        assert rank(spec, tp)["transformer.vocab_embedding.weight"].shape == (vocab, 6144)
        planned = plan(tmp_path, config, precision={"weights": "fp16"}, parallelism={"tensor": tp}, target={"gpus": 8})
        assert not planned.refused
        if padded == vocab:
            assert "VOCAB_PADDED" not in planned.codes
        else:
            assert planned["VOCAB_PADDED"].values == {"padded": padded, "rows_per_rank": rows}
