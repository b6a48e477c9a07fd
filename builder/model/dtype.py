"""The precision that a model was published in, wherever its config says so."""

from __future__ import annotations

from builder.model.fields import Fields
from builder.model.spec import STORED_DTYPES, SourceQuantization


def read_dtype(top: Fields, fields: Fields, quantization: SourceQuantization | None, stored_dtype: str | None) -> str:
    """`dtype` since transformers 4.56, `torch_dtype` before; of the language model, else of all; else as stored.

    Checkpoints in MXFP4 run in bfloat16, as transformers' quantizer_mxfp4.py sets where a config doesn't say.
    """
    found: dict[str, str] = {}
    for part in (fields, top):
        for name in ("dtype", "torch_dtype"):
            value = part.get(name)
            if value is None:
                continue
            if not isinstance(value, str) or value not in STORED_DTYPES:
                raise part.wrong(name, f"one of {', '.join(STORED_DTYPES)}")
            found.setdefault(value, f"{name} {value}")
    if len(found) > 1:
        raise top.contradiction(f"{' and '.join(found.values())} differ")
    if found:
        return next(iter(found))
    if quantization is not None and quantization.precision == "mxfp4":
        return "bfloat16"
    by_storage = {stored: name for name, stored in STORED_DTYPES.items()}
    if stored_dtype in by_storage:
        return by_storage[stored_dtype]
    raise top.wrong("torch_dtype", f"one of {', '.join(STORED_DTYPES)}")
