from pathlib import Path
from typing import Any

import pytest

from builder.errors import SourceError
from builder.model.spec import ModelSpec, load_config

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
    )


# Published parameter counts and KV bytes per token (2-byte values). The counts of Llama 3.1, 3.2, TinyLlama and
# SmolLM2-135M agree to the byte with the sizes of the files on the Hub.
# fmt: off
PUBLISHED = {
    # model              vocab  hidden layers heads kv   hd  inner  tied       parameters      KV
    "SmolLM2-135M":   (49152,    576,  30,   9,  3,  64,  1536, True,      134_515_008,  23_040),
    "SmolLM2-360M":   (49152,    960,  32,  15,  5,  64,  2560, True,      361_821_120,  40_960),
    "SmolLM2-1.7B":   (49152,   2048,  24,  32, 32,  64,  8192, True,    1_711_376_384, 196_608),
    "TinyLlama-1.1B": (32000,   2048,  22,  32,  4,  64,  5632, False,   1_100_048_384,  22_528),
    "Llama-2-7B":     (32000,   4096,  32,  32, 32, 128, 11008, False,   6_738_415_616, 524_288),
    "Llama-2-13B":    (32000,   5120,  40,  40, 40, 128, 13824, False,  13_015_864_320, 819_200),
    "Llama-2-70B":    (32000,   8192,  80,  64,  8, 128, 28672, False,  68_976_648_192, 327_680),
    "Llama-3.1-8B":   (128256,  4096,  32,  32,  8, 128, 14336, False,   8_030_261_248, 131_072),
    "Llama-3.1-70B":  (128256,  8192,  80,  64,  8, 128, 28672, False,  70_553_706_496, 327_680),
    "Llama-3.1-405B": (128256, 16384, 126, 128,  8, 128, 53248, False, 405_853_388_800, 516_096),
    "Llama-3.2-1B":   (128256,  2048,  16,  32,  8,  64,  8192, True,    1_235_814_400,  32_768),
    "Llama-3.2-3B":   (128256,  3072,  28,  24,  8, 128,  8192, True,    3_212_749_824, 114_688),
}
# fmt: on


@pytest.mark.parametrize("model", PUBLISHED)
def test_parameters_and_kv_cache_have_their_published_sizes(model: str) -> None:
    vocab, hidden, layers, heads, key_value_heads, head_dim, inner, tied, parameters, kv_bytes = PUBLISHED[model]
    described = spec(
        vocab_size=vocab,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        intermediate_size=inner,
        tie_word_embeddings=tied,
        bos_token_id=1,
        eos_token_id=2,
    )
    assert described.head_dim == head_dim
    assert described.parameter_count() == parameters
    assert described.kv_bytes_per_token(2, tp=1) == kv_bytes


@pytest.mark.parametrize(
    ("layers", "key_value_heads", "head_dim", "tp", "kv_bytes"),
    [
        pytest.param(32, 8, 128, 2, 65_536, id="Llama-3.1-8B"),
        pytest.param(80, 8, 128, 16, 40_960, id="Llama-3.1-70B-with-each-head-on-two-ranks"),
        pytest.param(126, 8, 128, 8, 64_512, id="Llama-3.1-405B"),
        pytest.param(30, 3, 64, 3, 7_680, id="SmolLM2-135M"),
        pytest.param(22, 4, 64, 8, 5_632, id="TinyLlama-with-each-head-on-two-ranks"),
    ],
)
def test_kv_cache_of_one_rank(layers: int, key_value_heads: int, head_dim: int, tp: int, kv_bytes: int) -> None:
    described = spec(
        num_hidden_layers=layers,
        num_attention_heads=key_value_heads * 4,
        num_key_value_heads=key_value_heads,
        head_dim=head_dim,
    )
    assert described.kv_bytes_per_token(2, tp) == kv_bytes


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


# rotary embedding


