"""Parameters and bytes against what is published: sizes in the indexes and files on the Hub, and on model cards."""

import math

import pytest

from builder.model.spec import ModelSpec
from builder.model.weights import Weight, next_token_weights, parameter_count, stored_bytes, weights
from tests.unit.model.published import published_config, published_spec

# parameters · 2 bytes is the total_size of model.safetensors.index.json, or that of the tensors in the only file.
PUBLISHED = {
    "meta-llama--Llama-3.1-8B": 8_030_261_248,
    "meta-llama--Llama-3.1-70B": 70_553_706_496,
    "meta-llama--Llama-3.1-405B": 405_853_388_800,
    "meta-llama--Llama-3.2-1B": 1_235_814_400,
    "meta-llama--Llama-3.2-3B": 3_212_749_824,
    "mistralai--Mistral-7B-v0.1": 7_241_732_096,
    "mistralai--Mistral-7B-v0.3": 7_248_023_552,
    "mistralai--Mistral-Nemo-Base-2407": 12_247_782_400,
    "mistralai--Mixtral-8x7B-v0.1": 46_702_792_704,
    "mistralai--Mixtral-8x22B-v0.1": 140_620_634_112,
    "Qwen--Qwen2.5-0.5B": 494_032_768,
    "Qwen--Qwen2.5-3B": 3_085_938_688,
    "Qwen--Qwen2.5-7B": 7_615_616_512,
    "Qwen--Qwen2.5-72B": 72_706_203_648,
    "Qwen--Qwen3-8B": 8_190_735_360,
    "Qwen--Qwen3-14B": 14_768_307_200,
    "Qwen--Qwen3-32B": 32_762_123_264,
    "Qwen--Qwen3-30B-A3B": 30_532_122_624,
    "Qwen--Qwen3-235B-A22B": 235_093_634_560,
    "google--gemma-3-1b-it": 999_885_952,
    "microsoft--Phi-3-mini-4k-instruct": 3_821_079_552,
    "microsoft--phi-4": 14_659_507_200,
    "microsoft--Phi-4-mini-instruct": 3_836_021_760,
    "TinyLlama--TinyLlama-1.1B-Chat-v1.0": 1_100_048_384,
    "HuggingFaceTB--SmolLM2-135M": 134_515_008,
    "deepseek-ai--DeepSeek-V2-Lite": 15_706_484_224,
}

# Computed from the published shapes; no copy of a published size was found.
COMPUTED = {
    "Qwen--Qwen2.5-1.5B": 1_543_714_304,
    "Qwen--Qwen3-4B": 4_022_468_096,
    "google--gemma-7b": 8_537_680_896,
    "google--gemma-2-9b-it": 9_241_705_984,
    "HuggingFaceTB--SmolLM2-360M": 361_821_120,
    "HuggingFaceTB--SmolLM2-1.7B": 1_711_376_384,
    "meta-llama--Llama-2-7b-hf": 6_738_415_616,
    "meta-llama--Llama-2-13b-hf": 13_015_864_320,
    "meta-llama--Llama-2-70b-hf": 68_976_648_192,
}

# What transformers 5.24.0 counts in its own model of the same config, without towers for pictures and sound.
TRANSFORMERS = {
    "Qwen--Qwen2-57B-A14B": 57_408_658_944,
    "Qwen--Qwen3-VL-2B-Instruct": 1_720_574_976,
    "Qwen--Qwen3.5-35B-A3B": 34_660_610_688,
    "google--gemma-3-4b-it": 3_880_263_168,
    "google--gemma-3-27b-it": 27_009_346_304,
    "google--gemma-4-26B-A4B": 25_233_141_790,
    "meta-llama--Llama-4-Scout-17B-16E-Instruct": 107_769_861_120,
    "meta-llama--Llama-4-Maverick-17B-128E-Instruct": 400_711_848_960,
    "mistralai--Ministral-8B-Instruct-2410": 8_019_808_256,
    "nvidia--Nemotron-H-56B-Base-8K": 56_324_350_464,
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": 31_577_940_288,
    "deepseek-ai--DeepSeek-V3.2": 671_877_944_064,
}


