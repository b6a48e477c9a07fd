"""The Triton model `preprocessing`: text and words to token ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from builder.runtime.models.tensors import error_response, optional_input, parameter, refuse_inputs, required_input
from builder.runtime.models.words import pack_words
from builder.runtime.tokenizer import Tokenizer

_UNSUPPORTED = ("DECODER_QUERY", "EMBEDDING_BIAS_WORDS", "IMAGE_BYTES", "IMAGE_URL", "IMAGES", "VIDEO_BYTES")


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        self._tokenizer = Tokenizer(Path(parameter(config, "tokenizer_dir")))
        self._add_special_tokens = parameter(config, "add_special_tokens") == "true"
        self._eos = [int(number) for number in parameter(config, "eos_token_ids").split(",")]

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._respond(request) for request in requests]

    def _respond(self, request: Any) -> Any:
        try:
            return pb_utils.InferenceResponse(
                [pb_utils.Tensor(name, value) for name, value in self._encode(request).items()]
            )
        except Exception as error:
            return error_response(error)

    def _encode(self, request: Any) -> dict[str, Any]:
        refuse_inputs(request, _UNSUPPORTED)
        query = required_input(request, "QUERY")
        batch = query.shape[0]
        prompts = [
            self._tokenizer.encode(text.decode(), add_special_tokens=self._add_special_tokens) for text in query[:, 0]
        ]
        end_id = optional_input(request, "END_ID", np.full((batch, 1), self._eos[0], np.int32))
        pad_id = optional_input(request, "PAD_ID", end_id)
        input_ids = np.full((batch, max(map(len, prompts))), pad_id[0, 0], np.int32)
        for row, prompt in zip(input_ids, prompts, strict=True):
            row[: len(prompt)] = prompt
        # TensorRT-LLM takes one end id; the model's other ones stop it as words.
        stop_words = [[token] for token in self._eos[1:]] + self._words(request, "STOP_WORDS_DICT")
        return {
            "INPUT_ID": input_ids,
            "REQUEST_INPUT_LEN": np.array([[len(prompt)] for prompt in prompts], np.int32),
            "REQUEST_OUTPUT_LEN": required_input(request, "REQUEST_OUTPUT_LEN"),
            "DECODER_INPUT_ID": pad_id,
            "REQUEST_DECODER_INPUT_LEN": np.ones((batch, 1), np.int32),
            "STOP_WORDS_IDS": np.repeat(pack_words(stop_words), batch, axis=0),
            "BAD_WORDS_IDS": np.repeat(pack_words(self._words(request, "BAD_WORDS_DICT")), batch, axis=0),
            "EMBEDDING_BIAS": np.zeros((batch, 0), np.float32),
            "OUT_END_ID": end_id,
            "OUT_PAD_ID": pad_id,
            "OUT_PROMPT_TABLE_EXTRA_IDS": np.zeros_like(input_ids, dtype=np.uint64),
        }

    def _words(self, request: Any, name: str) -> list[list[int]]:
        words = optional_input(request, name, np.empty((1, 0), np.object_))
        return [self._tokenizer.encode(word.decode(), add_special_tokens=False) for word in words[0] if word]
