"""Outside facts, pinned: what the model's source, registries and data sets held when they were last looked at.

The lock lies beside its recipe as NAME.lock.json, sorted, one fact a line. A digest is never invented: what
couldn't be reached is `unresolved`, with the reason, and a unit that needs it can be planned but not built.
"""

from builder.lock.drift import Change, Check, check_lock, compare
from builder.lock.images import PinnedImage, PlatformImage, recipe_reference
from builder.lock.local_files import local_file
from builder.lock.making import Findings, make_lock, side_source, source_of
from builder.lock.record import Lock, PinnedModel, Unresolved, load_lock, required_lock
from builder.lock.summaries import ChatTemplate, TensorSummary, TokenizerSummary
from builder.lock.wanted import TENSORS, WEIGHTS, model_key, names_needed

__all__ = [
    "TENSORS",
    "WEIGHTS",
    "Change",
    "ChatTemplate",
    "Check",
    "Findings",
    "Lock",
    "PinnedImage",
    "PinnedModel",
    "PlatformImage",
    "TensorSummary",
    "TokenizerSummary",
    "Unresolved",
    "check_lock",
    "compare",
    "load_lock",
    "local_file",
    "make_lock",
    "model_key",
    "names_needed",
    "recipe_reference",
    "required_lock",
    "side_source",
    "source_of",
]
