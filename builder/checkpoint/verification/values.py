"""Every weight of a checkpoint against the source: bit for bit, or within what its format can hold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from builder.checkpoint.floats import Array, narrow, widen
from builder.checkpoint.source import SourceWeights
from builder.checkpoint.verification.assembly import Padding, Piece, pieces
from builder.checkpoint.verification.bounds import BOUNDS, ROUNDING
from builder.checkpoint.verification.report import MOST, Mismatch, Report
from builder.checkpoint.verification.scales import scale_mismatches, weight_scales
from builder.checkpoint.verification.sources import source_values
from builder.checkpoint.verification.structure import config_mismatches, read_config, verify_structure
from builder.model.spec import STORED_DTYPES, ModelSpec
from builder.reference.config import Config
from builder.reference.errors import ReferenceModelError
from builder.reference.floats import Float32
from builder.reference.stored import effective
from builder.reference.tensorfile import TensorFile
from builder.reference.weights import RankWeights
from builder.store.digests import Advance, ignore_progress

_BLOCK_VALUES = 4 << 20
_FLOATS = ("BF16", "F16", "F32")


def verify(
    checkpoint: Path,
    source: Path,
    spec: ModelSpec,
    *,
    dtype: str | None = None,
    advance: Advance = ignore_progress,
) -> Report:
    """Hold the checkpoint in a folder against the model in folder `source`, which `spec` describes.

    Unquantised weights must be the source's bit for bit, or rounded to nearest (ties to even) where the dtype is
    another; quantised ones within the bound of their format; Gemma's norms the source's plus 1. `dtype`: what a recipe
    asks for; None: whatever it is. `advance` is told bytes of the checkpoint. Memory: some tensors.

    SourceError where the source can't be read; what is wrong with the checkpoint is in the report.
    """
    structure = list(verify_structure(checkpoint))
    if structure:
        return Report(tuple(structure[:MOST]))
    structure += config_mismatches(checkpoint, spec)
    config = read_config(checkpoint)
    if dtype is not None and config.dtype != dtype:
        structure.append(Mismatch("config.json", "dtype", "isn't what the recipe asks for", dtype, config.dtype))
    with ExitStack() as stack:
        weights = stack.enter_context(SourceWeights(source, spec))
        weights.check(config.dtype)
        try:
            files = [TensorFile.open(checkpoint / f"rank{rank}.safetensors") for rank in range(config.mapping.files)]
            comparison = _Comparison(config, spec, weights, [RankWeights(file) for file in files], advance)
            exactness = [*comparison.mismatches(), *scale_mismatches(config, comparison.ranks)]
        except ReferenceModelError as error:
            return Report((*structure, Mismatch("config.json", "", f"can't be used: {error}")))
    if len(exactness) > MOST:
        left = len(exactness) - MOST
        exactness = [*exactness[:MOST], Mismatch("", "", f"and {left} more")]
    return Report(
        tuple(structure),
        tuple(exactness),
        comparison.tensors,
        comparison.compared_bytes,
        {algo: round(use, 4) for algo, use in comparison.bound_use.items()},
    )


class _Comparison:
    def __init__(
        self, config: Config, spec: ModelSpec, weights: SourceWeights, ranks: list[RankWeights], advance: Advance
    ) -> None:
        self.config = config
        self.spec = spec
        self.weights = weights
        self.ranks = ranks
        self.tensors = sum(len(rank.file.tensors) for rank in ranks)
        self.compared_bytes = 0
        self.bound_use: dict[str, float] = {}
        self._advance = advance
        self._linear: tuple[tuple[int, str, int | None], Float32] | None = None

    def mismatches(self) -> Iterator[Mismatch]:
        for piece in pieces(self.config, self.spec):
            if isinstance(piece, Padding):
                if self.ranks[piece.rank].stored(piece.tensor)[piece.rows].any():
                    yield self._mismatch(piece, "has padding that isn't zero")
                continue
            rank = self.ranks[piece.rank]
            if piece.tensor not in rank:
                continue  # a tied head that one rank may leave out
            stored = rank.stored(piece.tensor)
            size = (stored if piece.expert is None else stored[piece.expert])[piece.target].nbytes
            self.compared_bytes += size
            self._advance(size)
            quantized = self._algo(piece)
            if quantized is not None or (self.spec.quantization is not None and piece.tensor.endswith(".weight")):
                fault = self._values(piece, quantized)
            else:
                fault = self._floats(piece, stored, rank.dtype(piece.tensor))
            if fault is not None:
                yield self._mismatch(piece, fault)

    def _algo(self, piece: Piece) -> str | None:
        """How the linear of a piece is stored; None: as floats, for good or until the engine is built."""
        quantization = self.config.quantization
        if not piece.tensor.endswith(".weight") or self.ranks[piece.rank].dtype(piece.tensor) in _FLOATS:
            return None
        return quantization.format_of(piece.linear, experts=piece.expert is not None)

    def _floats(self, piece: Piece, stored: npt.NDArray[Any], dtype: str) -> str | None:
        """Bit for bit, after the one rounding that the table promises."""
        target = stored if piece.expert is None else stored[piece.expert]
        target = target[piece.target]
        found = self._source(piece)
        info = self.weights.tensors[piece.source]
        if found.shape != target.shape:
            return f"is {list(target.shape)} where the source has {list(found.shape)}"
        plus_one = self.spec.model_type.startswith("gemma") and piece.tensor.endswith(("norm.weight", "ln_f.weight"))
        for rows in _blocks(target):
            theirs = found[rows]
            if plus_one:
                theirs = narrow(widen(theirs, info.dtype) + np.float32(1), dtype)
            elif dtype != info.dtype:
                theirs = narrow(widen(theirs, info.dtype), dtype)
            ours = target[rows]
            different = ours.view(_bits(ours)) != theirs.view(_bits(theirs))
            if different.any():
                return f"differs from {piece.source} in {int(different.sum()):,} values or more"
        return None

    def _values(self, piece: Piece, algo: str | None) -> str | None:
        """Quantised weights by what they stand for, or floats where the source is quantised in part."""
        rank, quantization = self.ranks[piece.rank], self.config.quantization
        if self.spec.quantization is not None:
            theirs = source_values(self.weights, self.spec, piece)
            if theirs is None:
                return self._floats(piece, rank.stored(piece.tensor), rank.dtype(piece.tensor))
        else:
            info = self.weights.tensors[piece.source]
            theirs = widen(self._source(piece), info.dtype)
        ours = self._effective(piece)[piece.target]
        if algo is None or (self.spec.quantization is not None and np.array_equal(ours, theirs)):
            return None if np.array_equal(ours, theirs) else f"differs from {piece.source}"
        scale, smoothing = weight_scales(rank, piece, quantization)
        exact = self.spec.quantization is not None and algo != "FP8"
        limit = np.zeros_like(theirs, dtype=np.float64)
        if not exact:
            limit = BOUNDS[algo](theirs / smoothing, ours / smoothing, scale) * smoothing
            roundings = 2 if np.ndim(smoothing) == 0 else 5
            limit += np.abs(theirs) * roundings * ROUNDING[STORED_DTYPES[self.config.dtype]]
        error = np.abs(ours.astype(np.float64) - theirs)
        finite = np.isfinite(limit) & (limit > 0)
        if finite.any():
            use = float((error[finite] / limit[finite]).max())
            self.bound_use[algo] = max(self.bound_use.get(algo, 0.0), use)
        wrong = ~(error <= limit * (1 + 1e-5) + 1e-30)
        if wrong.any():
            return f"is further from {piece.source} than {algo} allows, in {int(wrong.sum()):,} values"
        return None

    def _effective(self, piece: Piece) -> Float32:
        """What the whole linear of a piece stands for: once for all of its pieces, which come one after another."""
        which = piece.rank, piece.linear, piece.expert
        if self._linear is None or self._linear[0] != which:
            values = effective(self.ranks[piece.rank], piece.linear, self.config.quantization, piece.expert)
            self._linear = which, values
        return self._linear[1]

    def _source(self, piece: Piece) -> Array:
        """The source's part as it is stored."""
        array = self.weights.array(piece.source, piece.rows)
        return array[:, piece.columns] if array.ndim == 2 else array

    @staticmethod
    def _mismatch(piece: Piece | Padding, what: str) -> Mismatch:
        expert = (
            f" (expert {piece.expert} of the rank)" if isinstance(piece, Piece) and piece.expert is not None else ""
        )
        return Mismatch(f"rank{piece.rank}.safetensors", f"{piece.tensor}{expert}", what)


def _blocks(values: npt.NDArray[Any]) -> Iterator[slice]:
    rows = max(1, _BLOCK_VALUES // max(1, int(np.prod(values.shape[1:]))))
    return (slice(first, first + rows) for first in range(0, len(values), rows))


def _bits(values: npt.NDArray[Any]) -> npt.DTypeLike:
    return {2: np.uint16, 4: np.uint32, 1: np.uint8}[values.itemsize]