@pytest.mark.parametrize(("model", "parameters"), {**PUBLISHED, **COMPUTED}.items())
def test_sizes_are_the_published_ones_to_the_byte(model: str, parameters: int) -> None:
    described = published_spec(model)
    assert parameter_count(described) == parameters
    assert stored_bytes(described) == 2 * parameters


@pytest.mark.parametrize(("model", "parameters"), TRANSFORMERS.items())
def test_parameters_are_those_that_transformers_counts(model: str, parameters: int) -> None:
    assert parameter_count(published_spec(model)) == parameters


def test_gpt2_medium_has_its_published_size() -> None:
    """355 M on its card; positions are parameters here."""
    described = published_spec("openai-community--gpt2-medium", stored_dtype="F32")
    assert parameter_count(described) == 354_823_168
    assert stored_bytes(described) == 4 * 354_823_168


def test_a_searched_architecture_has_the_size_on_its_card() -> None:
    """49.9 B; 31 of its 80 layers have no attention, and MLPs have six widths."""
    described = published_spec("nvidia--Llama-3_3-Nemotron-Super-49B-v1")
    assert parameter_count(described) == 49_867_145_216
    assert sum(layer.attention is None for layer in described.layers) == 31
    assert sorted({layer.intermediate_size for layer in described.layers if layer.intermediate_size}) == [
        2816,
        5632,
        7168,
        14336,
        17920,
        28672,
    ]


@pytest.mark.parametrize(
    ("model", "unique", "total", "tensors"),
    [
        ("Qwen--Qwen3-0.6B", 1_192_099_840, 1_503_264_768, 311),
        ("Qwen--Qwen3-1.7B", 3_441_149_952, 4_063_479_808, 311),
    ],
)
def test_a_tied_head_that_is_stored_adds_to_the_download_only(
    model: str, unique: int, total: int, tensors: int
) -> None:
    described = published_spec(model)
    assert stored_bytes(described) == stored_bytes(described, head=False) == unique
    assert stored_bytes(described, head=True) == total
    assert parameter_count(described) * 2 == unique
    assert sum(weight.total for weight in weights(described)) + 1 == tensors


def test_an_untied_head_that_is_not_stored_is_left_out() -> None:
    described = published_spec("meta-llama--Llama-3.1-8B")
    assert stored_bytes(described, head=False) == 16_060_522_496 - 128_256 * 4096 * 2


def test_a_float32_source_is_downloaded_as_such() -> None:
    config = {**published_config("meta-llama--Llama-2-7b-hf"), "torch_dtype": "float32"}
    assert stored_bytes(ModelSpec.from_config(config, "config.json")) == 26_953_662_464


# quantised


@pytest.mark.parametrize(
    ("model", "parameters", "stored"),
    [
        ("openai--gpt-oss-20b", 20_914_757_184, 13_761_264_768),
        ("openai--gpt-oss-120b", 116_829_156_672, 65_248_815_744),
    ],
)
def test_mxfp4_is_for_experts_only(model: str, parameters: int, stored: int) -> None:
    described = published_spec(model)
    assert parameter_count(described) == parameters
    assert stored_bytes(described) == stored
    assert {weight.role for weight in weights(described) if weight.quantized} == {"expert_column", "expert_row"}


def test_deepseek_v3_has_its_published_parameters_and_size() -> None:
    """688,586,727,753 bytes are the files of the repository; their headers name 91,991 tensors."""
    described = published_spec("deepseek-ai--DeepSeek-V3")
    assert parameter_count(described) == 671_026_419_200
    assert sum(weight.parameters for weight in next_token_weights(described)) == 11_610_068_224 + 1_853_358_080
    stored = stored_bytes(described)
    assert stored is not None
    assert 100 < (688_586_727_753 - stored) / 91_991 < 160  # bytes of header for each tensor


def test_nvfp4_of_a_70b_has_the_size_of_the_published_index() -> None:
    """Values of 4 bits, a byte for 16 of them, two float32 for each linear; embedding, head and norms in bfloat16."""
    config = published_config("meta-llama--Llama-3.1-70B")
    quantization = {"quantization": {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]}}
    described = ModelSpec.from_config(config, "config.json", hf_quant_config=quantization)
    assert stored_bytes(described) == 42_709_045_632


