"""Whether an engine that was compiled on one GPU runs on another: only on the same SKU."""

from __future__ import annotations

from builder.catalog.gpus import Gpu
from builder.errors import HostError


def gpu_mismatch(built: Gpu, running: Gpu) -> HostError | None:
    """The error of running an engine of `built` on `running`: SM_MISMATCH, or SKU_MISMATCH; None if it runs.

    TensorRT refuses an engine of another compute capability. On another card of the same one it is loaded, but its
    kernels were chosen, and its memory was planned, for the first: it may be slow, or fail when the memory is full.
    Source: TensorRT documentation, "engine compatibility"; TensorRT-LLM issues 222 and 3031.
    """
    if built.name == running.name:
        return None
    if built.compute_capability != running.compute_capability:
        return HostError(
            f"the engine is for {_described(built)}, this is {_described(running)}",
            why="TensorRT can't load an engine of another compute capability",
            hint=f"build for {running.name}",
            code="SM_MISMATCH",
        )
    return HostError(
        f"the engine is for {_described(built)}, this is {_described(running)}",
        why="both have the same compute capability, but kernels were chosen and memory was planned for another card",
        hint=f"build for {running.name}",
        code="SKU_MISMATCH",
    )


def _described(gpu: Gpu) -> str:
    return f"{gpu.name} (SM {gpu.compute_capability})" if gpu.compute_capability else gpu.name
