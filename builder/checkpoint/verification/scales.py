"""The scales of quantised weights, as the checkpoint has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from builder.checkpoint.verification.assembly import Piece
from builder.checkpoint.verification.report import Mismatch
from builder.reference.config import Config
from builder.reference.floats import e4m3_values
from builder.reference.quantization import Quantization
from builder.reference.weights import RankWeights

Float64 = npt.NDArray[np.float64]


def weight_scales(rank: RankWeights, piece: Piece, quantization: Quantization) -> tuple[Any, Any]:
    """Of a piece: the scale of every weight, (out, in) or what broadcasts to it; what columns are multiplied with."""
    name = piece.linear
    algo = quantization.format_of(name, experts=piece.expert is not None)
    smoothing: Any = 1.0
    if f"{name}.prequant_scaling_factor" in rank:
        smoothing = rank.float32(f"{name}.prequant_scaling_factor").astype(np.float64)
    if algo == "FP8_PER_CHANNEL_PER_TOKEN":
        return rank.float32(f"{name}.per_channel_scale").astype(np.float64).reshape(-1, 1)[piece.target], smoothing
    if algo == "NVFP4":
        blocks = e4m3_values()[rank.stored(f"{name}.weights_scaling_factor")][piece.target].astype(np.float64)
        whole = blocks * float(rank.float32(f"{name}.weights_scaling_factor_2").reshape(-1)[0])
        return np.repeat(whole, 16, axis=1), smoothing
    scales = rank.float32(f"{name}.weights_scaling_factor", piece.expert).astype(np.float64)
    if algo in ("W4A16_AWQ", "W4A8_AWQ"):
        return np.repeat(scales[piece.target], quantization.group_size, axis=1), smoothing
    if scales.size == 1:
        return scales.reshape(()), smoothing
    return scales.reshape(-1, 1)[piece.target], smoothing


def scale_mismatches(config: Config, ranks: list[RankWeights]) -> Iterator[Mismatch]:
    """Scales that aren't finite and above 0 (of blocks and groups, not below), and that ranks hold differently."""
    for number, rank in enumerate(ranks):
        for name in rank.file.tensors:
            if "scal" not in name.rpartition(".")[2]:
                continue
            stored = rank.stored(name)
            values = e4m3_values()[stored] if rank.dtype(name) == "F8_E4M3" else rank.float32(name)
            lowest_allowed = np.isfinite(values) & ((values > 0) if values.size == 1 else (values >= 0))
            if not lowest_allowed.all():
                yield Mismatch(f"rank{number}.safetensors", name, "has a scale that isn't a number above 0")
            first = ranks[number // config.tp_size * config.tp_size]
            if (
                stored.size == 1
                and name in first
                and "kv_cache" in name
                and not np.array_equal(stored, first.stored(name))
            ):
                yield Mismatch(f"rank{number}.safetensors", name, "differs from that of the other ranks")