@pytest.mark.parametrize(
    ("quantization", "linear"),
    [
        # of one linear with K = N = 4096: values, zero points, scales, indices
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 4096 * 512 * 4 + 32 * 512 * 4 + 32 * 4096 * 2),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 512 * 4096 * 4 + 32 * 512 * 4 + 32 * 4096 * 2 + 16384),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 1024 * 4096 * 4 + 1024 * 4 + 4096 * 2 + 16384),
        ({"quant_method": "fp8"}, 4096 * 4096 + 4),
        ({"quant_method": "fp8", "activation_scheme": "static"}, 4096 * 4096 + 8),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 4096 * 4096 + 32 * 32 * 4),
        ({"quant_method": "fbgemm_fp8"}, 4096 * 4096 + 4096 * 4),
        ({"quant_algo": "W4A16_AWQ", "group_size": 128}, 4096 * 2048 + 32 * 4096 * 2 + 4096 * 2),
        ({"quant_algo": "W8A16"}, 4096 * 4096 + 4096 * 2),
    ],
)
def test_a_quantised_linear_takes_its_values_and_what_is_needed_to_read_them(
    quantization: dict[str, object], linear: int
) -> None:
    config = published_config("meta-llama--Llama-3.1-8B")
    plain = ModelSpec.from_config(config, "config.json")
    spec = ModelSpec.from_config({**config, "quantization_config": quantization}, "config.json")
    everything = {"model.layers.*.mlp", "q_proj", "k_proj", "v_proj"}
    only_output = {**quantization, "modules_to_not_convert": sorted(everything)}
    output = ModelSpec.from_config({**config, "quantization_config": only_output}, "config.json")
    assert {weight.name for weight in weights(output) if weight.quantized} == {"model.layers.*.self_attn.o_proj.weight"}
    saved = (stored_bytes(plain) or 0) - (stored_bytes(output) or 0)
    assert saved == 32 * (4096 * 4096 * 2 - linear)
    assert (stored_bytes(spec) or 0) < (stored_bytes(output) or 0)


def test_what_has_no_known_layout_has_no_size() -> None:
    config = published_config("meta-llama--Llama-3.1-8B")
    for quantization in ({"quant_method": "bitsandbytes"}, {"quant_algo": "MIXED_PRECISION"}):
        assert stored_bytes(ModelSpec.from_config({**config, "quantization_config": quantization}, "")) is None


# names and roles


def by_name(model: str) -> dict[str, Weight]:
    return {weight.name: weight for weight in weights(published_spec(model))}


def test_a_llama_has_its_tensors_by_name() -> None:
    table = by_name("meta-llama--Llama-3.1-8B")
    assert {name: (weight.shape, weight.role, weight.quantized) for name, weight in table.items()} == {
        "model.embed_tokens.weight": ((128256, 4096), "embedding", False),
        "model.layers.*.input_layernorm.weight": ((4096,), "norm", False),
        "model.layers.*.post_attention_layernorm.weight": ((4096,), "norm", False),
        "model.layers.*.self_attn.q_proj.weight": ((4096, 4096), "query", True),
        "model.layers.*.self_attn.k_proj.weight": ((1024, 4096), "key_value", True),
        "model.layers.*.self_attn.v_proj.weight": ((1024, 4096), "key_value", True),
        "model.layers.*.self_attn.o_proj.weight": ((4096, 4096), "attention_out", True),
        "model.layers.*.mlp.gate_proj.weight": ((14336, 4096), "column", True),
        "model.layers.*.mlp.up_proj.weight": ((14336, 4096), "column", True),
        "model.layers.*.mlp.down_proj.weight": ((4096, 14336), "row", True),
        "model.norm.weight": ((4096,), "norm", False),
        "lm_head.weight": ((128256, 4096), "head", False),
    }
    assert table["model.layers.*.mlp.up_proj.weight"].layers == tuple(range(32))


def test_head_dim_decides_about_shapes_not_hidden_size_by_heads() -> None:
    table = by_name("Qwen--Qwen3-32B")
    assert table["model.layers.*.self_attn.q_proj.weight"].shape == (8192, 5120)
    assert table["model.layers.*.self_attn.k_proj.weight"].shape == (1024, 5120)
    assert table["model.layers.*.self_attn.o_proj.weight"].shape == (5120, 8192)
    assert table["model.layers.*.self_attn.q_norm.weight"].shape == (128,)


