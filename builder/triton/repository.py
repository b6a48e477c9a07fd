"""Write the Triton model repository of a unit, with the description and the tokenizer that its runtime reads.

serving.json                        see `serving_document`
models/MODEL/config.pbtxt           printed from protobuf messages
models/MODEL/1/model.py             python-backend models: names their class in `builder.runtime`
models/MODEL/1/README               the other models: Triton wants the version folder, and git drops empty ones
tokenizer/                          see `builder.triton.tokenizer`
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from builder.errors import PlanRefused, disk_errors
from builder.plan.serving import ServingSettings
from builder.triton.configs import model_configs, to_text
from builder.triton.parameters import TOKENIZER_INFO
from builder.triton.tokenizer import write_tokenizer, xgrammar_info

SCHEMA = 2
"""Version of the contract between this writer and `builder.runtime`, which refuses any other."""

_MODEL_PY = """\
import os
import sys

# The stub that runs this embeds Python in isolated mode, which ignores PYTHONPATH.
sys.path[:0] = [path for path in os.environ.get("PYTHONPATH", "").split(":") if path]

from builder.runtime.models.{name} import TritonPythonModel

__all__ = ["TritonPythonModel"]
"""


def write_repository(
    settings: ServingSettings, tokenizer: Path, files: Iterable[str], into: Path, chat_template: bytes | None = None
) -> None:
    """Write `serving.json`, `models/` and `tokenizer/` below `into`; the same input gives the same bytes.

    `files` are the names of the tokenizer's files, relative to the folder `tokenizer`; `chat_template` replaces the
    model's own. Raises SourceError for an unsafe file name or where `tokenizer.json` is missing, and PlanRefused for
    what these models don't do.
    """
    _check(settings)
    with disk_errors(into):
        into.mkdir(parents=True, exist_ok=True)
        (into / "serving.json").write_text(json.dumps(serving_document(settings), indent=2, sort_keys=True) + "\n")
        for name, config in model_configs(settings).items():
            folder = into / "models" / name
            (folder / "1").mkdir(parents=True)
            (folder / "config.pbtxt").write_text(to_text(config))
            if config.backend == "python":
                (folder / "1" / "model.py").write_text(_MODEL_PY.format(name=name))
            else:
                (folder / "1" / "README").write_text(f"The model {name} has no files of its own.\n")
        loaded = write_tokenizer(tokenizer, files, into / "tokenizer", chat_template)
        if settings.guided_decoding == "xgrammar":
            (into / TOKENIZER_INFO).write_text(json.dumps(xgrammar_info(loaded, settings.eos_token_ids)) + "\n")


def serving_document(settings: ServingSettings) -> dict[str, Any]:
    """What the runtime knows about the unit: names, limits in tokens, abilities, and special token ids."""
    return {
        "schema": SCHEMA,
        "unit": settings.unit,
        "served_model_name": settings.served_model_name,
        "family": settings.family,
        "backend": settings.backend,
        "max_batch_size": settings.max_batch_size,
        "max_input_len": settings.max_input_len,
        "max_seq_len": settings.max_seq_len,
        "max_beam_width": settings.max_beam_width,
        "streaming": settings.streaming,
        "guided_decoding": settings.guided_decoding,
        "vocab_size": settings.vocab_size,
        "bos_token_id": settings.bos_token_id,
        "eos_token_ids": list(settings.eos_token_ids),
        "pad_token_id": settings.pad_token_id,
    }


def _check(settings: ServingSettings) -> None:
    """The five models are those of the engine flow."""
    if settings.family == "llmapi":
        raise PlanRefused(
            "the model repository of the family llmapi can't be written",
            where=settings.unit,
            why="this version writes ensemble and bls, the families of compiled engines",
            hint="serving.family: bls, with flow: engine",
            code="FAMILY_UNSUPPORTED",
        )
