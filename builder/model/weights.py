"""The weights of a model, to be counted, split and compared: what is public of the files beside this one."""

from builder.model.inventory import parameter_count, weights
from builder.model.layer_weights import Weight
from builder.model.next_token import next_token_weights
from builder.model.stored import plain_bytes, quantized_bytes, stored_bytes

__all__ = [
    "Weight",
    "next_token_weights",
    "parameter_count",
    "plain_bytes",
    "quantized_bytes",
    "stored_bytes",
    "weights",
]