@pytest.mark.parametrize(
    ("given", "theta", "scaling"),
    [
        pytest.param({}, 10000.0, None, id="Llama-2-says-nothing"),
        pytest.param({"rope_theta": 100000}, 100000.0, None, id="only-theta"),
        pytest.param({"rope_theta": 1e6, "rope_scaling": None}, 1e6, None, id="scaling-null"),
        pytest.param({"rope_scaling": {"rope_type": "default"}}, 10000.0, None, id="scaling-default"),
        pytest.param(
            {"rope_scaling": {"type": "linear", "factor": 4.0}}, 10000.0, {"type": "linear", "factor": 4.0}, id="linear"
        ),
        pytest.param(
            {"rope_theta": 5e5, "rope_scaling": LLAMA3_ROPE | {"rope_type": "llama3"}}, 5e5, LLAMA3_ROPE, id="llama3"
        ),
        pytest.param({"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}, 1e6, None, id="v5-default"),
        pytest.param(
            {"rope_parameters": {"rope_theta": 5e5, **LLAMA3_ROPE, "partial_rotary_factor": 1.0}},
            5e5,
            LLAMA3_ROPE,
            id="v5-llama3",
        ),
        pytest.param(
            {"rope_theta": 1e6, "rope_parameters": {"rope_theta": 1e6}, "rope_scaling": {"type": "default"}},
            1e6,
            None,
            id="both-forms-agree",
        ),
    ],
)
def test_rope_has_several_spellings(given: dict[str, Any], theta: float, scaling: dict[str, Any] | None) -> None:
    described = ModelSpec.from_config({**config("rope_theta", "rope_scaling"), **given}, "config.json")
    assert (described.rope_theta, described.rope_scaling) == (theta, scaling)


@pytest.mark.parametrize(
    ("scaling", "words"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, "'dynamic'"),
        ({"type": "yarn", "factor": 2.0}, "'yarn'"),
        ({"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}, "'longrope'"),
        ({"type": "linear", "factor": 2.0, "beta_fast": 32}, "beta_fast for the rope type linear"),
        ({"factor": 2.0}, "factor for the rope type default"),
        ({"rope_type": "default", "partial_rotary_factor": 0.25}, "partial_rotary_factor 0.25"),
        ({"full_attention": {"rope_theta": 1e6}}, "full_attention"),
    ],
)
def test_a_rope_that_is_not_known_is_refused(scaling: dict[str, Any], words: str) -> None:
    error = refusal(rope_scaling=scaling)
    assert error.code == "UNSUPPORTED_ROPE"
    assert words in error.message
    assert "linear, llama3" in str(error.why)


def test_a_partial_rope_at_the_top_is_refused() -> None:
    assert refusal(partial_rotary_factor=0.5).code == "UNSUPPORTED_ROPE"


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"rope_scaling": {"type": "linear"}}, "CONFIG_FIELD", "factor is missing"),
        ({"rope_scaling": {"type": 5}}, "CONFIG_FIELD", "type must be text"),
        ({"rope_scaling": {**LLAMA3_ROPE, "factor": "8"}}, "CONFIG_FIELD", "factor must be"),
        ({"rope_scaling": {**LLAMA3_ROPE, "low_freq_factor": 4.0}}, "CONFIG_CONTRADICTION", "low_freq_factor"),
        ({"rope_scaling": {"type": "linear", "rope_type": "llama3"}}, "CONFIG_CONTRADICTION", "linear, llama3"),
        ({"rope_parameters": {"rope_theta": 1e4}}, "CONFIG_CONTRADICTION", "rope_theta"),
        ({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, "CONFIG_CONTRADICTION", "rope_scaling"),
    ],
)
def test_a_rope_that_is_incomplete_or_contradictory_is_refused(changes: dict[str, Any], code: str, words: str) -> None:
    error = refusal(**changes)
    assert error.code == code
    assert words in error.message


# what isn't a plain Llama


@pytest.mark.parametrize(
    "changes",
    [
        {"architectures": ["MistralForCausalLM"], "model_type": "mistral"},
        {"architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl"},
        {"architectures": ["LlamaForCausalLM"], "model_type": "mistral"},
        {"architectures": ["LlamaForCausalLM", "LlamaForSequenceClassification"]},
        {"architectures": []},
        {"auto_map": {"AutoModelForCausalLM": "modeling_mine.MyLlama"}},
    ],
)
def test_other_architectures_are_refused_with_what_is_supported(changes: dict[str, Any]) -> None:
    error = refusal(**changes)
    assert error.code == "UNSUPPORTED_ARCHITECTURE"
    assert "auto_map" in str(error.why) if "auto_map" in changes else "LlamaForCausalLM" in str(error.why)


@pytest.mark.parametrize(
    ("quantization", "method"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "awq"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
        ({"quant_algo": "FP8", "kv_cache_scheme": "FP8", "producer": {"name": "modelopt"}}, "FP8"),
        ({}, "unnamed"),
    ],
)
def test_quantised_weights_are_refused(quantization: dict[str, Any], method: str) -> None:
    error = refusal(quantization_config=quantization)
    assert error.code == "UNSUPPORTED_QUANTIZATION"
    assert method in error.message


def test_an_activation_other_than_silu_is_refused() -> None:
    assert refusal(hidden_act="gelu").code == "UNSUPPORTED_ACTIVATION"


# the file


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"num_hidden_layers": 118, "time_step_limit": [0.0, Infinity]}', "Infinity at time_step_limit[1]"),
        ('{"rope_scaling": {"factor": NaN}}', "NaN at rope_scaling.factor"),
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
