import pytest

from builder.plan.memory import Range, host_estimate
from builder.plan.memory.host import build_needs, convert_needs, quantize_needs
from tests.unit.plan.plans import MakeUnits, recipe

MIB = 1 << 20
GIB = 1 << 30
NO_CONTEXT = Range(0, 0)


@pytest.mark.parametrize(
    ("ranks_mib", "peak_mib"),
    [([775], 6600), ([5093] * 4, 58_617), ([7757], 18_131_000_000 // MIB), ([15_316], 48_000_000_000 // MIB)],
    ids=["gpt2-medium", "Llama-3-8B-1048k on four ranks", "Qwen1.5 INT4", "the advice of 48 GB for 8B"],
)
def test_peaks_of_main_memory_in_build_logs_lie_inside_the_range(ranks_mib: list[int], peak_mib: int) -> None:
    needs = build_needs([rank * MIB for rank in ranks_mib], NO_CONTEXT, 0)
    assert peak_mib * MIB in needs.ram_bytes


@pytest.mark.parametrize(("rank_mib", "peak_mib"), [(775, 775), (5093, 5093)])
def test_peaks_of_gpu_memory_in_build_logs_lie_inside_the_range(rank_mib: int, peak_mib: int) -> None:
    assert peak_mib * MIB in build_needs([rank_mib * MIB] * 4, NO_CONTEXT, 0).vram_bytes


def test_quantising_a_70b_takes_more_than_its_weights_on_the_gpus() -> None:
    """Llama-2-70B to FP8: more than 210 GB of GPU memory in all."""
    needs = quantize_needs(137_953_296_384, [35 * GIB] * 2, 32_000, 512, 0)
    assert 210_000_000_000 in needs.vram_bytes
    assert needs.vram_bytes.low == 137_953_296_384


def test_converting_needs_no_gpu_and_at_most_the_source_and_all_ranks() -> None:
    needs = convert_needs(16 * GIB, [8 * GIB, 8 * GIB], 0)
    assert needs.vram_bytes == Range(0, 0)
    assert needs.ram_bytes == Range(9 * GIB, 36 * GIB)


def test_a_unit_tells_what_its_two_steps_need(make_units: MakeUnits) -> None:
    (unit,) = make_units(recipe())
    needs = host_estimate(unit)
    assert needs is not None
    assert needs.build is not None
    assert needs.quantize.vram_bytes == Range(0, 0)
    assert needs.build.vram_bytes.low > 269_030_016


def test_calibration_needs_the_whole_model_on_gpus(make_units: MakeUnits) -> None:
    (unit,) = make_units(recipe(weights="fp8", extra="calibration: {dataset: 'file:texts.jsonl'}"))
    needs = host_estimate(unit)
    assert needs is not None
    assert needs.quantize.vram_bytes.low == 269_030_016 + 49_152 * 576 * 2


def test_the_pytorch_flow_compiles_nothing(make_units: MakeUnits) -> None:
    (unit,) = make_units(recipe(flow="pytorch"))
    needs = host_estimate(unit)
    assert needs is not None
    assert needs.build is None


def test_the_reference_model_has_no_build_machine(make_units: MakeUnits) -> None:
    assert host_estimate(make_units()[0]) is None
