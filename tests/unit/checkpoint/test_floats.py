import numpy as np
import pytest
import torch

from builder.checkpoint.floats import convert_floats

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
