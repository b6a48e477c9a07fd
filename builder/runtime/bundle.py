"""The served tree: what `serving.json` says, and where things lie.

ROOT/serving.json     ROOT/models/     ROOT/tokenizer/     ROOT/engine/
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.errors import VerificationError

SCHEMA = 2
"""The contract with the writer of the tree; another number means another release of this program."""

_OVER = {
    "max_batch_size": "TRITON_BATCH_GT_ENGINE",
    "max_seq_len": "SEQ_LEN_GT_ENGINE",
    "max_beam_width": "BEAM_WIDTH_GT_ENGINE",
}
"""Limits that the engine sets, and the code where the tree promises more."""


@dataclass(frozen=True)
class Bundle:
    """A served tree. Limits are the engine's, lengths in tokens.

    `streaming`: Triton's models send tokens as they come. `guided_decoding`: what holds answers to a schema, or "none".
    """

    root: Path
    unit: str
    served_model_name: str
    backend: str
    max_batch_size: int
    max_input_len: int
    max_seq_len: int
    max_beam_width: int
    streaming: bool
    guided_decoding: str
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    pad_token_id: int | None

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def tokenizer(self) -> Path:
        return self.root / "tokenizer"

    @property
    def engine(self) -> Path:
        return self.root / "engine"

    @classmethod
    def open(cls, root: Path) -> Bundle:
        """Read `serving.json`. Raises VerificationError where it is absent, damaged, of another contract, or where it
        promises more than the engine was built for."""
        path = root / "serving.json"
        document = _read_json(path, "this folder holds nothing that can be served")
        if not isinstance(document, dict):
            raise _damaged(path, "not a JSON object")
        if (schema := document.get("schema")) != SCHEMA:
            raise VerificationError(
                f"the served tree has contract version {schema!r}",
                where=path,
                why=f"this runtime speaks version {SCHEMA}",
                hint="serve it with the release of engine-builder that built it, or build it again",
                code="SERVING_SCHEMA",
            )
        try:
            bundle = cls(
                root=root,
                unit=document["unit"],
                served_model_name=document["served_model_name"],
                backend=document["backend"],
                max_batch_size=document["max_batch_size"],
                max_input_len=document["max_input_len"],
                max_seq_len=document["max_seq_len"],
                max_beam_width=document["max_beam_width"],
                streaming=document["streaming"],
                guided_decoding=document["guided_decoding"],
                vocab_size=document["vocab_size"],
                eos_token_ids=tuple(document["eos_token_ids"]),
                pad_token_id=document["pad_token_id"],
            )
            if not bundle.eos_token_ids or not bundle.models.is_dir():
                raise ValueError("no end tokens" if bundle.models.is_dir() else "no models/ beside it")
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(path, f"{type(error).__name__}: {error}") from None
        config = bundle.engine / "config.json"
        try:
            engine = {limit: int(_read_json(config, "the engine is missing")["build_config"][limit]) for limit in _OVER}
            over = [limit for limit in engine if getattr(bundle, limit) > engine[limit]]
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(config, f"{type(error).__name__}: {error}") from None
        for limit in over:
            raise VerificationError(
                f"{limit} is {getattr(bundle, limit)}, but the engine was built for {engine[limit]}",
                where=path,
                hint="build the engine and the repository from one recipe",
                code=_OVER[limit],
            )
        return bundle


def _damaged(path: Path, why: str) -> VerificationError:
    return VerificationError(
        "a damaged file", where=path, why=why, hint="pull or build the release again", code="DAMAGED"
    )


def _read_json(path: Path, absent: str) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise VerificationError(
            absent, where=path, why="the file does not exist", hint="pull or build the release again", code="NO_BUNDLE"
        ) from None
    except ValueError as error:
        raise _damaged(path, str(error)) from None
    return document
