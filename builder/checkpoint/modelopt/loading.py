"""The model and its tokenizer, from their folder alone: safetensors only, no code of theirs, nothing downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from builder.checkpoint.modelopt.failure import Failure

_SAFE = {"trust_remote_code": False, "local_files_only": True}
_RANDOM = {"missing_keys": "don't have", "mismatched_keys": "have other shapes of"}
"""What transformers would fill with random numbers, and warn."""

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


def load_model(source: str, dtype: str, device: str) -> Any:
    """The model in `dtype`, spread over all GPUs where `device` is "cuda".

    Failure MODEL if it can't be loaded, or isn't all there; WEIGHTS if it holds NaN or infinity.
    """
    import torch
    from transformers import AutoModelForCausalLM

    loaded: Any = AutoModelForCausalLM.from_pretrained(
        source,
        dtype=getattr(torch, dtype),
        use_safetensors=True,
        device_map="auto" if device == "cuda" else None,
        output_loading_info=True,
        ignore_mismatched_sizes=True,
        **_SAFE,
    )
    model, info = loaded
    for kind, words in _RANDOM.items():
        names = sorted(key if isinstance(key, str) else key[0] for key in info[kind])
        if names:
            raise Failure("MODEL", f"the files {words} {', '.join(names[:5])}{', …' if len(names) > 5 else ''}")
    model.eval()
    for name, parameter in model.named_parameters():
        if not bool(parameter.isfinite().all()):
            raise Failure("WEIGHTS", f"{name} holds NaN or infinity as {dtype}")
    return model


def load_tokenizer(source: str) -> Any:
    """The tokenizer; it pads on the left. Failure TOKENIZER if there is none, or it can't be loaded."""
    from transformers import AutoTokenizer

    if not any((Path(source) / name).is_file() for name in TOKENIZERS):
        raise Failure("TOKENIZER", f"there is none of {', '.join(TOKENIZERS)}")
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, padding_side="left", **_SAFE)
    except Exception as error:  # of any of the libraries below
        raise Failure("TOKENIZER", f"{type(error).__name__}: {error}") from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0)
    return tokenizer
