from builder.catalog import gpus
from builder.catalog.compatibility import gpu_mismatch


def test_a_gpu_of_another_architecture_cannot_run_the_engine() -> None:
    error = gpu_mismatch(gpus()["a100-sxm-80gb"], gpus()["a10g-24gb"])
    assert error is not None
    assert error.code == "SM_MISMATCH"
    assert "8.0" in error.message
    assert "8.6" in error.message


def test_a_gpu_of_the_same_architecture_and_another_size_is_another_sku() -> None:
    error = gpu_mismatch(gpus()["a100-sxm-80gb"], gpus()["a100-sxm-40gb"])
    assert error is not None
    assert error.code == "SKU_MISMATCH"


def test_the_same_sku_runs_the_engine() -> None:
    assert gpu_mismatch(gpus()["l40s-48gb"], gpus()["l40s-48gb"]) is None
