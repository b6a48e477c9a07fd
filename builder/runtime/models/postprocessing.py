"""The Triton model `postprocessing`: token ids to text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from builder.runtime.models.tensors import error_response, parameter, required_input
from builder.runtime.tokenizer import Tokenizer


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        self._tokenizer = Tokenizer(Path(parameter(config, "tokenizer_dir")))
        self._skip_special_tokens = parameter(config, "skip_special_tokens") == "true"

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._respond(request) for request in requests]

    def _respond(self, request: Any) -> Any:
        try:
            tokens = required_input(request, "TOKENS_BATCH")  # [batch, beams, n]
            lengths = required_input(request, "SEQUENCE_LENGTH")  # [batch, beams]
            texts = [
                [
                    self._tokenizer.decode(ids[:length], skip_special_tokens=self._skip_special_tokens).encode()
                    for ids, length in zip(beams, beam_lengths, strict=True)
                ]
                for beams, beam_lengths in zip(tokens.tolist(), lengths.tolist(), strict=True)
            ]
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.array(texts, np.object_))])
        except Exception as error:
            return error_response(error)
