"""Outside facts, pinned: what the model's source, registries and data sets held when they were last looked at.

The lock lies beside its recipe as NAME.lock.json, sorted, one fact a line. A digest is never invented: what
couldn't be reached is `unresolved`, with the reason, and a unit that needs it can be planned but not built.

Here is what reading a lock takes; `making` and `drift`, which ask the outside, are imported by name.
"""

from builder.lock.images import PinnedImage, PlatformImage, recipe_reference
from builder.lock.local_files import local_file
from builder.lock.record import Lock, PinnedModel, Unresolved, load_lock, required_lock
from builder.lock.summaries import ChatTemplate, TensorSummary, TokenizerSummary
from builder.lock.wanted import TENSORS, WEIGHTS, model_key, names_needed

__all__ = [
    "TENSORS",
    "WEIGHTS",
    "ChatTemplate",
    "Lock",
    "PinnedImage",
    "PinnedModel",
    "PlatformImage",
    "TensorSummary",
    "TokenizerSummary",
    "Unresolved",
    "load_lock",
    "local_file",
    "model_key",
    "names_needed",
    "recipe_reference",
    "required_lock",
]
