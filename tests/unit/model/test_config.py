import json
from pathlib import Path
from typing import Any

import pytest

from builder.errors import SourceError
from builder.model.config import json_safe, load_config, load_generation_config, load_hf_quant_config
from builder.model.spec import Attention, Layer, ModelSpec, Rope
from tests.unit.model.published import published_config, published_names, published_spec

LLAMA_3_1_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.42.3",
    "use_cache": True,
    "vocab_size": 128256,
}

LLAMA3_ROPE = {
    "type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def config(*without: str, **changes: Any) -> dict[str, Any]:
    changed = {**LLAMA_3_1_8B, **changes}
    return {key: value for key, value in changed.items() if key not in without}


def spec(*without: str, **changes: Any) -> ModelSpec:
    return ModelSpec.from_config(config(*without, **changes), "config.json")


def refusal(*without: str, **changes: Any) -> SourceError:
    with pytest.raises(SourceError) as caught:
        spec(*without, **changes)
    assert "config.json" in str(caught.value.where)
    return caught.value


def test_a_published_config_is_read_wholly() -> None:
    rope = Rope(500000.0, "llama3", {name: value for name, value in LLAMA3_ROPE.items() if name != "type"})
    layer = Layer(Attention(32, 8, 128, rope=rope), intermediate_size=14336)
    assert spec() == ModelSpec(
        architecture="LlamaForCausalLM",
        num_hidden_layers=32,
        hidden_size=4096,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size=14336,
        vocab_size=128256,
        max_position_embeddings=131072,
        rms_norm_eps=1e-5,
        hidden_act="silu",
        rope_theta=500000.0,
        rope_scaling=LLAMA3_ROPE,
        tie_word_embeddings=False,
        attention_bias=False,
        mlp_bias=False,
        dtype="bfloat16",
        bos_token_id=128000,
        eos_token_ids=(128001, 128008, 128009),
        pad_token_id=None,
        model_type="llama",
        layers=(layer,) * 32,
        transformers_version="4.42.3",
    )


# heads


@pytest.mark.parametrize("given", [{}, {"num_key_value_heads": None}])
def test_without_key_value_heads_every_head_has_its_own(given: dict[str, None]) -> None:
    described = ModelSpec.from_config({**config("num_key_value_heads"), **given}, "config.json")
    assert described.num_key_value_heads == 32


def test_a_head_dim_that_is_given_wins_over_hidden_size_by_heads() -> None:
    assert spec(head_dim=64).head_dim == 64
    assert spec(head_dim=None).head_dim == 128
    assert spec(hidden_size=4100, head_dim=128).head_dim == 128


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_key_value_heads": 5}, "not a multiple of num_key_value_heads 5"),
        ({"num_key_value_heads": 64}, "not a multiple of num_key_value_heads 64"),
        ({"hidden_size": 4100}, "head_dim is not given"),
        ({"head_dim": 63}, "head_dim 63 is odd"),
        ({"dtype": "float16"}, "dtype float16 and torch_dtype bfloat16 differ"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(changes: dict[str, Any], words: str) -> None:
    error = refusal(**changes)
    assert error.code == "CONFIG_CONTRADICTION"
    assert words in error.message


# fields


@pytest.mark.parametrize(
    "name",
    [
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "vocab_size",
        "max_position_embeddings",
        "rms_norm_eps",
        "hidden_act",
        "torch_dtype",
        "architectures",
    ],
)
def test_a_missing_field_is_named_with_its_file(name: str) -> None:
    error = refusal(name)
    assert (error.code, error.message, error.where) == ("CONFIG_FIELD", f"{name} is missing", "config.json")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hidden_size", "4096"),
        ("hidden_size", 4096.0),
        ("hidden_size", True),
        ("num_hidden_layers", 0),
        ("num_key_value_heads", -1),
        ("rms_norm_eps", 0),
        ("rope_theta", "1e4"),
        ("tie_word_embeddings", "yes"),
        ("attention_bias", 1),
        ("torch_dtype", "float8_e4m3fn"),
        ("torch_dtype", ["bfloat16"]),
        ("rope_scaling", "linear"),
        ("architectures", "LlamaForCausalLM"),
        ("eos_token_id", "</s>"),
        ("eos_token_id", [128001, None]),
        ("eos_token_id", 128256),
        ("bos_token_id", [1]),
        ("pad_token_id", 128256),
    ],
)
def test_a_field_of_the_wrong_kind_is_refused(name: str, value: Any) -> None:
    error = refusal(**{name: value})
    assert error.code == "CONFIG_FIELD"
    assert name in error.message
    assert repr(value) in error.message


def test_switches_that_are_not_given_are_off() -> None:
    described = spec("tie_word_embeddings", "attention_bias", "mlp_bias")
    assert (described.tie_word_embeddings, described.attention_bias, described.mlp_bias) == (False, False, False)
    described = spec(tie_word_embeddings=True, attention_bias=True, mlp_bias=True)
    assert (described.tie_word_embeddings, described.attention_bias, described.mlp_bias) == (True, True, True)


