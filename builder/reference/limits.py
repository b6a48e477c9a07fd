"""What an engine was built for."""

from __future__ import annotations

from dataclasses import dataclass

from builder.reference.fields import Fields


@dataclass(frozen=True)
class Limits:
    """The limits of TensorRT-LLM's BuildConfig."""

    max_batch_size: int
    max_input_len: int
    max_seq_len: int
    max_num_tokens: int
    max_beam_width: int

    @classmethod
    def from_build_config(cls, table: object, where: str) -> Limits:
        fields = Fields(table, where)
        return cls(
            max_batch_size=fields.integer("max_batch_size"),
            max_input_len=fields.integer("max_input_len"),
            max_seq_len=fields.integer("max_seq_len"),
            max_num_tokens=fields.integer("max_num_tokens"),
            max_beam_width=fields.integer("max_beam_width", 1),
        )
