"""Formats that numpy doesn't know are rounded as torch does."""

import numpy as np
import pytest
import torch

from builder.checkpoint.floats import CONVERTIBLE, carrier, convert_floats, narrow, rescale_fp8, widen

TORCH = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


def every_bfloat16() -> torch.Tensor:
    return torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.bfloat16)


def every_float16() -> torch.Tensor:
    return torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.float16)


def many_float32() -> torch.Tensor:
    """All exponents with random mantissas, and the ties between two bfloat16 numbers."""
    bits = torch.randint(-(2**31), 2**31, (200_000,), dtype=torch.int64, generator=torch.Generator().manual_seed(1))
    ties = every_bfloat16().float().view(torch.int32) | 0x8000
    return torch.cat([bits.to(torch.int32), ties]).view(torch.float32)


@pytest.mark.parametrize(
    ("values", "source", "target"),
    [
        (every_bfloat16(), "BF16", "F32"),
        (every_bfloat16(), "BF16", "F16"),
        (every_float16(), "F16", "F32"),
        (every_float16(), "F16", "BF16"),
        (many_float32(), "F32", "BF16"),
        (many_float32(), "F32", "F16"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_rounding_is_torchs(values: torch.Tensor, source: str, target: str) -> None:
    expected = values.to(TORCH[target])
    values = values[~expected.isinf() | values.isinf()]  # what overflows is refused, see below
    expected = values.to(TORCH[target])
    carrier = values.view(torch.int16).numpy().view(np.uint16) if source == "BF16" else values.numpy()
    ours = convert_floats(carrier, source, target)
    bits = np.uint32 if target == "F32" else np.uint16
    theirs = expected.view(torch.int32 if target == "F32" else torch.int16).numpy().view(bits)
    same = (ours.view(bits) == theirs) | expected.isnan().numpy()
    assert same.all()
    assert np.array_equal(np.isnan(convert_floats(ours, target, "F32")), expected.isnan().numpy())


def test_the_same_format_is_not_touched() -> None:
    values = np.arange(4, dtype=np.uint16)
    assert convert_floats(values, "BF16", "BF16") is values


@pytest.mark.parametrize(("value", "target"), [(65520.0, "F16"), (-1e30, "F16"), (3.4e38, "BF16")])
def test_a_number_beyond_the_range_is_an_error(value: float, target: str) -> None:
    with pytest.raises(OverflowError, match=f"beyond the range of {target}"):
        convert_floats(np.array([1.0, value], np.float32), "F32", target)


@pytest.mark.parametrize(("value", "target"), [(65519.0, "F16"), (-65519.0, "F16"), (3.39e38, "BF16")])
def test_a_number_that_rounds_to_the_largest_is_none(value: float, target: str) -> None:
    expected = torch.tensor([value]).to(TORCH[target])
    assert torch.isfinite(expected).all()
    assert widen(narrow(np.array([value], np.float32), target), target).tolist() == expected.float().tolist()


def test_infinities_stay() -> None:
    for target in CONVERTIBLE:
        ends = convert_floats(np.array([-np.inf, np.inf], np.float32), "F32", target)
        assert widen(ends, target).tolist() == [-np.inf, np.inf]


def test_numbers_are_carried_by_types_of_their_width() -> None:
    assert {name: np.dtype(carrier(name)).itemsize for name in ("F32", "BF16", "F16", "F8_E4M3", "I8", "U8")} == {
        "F32": 4,
        "BF16": 2,
        "F16": 2,
        "F8_E4M3": 1,
        "I8": 1,
        "U8": 1,
    }


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_widening_is_exact(dtype: str) -> None:
    values = every_bfloat16() if dtype == "BF16" else every_float16()
    carried = values.view(torch.int16).numpy().view(np.uint16).view(carrier(dtype))
    wide = widen(carried, dtype)
    assert wide.dtype == np.float32
    assert np.array_equal(wide, values.float().numpy(), equal_nan=True)
    kept = ~np.isnan(wide)
    assert np.array_equal(narrow(wide, dtype)[kept], carried[kept])


# FP8


ALL_FP8 = np.arange(256, dtype=np.uint8)


def fp8_values() -> torch.Tensor:
    return torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)


def test_fp8_is_widened_as_torch_does() -> None:
    assert np.array_equal(widen(ALL_FP8, "F8_E4M3"), fp8_values().float().numpy(), equal_nan=True)


FACTORS = [1 - 2**-24, 0.999, 0.75, 2 / 3, 0.5, 0.1, 2**-6, 2**-9, 2**-18, 2**-30, 1e-30]


@pytest.mark.parametrize("factor", FACTORS)
def test_rescaled_fp8_is_the_nearest_there_is(factor: float) -> None:
    """Of all 254 finite values none is nearer; the sign stays, NaN stays."""
    exact = fp8_values().double() * factor
    rescaled = torch.from_numpy(rescale_fp8(ALL_FP8, factor)).view(torch.float8_e4m3fn).double()
    grid = fp8_values().double()
    grid = grid[~grid.isnan()]
    finite = ~exact.isnan()
    nearest = (exact[finite, None] - grid).abs().min(dim=1).values
    assert torch.equal((rescaled[finite] - exact[finite]).abs(), nearest)
    assert torch.equal(rescaled[finite].signbit(), exact[finite].signbit())
    assert torch.equal(rescaled.isnan(), exact.isnan())


@pytest.mark.parametrize("factor", FACTORS)
def test_rescaled_fp8_is_off_by_half_a_step(factor: float) -> None:
    """The bound that the exactness of a checkpoint rests on: 2^-4 of a normal number, 2^-10 below 2^-6."""
    exact = fp8_values().double() * factor
    exact = torch.where(exact.isnan(), 0, exact)
    rescaled = torch.from_numpy(rescale_fp8(ALL_FP8, factor)).view(torch.float8_e4m3fn).double()
    off = torch.where(rescaled.isnan(), 0, (rescaled - exact).abs())
    assert (off <= torch.maximum(exact.abs() * 2**-4, torch.tensor(2.0**-10))).all()


@pytest.mark.parametrize("power", [1, 2, 3])
def test_ties_go_to_the_even_code(power: int) -> None:
    """Halves of the smallest numbers lie in the middle of two: torch rounds these as IEEE 754 says."""
    expected = (fp8_values().float() * 2.0**-power).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    finite = ~fp8_values().float().isnan().numpy()
    assert np.array_equal(rescale_fp8(ALL_FP8, 2.0**-power)[finite], expected[finite])


def test_rescaling_keeps_the_shape_and_leaves_its_input_alone() -> None:
    values = ALL_FP8.reshape(16, 16).copy()
    assert rescale_fp8(values, 0.5).shape == (16, 16)
    assert np.array_equal(values.ravel(), ALL_FP8)