def test_the_dtype_has_two_spellings() -> None:
    assert spec("torch_dtype", dtype="float16").dtype == "float16"
    assert spec(torch_dtype="float32").dtype == "float32"
    assert spec(dtype="bfloat16").stored_dtype == "BF16"


@pytest.mark.parametrize(("value", "tokens"), [(2, (2,)), ([1, 2], (1, 2)), (None, ()), ([], ()), (-1, ())], ids=repr)
def test_end_tokens_are_one_or_several_or_none(value: Any, tokens: tuple[int, ...]) -> None:
    assert spec(eos_token_id=value).eos_token_ids == tokens


def test_end_tokens_of_the_generation_config_count_as_well() -> None:
    read = ModelSpec.from_config(config(eos_token_id=1), "config.json", {"eos_token_id": [3, 1]})
    assert read.eos_token_ids == (1, 3)
    with pytest.raises(SourceError, match="eos_token_id"):
        ModelSpec.from_config(config(eos_token_id=1), "config.json", {"eos_token_id": "</s>"})


def test_the_first_llama_configs_have_no_pad_token() -> None:
    assert spec(pad_token_id=-1).pad_token_id is None
    assert spec(pad_token_id=0).pad_token_id == 0


# what isn't known


@pytest.mark.parametrize(
    "changes",
    [
        {"architectures": ["NewForCausalLM"], "model_type": "new"},
        {"architectures": ["NewForCausalLM"], "model_type": None},
        {"architectures": ["LlamaForCausalLM"], "model_type": "new"},
        {"architectures": ["LlamaForCausalLM"], "model_type": "mistral"},
        {"architectures": ["LlamaForSequenceClassification"]},
        {"architectures": ["LlamaForCausalLM", "LlamaForSequenceClassification"]},
        {"architectures": []},
    ],
)
def test_an_architecture_that_is_not_known_is_refused_with_its_name(changes: dict[str, Any]) -> None:
    error = refusal(**changes)
    assert error.code == "UNSUPPORTED_ARCHITECTURE"
    assert all(name in error.message for name in changes["architectures"])
    assert "known" in str(error.why)


def test_a_model_type_of_the_wrong_kind_is_refused() -> None:
    assert refusal(model_type=["llama"]).code == "CONFIG_FIELD"


def test_the_architecture_alone_is_enough() -> None:
    assert spec("model_type").model_type == "llama"


def test_deepseek_v4_is_not_taken_for_an_older_one() -> None:
    with pytest.raises(SourceError) as caught:
        published_spec("deepseek-ai--DeepSeek-V4-Flash")
    assert caught.value.code == "UNSUPPORTED_ARCHITECTURE"
    assert "deepseek_v4" in caught.value.message


def test_custom_code_is_recorded_not_run() -> None:
    assert spec(auto_map={"AutoModelForCausalLM": "modeling_mine.MyLlama"}).custom_code
    assert not spec().custom_code


def test_an_unknown_activation_is_refused() -> None:
    assert refusal(hidden_act="xielu").code == "UNSUPPORTED_ACTIVATION"


def test_a_key_that_changes_the_structure_is_refused_where_it_is_not_understood() -> None:
    config = published_config("google--gemma-4-26B-A4B")
    config["text_config"] = {**config["text_config"], "hidden_size_per_layer_input": 256}
    with pytest.raises(SourceError, match="hidden_size_per_layer_input 256 is not supported for the model_type gemma4"):
        ModelSpec.from_config(config, "config.json")


# the file


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"hidden_size": 1, "hidden_size": 2}', "hidden_size is given twice"),
        ('{"hidden_size": 1,}', "line 1 column 19"),
    ],
)
def test_config_json_is_read_strictly(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(SourceError) as caught:
        load_config(tmp_path)
    assert (caught.value.code, caught.value.where) == ("CONFIG_JSON", str(tmp_path / "config.json"))
    assert words in str(caught.value.why)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (None, "CONFIG_MISSING"),
        ("[]", "CONFIG_JSON"),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 826\n", "LFS_POINTER"),
    ],
)
def test_a_config_that_is_not_there_is_told_apart(tmp_path: Path, text: str | None, code: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(SourceError) as caught:
        load_config(tmp_path)
    assert caught.value.code == code


def test_infinity_is_read_and_never_written_again(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"num_hidden_layers": 118, "time_step_limit": [0.0, Infinity, -Infinity, NaN]}'
    )
    read = load_config(tmp_path)
    assert read == {"num_hidden_layers": 118, "time_step_limit": [0.0, "Infinity", "-Infinity", "NaN"]}
    assert json.loads(json.dumps(read, allow_nan=False)) == read


