"""Texts run through the model, while the library looks at activations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from builder.checkpoint.modelopt.failure import Failure

if TYPE_CHECKING:
    import torch

Batch = tuple["torch.Tensor", "torch.Tensor"]
"""Token ids and attention mask, each (texts, tokens)."""


def batches(tokenizer: Any, texts: Sequence[str], size: int, max_length: int, vocabulary: int) -> list[Batch]:
    """The texts in their order, `size` at a time, each cut after `max_length` tokens.

    Failure TEXT if nothing is left, TOKENIZER if the model doesn't know its tokens.
    """
    encoded = tokenizer(list(texts), truncation=True, max_length=max_length)["input_ids"]
    encoded = [ids for ids in encoded if ids]
    if not encoded:
        raise Failure("TEXT", "the tokenizer makes no tokens of them")
    if (largest := max(max(ids) for ids in encoded)) >= vocabulary:
        raise Failure("TOKENIZER", f"it makes token {largest}, and the model has {vocabulary}")
    return list(_padded(tokenizer, encoded, size))


def run_batches(model: Any, made: Sequence[Batch], advance: Callable[[int], None]) -> None:
    """Calibration's loop. `advance` is told the texts of each batch."""
    import torch

    device = model.get_input_embeddings().weight.device
    for ids, mask in made:
        with torch.no_grad():
            model(input_ids=ids.to(device), attention_mask=mask.to(device), use_cache=False)
        advance(len(ids))


def _padded(tokenizer: Any, encoded: Sequence[list[int]], size: int) -> Iterator[Batch]:
    for first in range(0, len(encoded), size):
        batch = tokenizer.pad({"input_ids": encoded[first : first + size]}, padding=True, return_tensors="pt")
        yield batch["input_ids"], batch["attention_mask"]
