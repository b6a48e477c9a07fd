"""What may not be in a checkpoint: values that aren't finite, and scales that are no scales."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from builder.checkpoint.modelopt.failure import Failure

if TYPE_CHECKING:
    import torch

_SCALES = ("scal", "amax")
_PER_BLOCK = ("weights_scaling_factor", "weight_scale", "per_channel_scale")


def check_tensors(tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Failure NOT_FINITE for the first tensor with a NaN, an infinity, or a scale that isn't above 0.

    Scales of blocks and channels may be 0: then all their weights are.
    """
    for name, tensor in tensors:
        if not tensor.is_floating_point():
            continue
        kind = name.rsplit(".", 1)[-1]
        values = tensor.float() if tensor.element_size() == 1 else tensor
        if not bool(values.isfinite().all()):
            raise Failure("NOT_FINITE", f"{name} holds NaN or infinity")
        if any(word in kind for word in _SCALES):
            zero_allowed = kind in _PER_BLOCK and tensor.numel() > 1
            if not bool((values >= 0 if zero_allowed else values > 0).all()):
                raise Failure("NOT_FINITE", f"{name} isn't above 0 everywhere")