def test_qwen_2_has_biases_though_its_config_says_nothing() -> None:
    table = by_name("Qwen--Qwen2-1.5B-Instruct")
    assert table["model.layers.*.self_attn.q_proj.bias"].shape == (1536,)
    assert table["model.layers.*.self_attn.k_proj.bias"].role == "key_value"
    assert "model.layers.*.self_attn.o_proj.bias" not in table


def test_a_fused_projection_is_listed_in_parts() -> None:
    fused = [
        weight
        for weight in weights(published_spec("microsoft--Phi-3-mini-4k-instruct"))
        if weight.name == "model.layers.*.self_attn.qkv_proj.weight"
    ]
    assert [(weight.shape, weight.role) for weight in fused] == [((3072, 3072), "query"), ((6144, 3072), "key_value")]
    table = by_name("microsoft--phi-4")
    assert table["model.layers.*.mlp.gate_up_proj.weight"].shape == (35840, 5120)


def test_experts_are_counted_per_layer() -> None:
    table = by_name("mistralai--Mixtral-8x7B-v0.1")
    gate = table["model.layers.*.block_sparse_moe.experts.*.w1.weight"]
    assert (gate.shape, gate.count, gate.total, gate.role) == ((14336, 4096), 8, 256, "expert_column")
    router = table["model.layers.*.block_sparse_moe.gate.weight"]
    assert (router.shape, router.role, router.quantized) == ((8, 4096), "router", False)


def test_field_names_of_experts_differ_per_family() -> None:
    experts = {
        name: published_spec(name).experts
        for name in (
            "mistralai--Mixtral-8x7B-v0.1",
            "Qwen--Qwen3-30B-A3B",
            "deepseek-ai--DeepSeek-V2-Lite",
            "openai--gpt-oss-20b",
            "meta-llama--Llama-4-Scout-17B-16E-Instruct",
            "google--gemma-4-26B-A4B",
        )
    }
    assert [
        (found.count, found.per_token, found.intermediate_size, found.shared_intermediate_size)
        for found in experts.values()
        if found
    ] == [
        (8, 2, 14336, 0),
        (128, 8, 768, 0),
        (64, 6, 1408, 2816),
        (32, 4, 2880, 0),
        (16, 1, 8192, 8192),
        (128, 8, 704, 0),
    ]


def test_dense_layers_come_first_in_deepseek_and_alternate_in_maverick() -> None:
    assert [layer.intermediate_size for layer in published_spec("deepseek-ai--DeepSeek-V3").layers[:4]] == [
        18432,
        18432,
        18432,
        None,
    ]
    maverick = published_spec("meta-llama--Llama-4-Maverick-17B-128E-Instruct").layers
    assert [layer.intermediate_size for layer in maverick[:4]] == [16384, None, 16384, None]
    assert published_spec("Qwen--Qwen3-30B-A3B").intermediate_size == 768


def test_a_latent_projection_is_whole_on_every_rank() -> None:
    table = by_name("deepseek-ai--DeepSeek-V3")
    compressed = table["model.layers.*.self_attn.kv_a_proj_with_mqa.weight"]
    assert (compressed.shape, compressed.role) == ((576, 7168), "latent")
    assert table["model.layers.*.self_attn.kv_b_proj.weight"].shape == (128 * 256, 512)
    assert table["model.layers.*.mlp.gate.e_score_correction_bias"].dtype == "float32"


def test_keys_and_values_from_one_projection_have_one_weight() -> None:
    listed = [
        weight
        for weight in weights(published_spec("google--gemma-4-26B-A4B"))
        if weight.role == "key_value" and 5 in weight.layers
    ]
    assert [(weight.name.rsplit(".", 2)[1], weight.shape) for weight in listed] == [("k_proj", (1024, 2816))]


def test_the_list_is_made_once() -> None:
    described = published_spec("Qwen--Qwen3-30B-A3B-FP8")
    assert weights(described) is weights(described)
    assert math.prod(weights(described)[0].shape) == 151_936 * 2048
