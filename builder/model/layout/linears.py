"""A linear of a rank in each of the formats in which weights are published, from the Hugging Face linears that make it.

Names on the right are those of the source, (out, in) = (N, K), g the group size:

    float             weight                                                weight
    fp8               weight F8_E4M3 [N, K]                                 weight, at the largest of the scales
                      weights_scaling_factor F32 [1]                        weight_scale, the largest
                      activation_scaling_factor F32 [1]                     input_scale, the largest
    fp8-rowwise       weight F8_E4M3 [N, K], per_channel_scale F32 [N]      weight, weight_scale
    nvfp4             weight U8 [N, K/2]                                    weight, two values per byte
                      weights_scaling_factor F8_E4M3 [N, K/16]              weight_scale
                      weights_scaling_factor_2 F32 [1]                      weight_scale_2
                      activation_scaling_factor F32 [1]                     input_scale, the largest
    int4-awq          weight I8 [N/2, K]                                    weight, two rows per byte
                      weights_scaling_factor F32 [N, K/g]                   weight_scale
                      prequant_scaling_factor dtype [K]                     pre_quant_scale, or ones
    w4a8-awq          as int4-awq, with weights_scaling_factor_2 [1]        weight_scale_2
                      and activation_scaling_factor F32 [1]                 input_scale, the largest
    int8-sq           weight I8 [N, K], weights_scaling_factor F32 [N]      weight, weight_scale
                      activation_scaling_factor F32 [1]                     input_scale, the largest
                      prequant_scaling_factor dtype [K]                     pre_quant_scale, or ones
    int4-gptq         as int4-awq: weight                                   qweight I32 [K/8, N]
                      weights_scaling_factor F32 [N, K/g]                   scales [K/g, N]
                      prequant_scaling_factor: ones                         qzeros I32 [K/g, N/8], g_idx I32 [K]

Sources: what NVIDIA's ModelOpt 0.47 writes with export_tensorrt_llm_checkpoint (left) and export_hf_checkpoint (right);
fp8-rowwise also transformers' fbgemm_fp8 and compressed-tensors (weight_scale [N, 1]). ModelOpt folds the
pre-quantisation scales of projections behind a norm into that norm: hence the ones. Symmetric GPTQ without reordered
inputs is the same format as AWQ's without a pre-quantisation scale: (q - 8) · scale, with one scale per group
(AutoGPTQ, auto_gptq/nn_modules/qlinear/qlinear_cuda.py). TensorRT-LLM's own converter stores it in the order that the
kernels of one compute capability want; this form fits all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from builder.model.layout.tensors import RankTensor, Rule, Slice

AWQ = ("int4-awq", "w4a8-awq")


@dataclass(frozen=True)
class Part:
    """What a rank takes of one Hugging Face linear: some of its rows (out), or all of them and some columns (in).

    `module` is "model.layers.0.self_attn.q_proj"; `shape` (out, in) of the whole linear. A module whose parameters
    aren't called "weight" (fused experts) isn't known here.
    """

    module: str
    shape: tuple[int, int]
    dim: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start if self.dim == 0 else self.shape[0]

    @property
    def columns(self) -> int:
        return self.stop - self.start if self.dim == 1 else self.shape[1]


@dataclass(frozen=True)
class Linears:
    """Makes the tensors of linears in one format. `dtype`: of what isn't quantised, as safetensors spells it."""

    format: str
    dtype: str
    group_size: int

    def tensors(
        self, name: str, parts: tuple[Part, ...], lead: tuple[int, ...] = (), padding: int = 0
    ) -> Iterator[RankTensor]:
        """The tensors of the linear `name`, made of `parts` one after another.

        `lead` is the number of experts in front of the shape, each of which has equally many parts.
        """
        if self.format == "float":
            slices = tuple(_slice(part, "weight") for part in parts)
            yield self._weight(name, self.dtype, slices, parts, lead, padding=padding)
        elif self.format == "fp8":
            yield from self._fp8(name, parts, lead)
        elif self.format == "fp8-rowwise":
            yield self._weight(name, "F8_E4M3", _slices(parts, "F8_E4M3"), parts, lead)
            yield self._per_row(f"{name}.per_channel_scale", parts, lead)
        elif self.format == "nvfp4":
            yield from self._nvfp4(name, parts, lead)
        elif self.format in AWQ:
            yield from self._awq(name, parts, lead)
        elif self.format == "int4-gptq":
            yield from self._gptq(name, parts)
        elif self.format == "int8-sq":
            yield self._weight(name, "I8", _slices(parts, "I8"), parts, lead)
            yield self._per_row(f"{name}.weights_scaling_factor", parts, lead)
            yield _number(f"{name}.activation_scaling_factor", parts, "input_scale", "maximum")
            yield self._prequant(name, parts)
        else:
            raise ValueError(f"no layout for {self.format}")

    def _fp8(self, name: str, parts: tuple[Part, ...], lead: tuple[int, ...]) -> Iterator[RankTensor]:
        slices = tuple(
            replace(_slice(part, "weight", "F8_E4M3"), scale=f"{part.module}.weight_scale") for part in parts
        )
        weight = self._weight(name, "F8_E4M3", slices, parts, lead)
        groups = lead[0] if lead else 1
        yield replace(weight, rule="rescaled", groups=groups) if len(parts) > groups else weight
        yield _number(f"{name}.weights_scaling_factor", parts, "weight_scale", "maximum", lead)
        yield _number(f"{name}.activation_scaling_factor", parts, "input_scale", "maximum")

    def _nvfp4(self, name: str, parts: tuple[Part, ...], lead: tuple[int, ...]) -> Iterator[RankTensor]:
        yield self._weight(name, "U8", _slices(parts, "U8", columns=2), parts, lead, columns=2)
        blocks = tuple(_slice(part, "weight_scale", "F8_E4M3", columns=16) for part in parts)
        scales = self._weight(name, "F8_E4M3", blocks, parts, lead, columns=16)
        yield replace(scales, name=f"{name}.weights_scaling_factor")
        yield _number(f"{name}.weights_scaling_factor_2", parts, "weight_scale_2", "same")
        yield _number(f"{name}.activation_scaling_factor", parts, "input_scale", "maximum")

    def _awq(self, name: str, parts: tuple[Part, ...], lead: tuple[int, ...]) -> Iterator[RankTensor]:
        packed = tuple(replace(_slice(part, "weight", rows=2), dtype="U8") for part in parts)
        yield self._weight(name, "I8", packed, parts, lead, rows=2)
        groups = tuple(_slice(part, "weight_scale", "float", columns=self.group_size) for part in parts)
        scales = self._weight(name, "F32", groups, parts, lead, columns=self.group_size)
        yield replace(scales, name=f"{name}.weights_scaling_factor")
        yield self._prequant(name, parts)
        if self.format == "w4a8-awq":
            yield _number(f"{name}.weights_scaling_factor_2", parts, "weight_scale_2", "same")
            yield _number(f"{name}.activation_scaling_factor", parts, "input_scale", "maximum")

    def _gptq(self, name: str, parts: tuple[Part, ...]) -> Iterator[RankTensor]:
        rows, columns, group = sum(part.rows for part in parts), parts[0].columns, self.group_size
        packed, scales = [], []
        for part in parts:
            (outputs, inputs), dim = part.shape, 1 - part.dim
            zeros = Slice.whole(f"{part.module}.qzeros", (inputs // group, outputs // 8), "I32")
            order = Slice.whole(f"{part.module}.g_idx", (inputs,), "I32")
            step = (8, group) if dim == 0 else (1, 1)
            first, last = part.start // step[0], part.stop // step[0]
            packed.append(
                Slice(f"{part.module}.qweight", (inputs // 8, outputs), dim, first, last, "I32", beside=(zeros, order))
            )
            first, last = part.start // step[1], part.stop // step[1]
            scales.append(Slice(f"{part.module}.scales", (inputs // group, outputs), dim, first, last, "float"))
        yield RankTensor(f"{name}.weight", (rows // 2, columns), "I8", tuple(packed), rule="gptq")
        groups = (rows, columns // group)
        yield RankTensor(f"{name}.weights_scaling_factor", groups, "F32", tuple(scales), rule="transposed")
        yield RankTensor(f"{name}.prequant_scaling_factor", (columns,), self.dtype, (), rule="same_or_ones")

    def _weight(
        self,
        name: str,
        dtype: str,
        slices: tuple[Slice, ...],
        parts: tuple[Part, ...],
        lead: tuple[int, ...],
        rows: int = 1,
        columns: int = 1,
        padding: int = 0,
    ) -> RankTensor:
        total = sum(part.rows for part in parts) // (lead[0] if lead else 1)
        shape = (*lead, total // rows + padding, parts[0].columns // columns)
        return RankTensor(f"{name}.weight", shape, dtype, slices, padding)

    def _per_row(self, name: str, parts: tuple[Part, ...], lead: tuple[int, ...]) -> RankTensor:
        slices = tuple(
            Slice(f"{part.module}.weight_scale", part.shape[:1], 0, part.start, part.stop, "float")
            if part.dim == 0
            else Slice.whole(f"{part.module}.weight_scale", part.shape[:1], "float")
            for part in parts
        )
        rows = sum(part.rows for part in parts)
        return RankTensor(name, (*lead, rows // lead[0]) if lead else (rows,), "F32", slices)

    def _prequant(self, name: str, parts: tuple[Part, ...]) -> RankTensor:
        """Linears that are fused have the same input, and so the same scale."""
        slices = tuple(
            Slice(f"{part.module}.pre_quant_scale", part.shape[1:], 0, part.start, part.stop, "float")
            if part.dim == 1
            else Slice.whole(f"{part.module}.pre_quant_scale", part.shape[1:], "float")
            for part in parts
        )
        columns = parts[0].columns
        return RankTensor(f"{name}.prequant_scaling_factor", (columns,), self.dtype, slices, rule="same_or_ones")


def _slice(part: Part, parameter: str, dtype: str | None = None, rows: int = 1, columns: int = 1) -> Slice:
    """The part's rows or columns of a parameter that has one entry per `rows` · `columns` weights."""
    shape = (part.shape[0] // rows, part.shape[1] // columns)
    step = rows if part.dim == 0 else columns
    return Slice(f"{part.module}.{parameter}", shape, part.dim, part.start // step, part.stop // step, dtype)


def _slices(parts: tuple[Part, ...], dtype: str, columns: int = 1) -> tuple[Slice, ...]:
    return tuple(_slice(part, "weight", dtype, columns=columns) for part in parts)


def _number(name: str, parts: tuple[Part, ...], parameter: str, rule: Rule, lead: tuple[int, ...] = ()) -> RankTensor:
    """One number for all parts, or, with `lead`, one for each expert."""
    slices = tuple(Slice.whole(f"{part.module}.{parameter}", (), "float") for part in parts)
    return RankTensor(name, (*lead, 1), "F32", slices, rule=rule, groups=lead[0] if lead else 1)
