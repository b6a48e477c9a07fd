import pytest

from builder import catalog

NAMES = """
fp32 fp16 bf16 fp8 fp8-rowwise fp8-block int8-wo int4-wo int4-awq w4a8-awq int4-gptq int8-gptq int8-sq nvfp4 mxfp4 mixed
"""

# The linears of one layer of Llama-3-70B, (out, in).
LLAMA_70B = [(8192 + 2 * 1024, 8192), (8192, 8192), (28672, 8192), (28672, 8192), (8192, 28672)]


def test_every_precision_of_the_recipe_format_has_an_entry() -> None:
    assert list(catalog.precisions()) == NAMES.split()


def test_as_published_is_a_word_of_recipes_and_no_precision() -> None:
    assert catalog.AS_PUBLISHED == "as-published"
    assert catalog.AS_PUBLISHED not in catalog.precisions()


@pytest.mark.parametrize(
    ("name", "quant_algo"),
    [
        ("fp8", "FP8"),
        ("fp8-rowwise", "FP8_PER_CHANNEL_PER_TOKEN"),
        ("fp8-block", "FP8_BLOCK_SCALES"),
        ("int8-wo", "W8A16"),
        ("int4-wo", "W4A16"),
        ("int4-awq", "W4A16_AWQ"),
        ("w4a8-awq", "W4A8_AWQ"),
        ("int4-gptq", "W4A16_GPTQ"),
        ("int8-gptq", "W8A16_GPTQ"),
        ("int8-sq", "W8A8_SQ_PER_CHANNEL"),
        ("nvfp4", "NVFP4"),
        ("mixed", "MIXED_PRECISION"),
    ],
)
def test_quantised_precisions_have_the_names_of_tensorrt_llm(name: str, quant_algo: str) -> None:
    assert catalog.precisions()[name].quant_algo == quant_algo
    assert catalog.precisions()[name].dtype is None
    assert catalog.precisions()[name].quantized


@pytest.mark.parametrize(("name", "dtype"), [("fp32", "float32"), ("fp16", "float16"), ("bf16", "bfloat16")])
def test_float_precisions_have_a_dtype_and_no_algorithm(name: str, dtype: str) -> None:
    precision = catalog.precisions()[name]
    assert (precision.dtype, precision.quant_algo, precision.quantized) == (dtype, None, False)


def test_the_oldest_hardware_for_fp8_is_ada_and_for_block_scaled_fp8_hopper() -> None:
    assert catalog.precisions()["fp8"].hardware[0] == "8.9"
    assert catalog.precisions()["fp8-block"].hardware == ("9.0", "10.0", "10.3")
    assert "7.5" not in catalog.precisions()["bf16"].hardware


def test_only_published_precisions_are_never_made_here() -> None:
    made = {name for name, precision in catalog.precisions().items() if precision.published_only}
    assert made == {"fp8-block", "int4-gptq", "int8-gptq", "mxfp4", "mixed"}


def test_what_quantize_py_calibrates_is_what_needs_calibration_data() -> None:
    calibrated = {name for name, precision in catalog.precisions().items() if precision.calibrated}
    assert calibrated == {"fp8", "int4-awq", "w4a8-awq", "int8-sq", "nvfp4"}


def test_the_size_of_nvfp4_linears_is_that_of_a_published_70b_checkpoint() -> None:
    """A Llama-3.x-70B NVFP4 repository holds 42,709,045,632 bytes, BF16 embedding and head included (its index)."""
    nvfp4 = catalog.precisions()["nvfp4"]
    linears = 80 * sum(nvfp4.linear_bytes(out, into) for out, into in LLAMA_70B)
    published = 42_709_045_632 - 2 * 128256 * 8192 * 2
    assert abs(linears - published) / published < 1e-4


def test_grouped_scales_are_counted_in_whole_groups() -> None:
    awq = catalog.precisions()["int4-awq"]
    weights, scales, prequant = 4096 * 4096 // 2, 4096 * 32 * 2, 4096 * 2
    assert awq.linear_bytes(4096, 4096) == weights + scales + prequant
    assert awq.linear_bytes(4096, 4096, group_size=64) == weights + 2 * scales + prequant


def test_block_scales_cover_128_by_128_weights() -> None:
    assert catalog.precisions()["fp8-block"].linear_bytes(256, 384) == 256 * 384 + 2 * 3 * 4


def test_kv_precisions_have_the_bytes_of_a_value() -> None:
    sizes = {name: precision.bytes for name, precision in catalog.kv_precisions().items()}
    assert sizes == {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1, "nvfp4": 0.5 + 1 / 16}
