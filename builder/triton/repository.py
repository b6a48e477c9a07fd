"""Write the Triton model repository of a unit, with the description and the tokenizer that its runtime reads.

serving.json                        see `serving_document`
models/MODEL/config.pbtxt           printed from protobuf messages
models/MODEL/1/model.py             python-backend models: names their class in `builder.runtime`
models/MODEL/1/README               the other models: Triton wants the version folder, and git drops empty ones
tokenizer/                          the model's own files, unchanged
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from builder.errors import SourceError, disk_errors
from builder.model.snapshot import check_path
from builder.triton.configs import ServingSettings, model_configs, to_text

SCHEMA = 1
"""Version of the contract between this writer and `builder.runtime`, which refuses any other."""

_MODEL_PY = """\
import os
import sys

# The stub that runs this embeds Python in isolated mode, which ignores PYTHONPATH.
sys.path[:0] = [path for path in os.environ.get("PYTHONPATH", "").split(":") if path]

from builder.runtime.models.{name} import TritonPythonModel

__all__ = ["TritonPythonModel"]
"""


def write_repository(settings: ServingSettings, tokenizer: Path, files: Iterable[str], into: Path) -> None:
    """Write `serving.json`, `models/` and `tokenizer/` below `into`; the same input gives the same bytes.

    `files` are the names of the tokenizer's files, relative to the folder `tokenizer`.
    Raises SourceError for an unsafe file name or where `tokenizer.json` is missing.
    """
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
        _copy_tokenizer(tokenizer, files, into / "tokenizer")


def serving_document(settings: ServingSettings) -> dict[str, Any]:
    """What the runtime knows about the unit: names, limits in tokens, and special token ids."""
    return {
        "schema": SCHEMA,
        "unit": settings.unit,
        "served_model_name": settings.served_model_name,
        "family": settings.family,
        "backend": settings.backend,
        "max_batch_size": settings.max_batch_size,
        "max_input_len": settings.max_input_len,
        "max_seq_len": settings.max_seq_len,
        "vocab_size": settings.vocab_size,
        "bos_token_id": settings.bos_token_id,
        "eos_token_ids": list(settings.eos_token_ids),
        "pad_token_id": settings.pad_token_id,
    }


def _copy_tokenizer(source: Path, files: Iterable[str], target: Path) -> None:
    names = sorted(files)
    if "tokenizer.json" not in names:
        raise SourceError(
            "the model has no tokenizer.json",
            where=source,
            why="the runtime reads only this format",
            hint="save the tokenizer once with transformers: AutoTokenizer.from_pretrained(...).save_pretrained(...)",
            code="NO_TOKENIZER_JSON",
        )
    try:
        Tokenizer.from_file(str(source / "tokenizer.json"))
    except Exception as error:  # the library raises nothing more special
        raise SourceError(
            "the model's tokenizer can't be read",
            where=source / "tokenizer.json",
            why=str(error),
            code="TOKENIZER_JSON",
        ) from error
    for name in names:
        path = target / check_path(name, where=source)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, path)
