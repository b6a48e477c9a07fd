"""Proof that a TensorRT-LLM checkpoint is the model that it was made from; on a CPU, without torch.

structure.py  names, shapes, types and config.json, against a table written from TensorRT-LLM's side
assembly.py   which part of which source tensor each part of a rank's tensor is: the inverse of the converter's table
values.py     the parts compared: bit for bit, or within what the format of quantised weights can hold
bounds.py     what that is, with its derivation
report.py     what was found
"""

from builder.checkpoint.verification.report import Mismatch, Report
from builder.checkpoint.verification.structure import verify_structure
from builder.checkpoint.verification.values import verify

__all__ = ["Mismatch", "Report", "verify", "verify_structure"]