def test_a_config_from_elsewhere_can_be_made_json_safe() -> None:
    config = published_config("nvidia--Nemotron-H-56B-Base-8K")
    assert config["time_step_limit"] == [0.0, float("inf")]
    safe = json_safe(config)
    assert safe["time_step_limit"] == [0.0, "Infinity"]
    assert ModelSpec.from_config(safe, "") is ModelSpec.from_config(config, "")
    assert json_safe({"a": (float("nan"), -float("inf"))}) == {"a": ["NaN", "-Infinity"]}


def test_a_number_that_is_needed_must_be_finite(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config(rms_norm_eps=float("nan"))))
    with pytest.raises(SourceError, match="rms_norm_eps must be a number above 0, not 'NaN'"):
        ModelSpec.from_config(load_config(tmp_path), "config.json")


def test_the_other_configs_may_be_absent(tmp_path: Path) -> None:
    assert load_generation_config(tmp_path) == {}
    assert load_hf_quant_config(tmp_path) is None
    (tmp_path / "hf_quant_config.json").write_text('{"quantization": {}}')
    assert load_hf_quant_config(tmp_path) == {"quantization": {}}


@pytest.mark.parametrize("name", sorted(set(published_names()) - {"deepseek-ai--DeepSeek-V4-Flash"}))
def test_every_published_config_is_read(name: str) -> None:
    described = published_spec(name, stored_dtype="F32")
    config = published_config(name)
    assert [described.architecture] == config["architectures"]
    assert described.model_type == config["model_type"]
    assert len(described.layers) == described.num_hidden_layers


# nested configs


def test_the_language_model_of_a_multimodal_one_is_read_from_text_config() -> None:
    described = published_spec("Qwen--Qwen3-VL-2B-Instruct")
    assert (described.vocab_size, described.dtype, described.rope_theta) == (151936, "bfloat16", 5e6)
    assert described.tie_word_embeddings
    assert described.towers == ("vision_config",)
    assert described.kv_bytes_per_token(2, tp=1) == 114_688


def test_all_missing_keys_of_a_nested_config_are_listed() -> None:
    config = published_config("Qwen--Qwen3-VL-2B-Instruct")
    text = {
        key: value for key, value in config["text_config"].items() if key not in ("vocab_size", "intermediate_size")
    }
    with pytest.raises(SourceError) as caught:
        ModelSpec.from_config({**config, "text_config": text}, "config.json")
    assert caught.value.message == "intermediate_size, vocab_size are missing"
    assert caught.value.where == "config.json: text_config"


def test_class_defaults_fill_what_gemma_3_leaves_out_and_are_named() -> None:
    described = published_spec("google--gemma-3-4b-it")
    attention = described.layers[5].attention
    assert attention is not None
    assert (attention.heads, attention.kv_heads, attention.head_dim, described.vocab_size) == (8, 4, 256, 262_208)
    assert {"num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size"} <= set(described.assumed)
    assert published_spec("google--gemma-3-1b-it").assumed == {}


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"text_config": None}, "CONFIG_FIELD", "text_config must be an object"),
        ({"text_config": 5}, "CONFIG_FIELD", "text_config must be an object"),
        ({"text_config": {"model_type": "llama"}}, "CONFIG_CONTRADICTION", "qwen3_vl goes with qwen3_vl_text"),
        ({"tie_word_embeddings": False}, "CONFIG_CONTRADICTION", "tie_word_embeddings differs"),
        ({"torch_dtype": "float16"}, "CONFIG_CONTRADICTION", "differ"),
    ],
)
def test_a_nested_config_that_does_not_fit_is_refused(changes: dict[str, Any], code: str, words: str) -> None:
    with pytest.raises(SourceError) as caught:
        ModelSpec.from_config({**published_config("Qwen--Qwen3-VL-2B-Instruct"), **changes}, "config.json")
    assert caught.value.code == code
    assert words in caught.value.message


# dtype


@pytest.mark.parametrize("model", ["openai--gpt-oss-20b", "Qwen--Qwen3-VL-2B-Instruct", "google--gemma-4-26B-A4B"])
def test_the_dtype_is_found_wherever_it_is(model: str) -> None:
    assert published_spec(model).dtype == "bfloat16"


def test_without_any_dtype_the_stored_one_counts_and_float32_is_never_assumed() -> None:
    assert ModelSpec.from_config(config("torch_dtype"), "", stored_dtype="BF16").dtype == "bfloat16"
    assert ModelSpec.from_config(config("torch_dtype"), "", stored_dtype="F16").dtype == "float16"
    for stored in (None, "I32", "F8_E4M3"):
        with pytest.raises(SourceError, match="torch_dtype is missing"):
            ModelSpec.from_config(config("torch_dtype"), "config.json", stored_dtype=stored)
    assert ModelSpec.from_config(config(), "", stored_dtype="F32").dtype == "bfloat16"


def test_a_default_of_the_class_that_stands_for_a_number_is_named() -> None:
    assert spec().assumed == {}
    assert spec("rope_theta", "rope_scaling").assumed == {"rope_theta": 10000.0}
