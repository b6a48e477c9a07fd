"""Rules on arguments of TensorRT-LLM's LLM class, in the pytorch flow.

Source: NVIDIA/TensorRT-LLM tensorrt_llm/llmapi/llm_args.py, releases 1.0 to 1.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from builder.plan.findings import Problem, rule
from builder.plan.rules.conditions import GIB
from builder.plan.unit import Unit

_GRAPHS = ("llm_args", "cuda_graph_config")

_GRAPH_BYTES = 200_000_000
"""What a captured CUDA graph takes at most, as the documentation of cuda_graph_config has it."""

_GRAPHS_SHARE = 0.1


@rule("CUDA_GRAPH_SIZES", "refuse")
def graphs_are_listed_or_bounded(unit: Unit) -> Iterator[Problem]:
    """cuda_graph_config takes a list of batch_sizes or a max_batch_size, not both."""
    config = unit.settings.llm_args.get("cuda_graph_config") if unit.settings.llm_args else None
    if isinstance(config, Mapping) and config.get("batch_sizes") and config.get("max_batch_size"):
        yield Problem(
            "cuda_graph_config has both batch_sizes and max_batch_size: TensorRT-LLM refuses that",
            (*_GRAPHS, "max_batch_size"),
            "remove one of them",
        )


@rule("CUDA_GRAPH_MEMORY", "warn")
def graphs_leave_memory(unit: Unit) -> Iterator[Problem]:
    """Each CUDA graph may take 200 MB of GPU memory, which the estimate doesn't count."""
    config = unit.settings.llm_args.get("cuda_graph_config") if unit.settings.llm_args else None
    sizes = config.get("batch_sizes") if isinstance(config, Mapping) else None
    there = unit.gpu.memory_bytes
    if not isinstance(sizes, list) or there is None or len(sizes) * _GRAPH_BYTES <= _GRAPHS_SHARE * there:
        return
    needed = len(sizes) * _GRAPH_BYTES
    yield Problem(
        f"{len(sizes)} CUDA graphs may take {needed / GIB:.1f} GiB of GPU memory, beside weights and KV cache",
        (*_GRAPHS, "batch_sizes"),
        f"list at most {int(_GRAPHS_SHARE * there / _GRAPH_BYTES)} sizes, with enable_padding: true",
        {"graphs": len(sizes), "graph_bytes": needed},
    )
